//! Sockets for operators: the admin socket and the address of the metrics. One process at a time serves them.

use std::{
    net::TcpListener as StdTcpListener,
    os::unix::net::UnixListener as StdUnixListener,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    net::{TcpListener, UnixListener},
    task::AbortHandle,
};

use super::{Process, ProcessError, figures::serve_metrics};
use crate::{
    admin,
    config::{Config, address},
    setup::SetupError,
    upgrade::TakenOver,
};

/// The sockets, and the tasks that serve them.
pub(super) struct Services {
    admin: Option<(PathBuf, StdUnixListener)>,
    /// Configured address.
    metrics: Option<(String, StdTcpListener)>,
    tasks: Mutex<Vec<AbortHandle>>,
    pending: admin::Pending,
    /// The file of the admin socket is for this process to remove.
    is_owner: AtomicBool,
}

impl Services {
    /// Opens the sockets, or takes over those of another process.
    pub(super) fn open(config: &Config, mut taken: Option<&mut TakenOver>) -> Result<Self, ProcessError> {
        let admin = match config.admin.socket.as_str() {
            "" => None,
            path => {
                let same = taken.as_mut().and_then(|taken| taken.admin.take_if(|(other, _)| other == path));
                let path = PathBuf::from(path);
                let socket = match same {
                    Some((_, socket)) => socket,
                    None => {
                        admin::open(&path).map_err(|source| ProcessError::AdminSocket { path: path.clone(), source })?
                    }
                };
                Some((path, socket))
            }
        };
        let metrics = match config.metrics.listen.as_str() {
            "" => None,
            listen => {
                let same = taken.as_mut().and_then(|taken| taken.metrics.take_if(|(other, _)| other == listen));
                let socket = match same {
                    Some((_, socket)) => socket,
                    None => {
                        let at = address(listen).map_err(SetupError::MetricsAddress)?;
                        StdTcpListener::bind(at).map_err(|why| ProcessError::listen("metrics.listen", at, why))?
                    }
                };
                Some((listen.to_owned(), socket))
            }
        };
        let (tasks, pending) = (Mutex::default(), admin::Pending::default());
        Ok(Self { admin, metrics, tasks, pending, is_owner: AtomicBool::new(true) })
    }

    /// Path and socket for operators.
    pub(super) fn admin(&self) -> Option<(&Path, &StdUnixListener)> {
        self.admin.as_ref().map(|(path, socket)| (path.as_path(), socket))
    }

    /// Configured address and socket of the metrics.
    pub(super) fn metrics(&self) -> Option<(&str, &StdTcpListener)> {
        self.metrics.as_ref().map(|(address, socket)| (address.as_str(), socket))
    }

    /// Serves both. Must be called within a tokio runtime.
    pub(super) fn serve(&self, process: &Arc<Process>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((path, socket)) = &self.admin {
            let pending = self.pending.clone();
            let socket = socket.set_nonblocking(true).and_then(|()| UnixListener::from_std(socket.try_clone()?));
            match socket {
                Ok(socket) => tasks.push(tokio::spawn(admin::serve(socket, process.clone(), pending)).abort_handle()),
                Err(error) => tracing::error!("cannot serve the admin socket {}: {error}", path.display()),
            }
        }
        if let Some((address, socket)) = &self.metrics {
            let socket = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket.try_clone()?));
            match socket {
                Ok(socket) => tasks.push(tokio::spawn(serve_metrics(socket, process.clone())).abort_handle()),
                Err(error) => tracing::error!("cannot serve the metrics at {address}: {error}"),
            }
        }
    }

    /// Accepts no more connections. Answers in progress are completed.
    pub(super) fn stop(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.drain(..).for_each(|task| task.abort());
    }

    /// Waits until the answers in progress are written.
    pub(super) async fn all_answered(&self) {
        self.pending.all_written().await;
    }

    /// Another process serves from here on; `admin` when it has the same admin socket.
    pub(super) fn leave(&self, admin: bool) {
        if !admin {
            self.remove();
        }
        self.is_owner.store(false, Ordering::Release);
    }

    /// Removes the file of the admin socket, if it is this process's.
    pub(super) fn remove(&self) {
        if let Some((path, _)) = &self.admin
            && self.is_owner.swap(false, Ordering::AcqRel)
        {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}
