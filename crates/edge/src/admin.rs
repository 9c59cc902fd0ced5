//! Operator interface of a running gateway: a Unix socket that takes a word on a line and answers with a line of JSON.
//!
//! Only the gateway's user and root may use it: the mode of the socket and the kernel's peer credentials enforce this.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
};

/// A request has to come within this time, and an answer with it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Commands of an operator, carried out.
pub(crate) trait Operated: Send + Sync + 'static {
    /// The answer to a command with its order. `gone` is ready when the operator has hung up.
    fn answer(
        self: &Arc<Self>,
        command: &str,
        order: &str,
        gone: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Value> + Send;
}

/// Number of commands whose answers are not written yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending(watch::Sender<usize>);

impl Pending {
    fn begin(&self) -> PendingAnswer {
        self.0.send_modify(|count| *count += 1);
        PendingAnswer(self.0.clone())
    }

    /// Waits until all answers are written, for a second at most: the process ends.
    pub(crate) async fn all_written(&self) {
        let mut count = self.0.subscribe();
        // An operator that does not read has only himself to blame.
        let _ = tokio::time::timeout(Duration::from_secs(1), count.wait_for(|count| *count == 0)).await;
    }
}

/// One of them.
struct PendingAnswer(watch::Sender<usize>);

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Opens the socket, in place of one that a gateway left behind that is gone.
pub(crate) fn open(path: &Path) -> io::Result<StdListener> {
    if StdStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another gateway answers there"));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers until the task ends.
pub(crate) async fn serve(listener: UnixListener, gateway: Arc<impl Operated>, pending: Pending) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (gateway, pending) = (gateway.clone(), pending.clone());
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, &gateway, &pending).await {
                        tracing::debug!("the admin socket: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("the admin socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, gateway: &Arc<impl Operated>, pending: &Pending) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    // SAFETY: the call has no arguments and cannot fail.
    #[expect(unsafe_code, reason = "libc has no safe form")]
    let own = unsafe { libc::geteuid() };
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = tokio::io::BufReader::new(read.take(1_024));
    tokio::time::timeout(PATIENCE, read.read_line(&mut line)).await??;
    let _pending = pending.begin();
    let (command, order) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let answer = if user != own && user != 0 {
        json!({"error": "only the user of the gateway, and root, are heard"})
    } else {
        // Nobody says more than a line.
        gateway.answer(command, order, async { while read.read_u8().await.is_ok() {} }).await
    };
    tokio::time::timeout(PATIENCE, write.write_all(format!("{answer}\n").as_bytes())).await?
}

/// Command that a gateway does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody is at the socket, this user may not use it, or no answer came in time.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Answer that is no JSON: the connection broke off, or somebody else answers.
    #[error("the answer cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Sends a command to a running gateway, and returns its answer. Blocks; a capture or an upgrade answers when it has ended.
///
/// # Errors
/// When no gateway answers.
pub fn ask(socket: &Path, command: &str) -> Result<Value, AskError> {
    let mut stream = StdStream::connect(socket)?;
    let takes_its_time = ["capture ", "upgrade "].iter().any(|slow| command.starts_with(slow));
    stream.set_read_timeout(Some(PATIENCE).filter(|_| !takes_its_time))?;
    writeln!(stream, "{command}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_gateway_that_is_gone_is_told_from_one_that_talks_nonsense() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("edge.sock");
        let gone = ask(&socket, "status").unwrap_err();
        assert!(matches!(&gone, AskError::System(error) if error.kind() == io::ErrorKind::NotFound), "{gone:?}");
        assert!(gone.source().unwrap().is::<io::Error>());
        let listener = StdListener::bind(&socket).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut command = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut command).unwrap();
            stream.write_all(b"nonsense\n").unwrap();
            command
        });
        let nonsense = ask(&socket, "status").unwrap_err();
        assert!(matches!(nonsense, AskError::Malformed(_)), "{nonsense:?}");
        assert!(nonsense.source().unwrap().is::<serde_json::Error>());
        assert_eq!(answering.join().unwrap(), "status\n");
    }
}
