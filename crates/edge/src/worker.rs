//! Thread with its own runtime. A connection lives on one worker, with everything that it needs.

use std::{cell::Cell, io, num::NonZeroU8, thread::JoinHandle};

use tokio::{runtime::Handle, sync::oneshot};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the worker on whose thread this runs; 0 elsewhere.
pub(crate) fn current() -> usize {
    NUMBER.get()
}

/// All workers. They end when this is dropped.
pub(crate) struct Workers {
    handles: Vec<Handle>,
    stops: Vec<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` of them; 0 is one for each processor.
    pub(crate) fn start(count: u8) -> io::Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let count = NonZeroU8::new(count).map_or_else(cores, |count| count.get().into()).min(255);
        let mut this = Self { handles: Vec::new(), stops: Vec::new(), threads: Vec::new() };
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
