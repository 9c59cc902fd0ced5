//! Thread with its own runtime. A connection lives on one worker, with everything that it needs.

use std::{cell::Cell, io, num::NonZeroU8, thread::JoinHandle};

use tokio::{runtime::Handle, sync::oneshot};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Sockets of an older process at each address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenCount {
    pub(crate) sockets: usize,
    /// More sockets may join them.
    pub(crate) may_grow: bool,
}

/// The number of the worker on whose thread this runs; 0 elsewhere.
pub(crate) fn current() -> usize {
    NUMBER.get()
}

/// All workers. They end when this is dropped.
///
/// The number of sockets of each kind at an address is that of the workers at the first start. It never falls: in an upgrade, sockets that
/// are closed lose what waits in them. Sockets beyond the number of workers are distributed among them.
pub(crate) struct Workers {
    handles: Vec<Handle>,
    sockets: usize,
    stops: Vec<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` of them; 0 is one for each processor. `taken` are the sockets of an older process.
    pub(crate) fn start(count: u8, taken: Option<TakenCount>) -> io::Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let count = NonZeroU8::new(count).map_or_else(cores, |count| count.get().into()).min(255);
        let sockets = match taken {
            None => count,
            Some(taken) if taken.may_grow => count.max(taken.sockets),
            Some(taken) => taken.sockets,
        };
        let mut this = Self { handles: Vec::new(), sockets, stops: Vec::new(), threads: Vec::new() };
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (stop, stopped) = oneshot::channel::<()>();
            this.handles.push(runtime.handle().clone());
            this.stops.push(stop);
            let run = move || {
                NUMBER.set(number);
                // An error says that the sender is gone, which is to stop, too.
                let _ = runtime.block_on(stopped);
                // Connections that are still there have had their time.
                runtime.shutdown_background();
            };
            this.threads.push(std::thread::Builder::new().name(format!("worker-{number}")).spawn(run)?);
        }
        Ok(this)
    }

    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Number of sockets of each kind at an address.
    pub(crate) fn sockets(&self) -> usize {
        self.sockets
    }

    /// The workers that drive the sockets of an address, in their order.
    pub(crate) fn of_sockets(&self) -> Vec<Handle> {
        self.handles.iter().cycle().take(self.sockets).cloned().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stops.clear();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}
