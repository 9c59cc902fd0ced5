//! Messages to the service manager, if there is one (sd_notify(3)): start, reload, hand-over, stop.
//!
//! A reload is what `Type=notify-reload` waits for: RELOADING=1 with the time at which it begins, then READY=1, with the old configuration if
//! the new one is refused.

use std::fmt::Display;

use sd_notify::NotifyState;

use super::ProcessError;

/// Bytes of a status at most: systemd ignores messages of more than 4,096 bytes, with all that they say.
const STATUS: usize = 1_000;

/// The process serves with this configuration.
pub(super) fn serving(configuration: u64) {
    send(&[NotifyState::Ready, NotifyState::Status(&in_use(configuration))]);
}

/// A reload begins.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the service manager does not learn of a reload: {error}"),
    }
}

/// A reload has ended.
pub(super) fn reloaded(result: &Result<u64, ProcessError>) {
    match result {
        Ok(configuration) => serving(*configuration),
        Err(error) => send(&[NotifyState::Ready, NotifyState::Status(&stays(error))]),
    }
}

/// Another process serves.
pub(super) fn handed_over(pid: u32, process: u64) {
    send(&[NotifyState::MainPid(pid), NotifyState::Status(&format!("process {process} serves"))]);
}

/// The process accepts no more connections, and ends.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn in_use(configuration: u64) -> String {
    format!("configuration {configuration} is in use")
}

/// Status after a refused configuration: one line, because another one would be another message.
fn stays(error: &impl Display) -> String {
    let text = format!("the configuration in use stays: {error}");
    let mut text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    text.truncate(text.floor_char_boundary(STATUS));
    text
}

fn send(news: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(news) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_short_line_of_a_status() {
        assert_eq!(stays(&"line 1\nMAINPID=1\r\n"), "the configuration in use stays: line 1 MAINPID=1  ");
        let long = stays(&"ä".repeat(10_000));
        assert!((STATUS - 1..=STATUS).contains(&long.len()), "{}", long.len());
    }
}
