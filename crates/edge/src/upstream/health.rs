//! Health checks of a back end, as long as it is in use.

use std::sync::Weak;

use http::{Request, header};

use super::BackEnd;
use crate::{body::full, config::Health};

/// Asks at each interval; several answers in a row change the verdict.
pub(super) async fn ask(back_end: Weak<BackEnd>, health: Health) {
    let mut ticks = tokio::time::interval(health.interval.0.max(std::time::Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut row = Row::default();
    loop {
        ticks.tick().await;
        let Some(back_end) = back_end.upgrade() else { return };
        let good = is_good(&back_end, &health).await;
        if let Some(well) = row.push(good, &health) {
            back_end.set_well(well);
        }
    }
}

async fn is_good(back_end: &BackEnd, health: &Health) -> bool {
    let request = Request::get(&health.path).header(header::HOST, "health").header(header::USER_AGENT, "tiderace-edge");
    let Ok(request) = request.body(full("")) else { return false };
    let time = health.timeout.0;
    let Ok(Ok(response)) = tokio::time::timeout(time, back_end.send(request, time)).await else { return false };
    response.status().as_u16() < 400
}

/// Equal answers in a row.
#[derive(Default)]
struct Row {
    good: bool,
    length: u32,
}

impl Row {
    /// The verdict, when the row is as long as it takes.
    fn push(&mut self, good: bool, health: &Health) -> Option<bool> {
        if self.good != good || self.length == 0 {
            *self = Self { good, length: 0 };
        }
        self.length = self.length.saturating_add(1);
        let enough = if good { health.up_after } else { health.down_after };
        (self.length >= enough).then_some(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_row_of_answers_changes_the_verdict() {
        let health = Health { down_after: 3, up_after: 2, ..Health::default() };
        let mut row = Row::default();
        let answers = [true, false, false, true, false, false, false, false, true, true];
        let verdicts: Vec<_> = answers.into_iter().map(|good| row.push(good, &health)).collect();
        let (none, up, down) = (None, Some(true), Some(false));
        assert_eq!(verdicts, [none, none, none, none, none, none, down, down, none, up]);
    }
}
