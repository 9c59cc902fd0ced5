//! Notices that addresses or routes of this host have changed.

use std::sync::Arc;

use tokio::sync::watch;

/// Notices that addresses or routes of this host have changed. Open connections look at once whether they have to migrate.
///
/// On Linux the notices come from the system (netlink). Elsewhere a program that hears of a change calls
/// [`notify`](Self::notify); without a notice, connections look twice a second. Clones are handles of one source.
///
/// ```
/// use tiderace_client::{NetworkChanges, Settings};
///
/// let changes = NetworkChanges::default();
/// let settings = Settings { network_changes: changes.clone(), ..Settings::default() };
/// // When the platform says that the phone has left the Wi-Fi:
/// changes.notify();
/// # drop(settings);
/// ```
#[derive(Clone, Debug, Default)]
pub struct NetworkChanges(Arc<Source>);

#[derive(Debug, Default)]
struct Source {
    /// Number of notices so far.
    count: watch::Sender<u64>,
    #[cfg(target_os = "linux")]
    system: std::sync::Mutex<Option<system::Watch>>,
}

impl NetworkChanges {
    /// Notes that something has changed. Costs each open connection a system call or two, and no packet.
    pub fn notify(&self) {
        notify(&self.0.count);
    }

    /// Notices from here on. Those of the system begin with the first call, within a tokio runtime.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        #[cfg(target_os = "linux")]
        self.0.watch_system();
        self.0.count.subscribe()
    }

    /// Returns whether the system tells of changes.
    pub(crate) fn come_from_system(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.0.system().as_ref().is_some_and(system::Watch::is_running);
        #[cfg(not(target_os = "linux"))]
        false
    }
}

fn notify(count: &watch::Sender<u64>) {
    count.send_modify(|count| *count = count.wrapping_add(1));
}

#[cfg(target_os = "linux")]
impl Source {
    fn system(&self) -> std::sync::MutexGuard<'_, Option<system::Watch>> {
        self.system.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn watch_system(&self) {
        let mut system = self.system();
        // It ends with the runtime on which it was started.
        if system.as_ref().is_some_and(system::Watch::is_running) {
            return;
        }
        *system = match system::Watch::start(self.count.clone()) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::debug!("the system tells of no change of addresses: {error}");
                None
            }
        };
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::{io, time::Duration};

    use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};
    use tokio::{sync::watch, task::AbortHandle};

    /// rtnetlink(7): interfaces, and addresses and routes of IPv4 and IPv6.
    const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
    /// Time between notices: a router changes thousands of routes a second.
    const APART: Duration = Duration::from_millis(20);

    /// Task that passes on what the kernel says. It ends with this.
    #[derive(Debug)]
    pub(super) struct Watch(AbortHandle);

    impl Drop for Watch {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    impl Watch {
        pub(super) fn start(count: watch::Sender<u64>) -> io::Result<Self> {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
            // Messages that find the queue full may go: those in it make a notice after them.
            socket.socket_mut().set_no_enobufs(true)?;
            Ok(Self(tokio::spawn(run(socket, count)).abort_handle()))
        }

        pub(super) fn is_running(&self) -> bool {
            !self.0.is_finished()
        }
    }

    async fn run(socket: TokioSocket, count: watch::Sender<u64>) {
        // What has changed is asked of the system, so that nothing is read out of the messages, and they may be cut off.
        let mut buffer = Vec::with_capacity(4_096);
        loop {
            buffer.clear();
            if let Err(error) = socket.recv(&mut buffer).await {
                tracing::debug!("the system tells of no further change of addresses: {error}");
                return;
            }
            super::notify(&count);
            tokio::time::sleep(APART).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_notice_reaches_all_that_wait() {
        let changes = NetworkChanges::default();
        let (mut one, mut other) = (changes.subscribe(), changes.clone().subscribe());
        assert!(!one.has_changed().unwrap());
        changes.notify();
        one.changed().await.unwrap();
        other.changed().await.unwrap();
        assert!(!one.has_changed().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_is_watched_again_on_another_runtime() {
        let changes = NetworkChanges::default();
        assert!(!changes.come_from_system());
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _receiver = runtime.block_on(async { changes.subscribe() });
            assert!(changes.come_from_system());
            drop(runtime);
            assert!(!changes.come_from_system());
        }
    }
}
