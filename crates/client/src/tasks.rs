//! Tasks of HTTP/2 connections. hyper spawns them on an executor and forgets them, so a server that reads nothing could keep an unused
//! connection for ever. Here they end with the last user of the connection.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::rt::Executor;
use tokio::{sync::oneshot, task::JoinSet};

/// Time for which an unused connection may take to close.
const PATIENCE: Duration = Duration::from_secs(1);

/// Task set of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// User of a connection: a handle for requests, or a body. The last one ends the connection.
#[derive(Clone, Debug)]
pub(crate) struct User(#[allow(dead_code, reason = "it is dropped")] Arc<oneshot::Sender<Infallible>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the connection until its last user is dropped. Returns the first user. When dropped, it ends all tasks.
    pub(crate) fn drive<E>(
        self,
        connection: impl Future<Output = Result<(), E>>,
    ) -> (User, impl Future<Output = Result<(), E>>) {
        let (user, gone) = oneshot::channel::<Infallible>();
        let end = End(self);
        let drives = async move {
            let ended = connection.await;
            let _ = gone.await;
            let rest = async { while poll_fn(|cx| end.0.lock().poll_join_next(cx)).await.is_some() {} };
            let _ = tokio::time::timeout(PATIENCE, rest).await;
            ended
        };
        (User(Arc::new(user)), drives)
    }
}

struct End(Tasks);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().abort_all();
    }
}
