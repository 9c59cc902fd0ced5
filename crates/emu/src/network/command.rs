//! Programs behind an emulated network. All processes that a program starts end with it, and all of them end with this process, even if it
//! is killed.
//!
//! A program runs in a process namespace (`CLONE_NEWPID`) under a supervisor, which is this program with other arguments. The kernel kills
//! the supervisor when the thread that started it ends, and with a supervisor everything in its process namespace.

use std::{
    ffi::OsString,
    io,
    os::fd::AsFd,
    process::{self, ExitStatus, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use super::{Namespace, sys};

/// A program to be run on one side of a network.
#[derive(Clone, Debug)]
pub struct Command {
    /// Arguments with which this very program calls [`supervise`].
    pub supervisor: Vec<OsString>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Variables for its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Has no standard input, which belongs to another program.
    pub without_input: bool,
    /// Send output to standard error.
    pub output_to_error: bool,
}

/// A program that runs. Killed, with all it has started, when dropped.
#[derive(Debug)]
pub struct Running {
    supervisor: u32,
    ended: mpsc::Receiver<io::Result<ExitStatus>>,
    thread: Option<JoinHandle<()>>,
    kill: mpsc::Sender<()>,
}

impl Command {
    /// Starts the program in a namespace.
    ///
    /// # Errors
    /// When its thread or the supervisor cannot be started. If the program itself cannot be started, the supervisor ends with 127.
    pub fn start(self, namespace: &Namespace) -> io::Result<Running> {
        let executable = std::env::current_exe()?;
        let namespace = namespace.clone();
        let (started, has_started) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let (kill, killed) = mpsc::channel::<()>();
        // The supervisor dies with this thread, so the thread lasts as long as the supervisor.
        let work = move || {
            let child =
                sys::enter(namespace.file().as_fd()).and_then(|()| sys::unshare(libc::CLONE_NEWPID)).and_then(|()| {
                    let mut command = process::Command::new(executable);
                    command.args(&self.supervisor).args(&self.program).envs(self.environment);
                    if self.without_input {
                        command.stdin(Stdio::null());
                    }
                    if self.output_to_error {
                        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
                    }
                    sys::die_with_this_thread(&mut command);
                    command.spawn()
                });
            let mut child = match child {
                Ok(child) => child,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok(child.id()));
            let status = loop {
                match child.try_wait() {
                    Ok(None) => {}
                    Ok(Some(status)) => break Ok(status),
                    Err(error) => break Err(error),
                }
                match killed.recv_timeout(std::time::Duration::from_millis(5)) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    _ => {
                        let _ = child.kill();
                        break child.wait();
                    }
                }
            };
            let _ = ended.send(status);
        };
        let thread = thread::Builder::new().name("command".to_owned()).spawn(work)?;
        let supervisor = has_started.recv().map_err(|_| io::Error::other("a thread has panicked"))??;
        Ok(Running { supervisor, ended: has_ended, thread: Some(thread), kill })
    }
}

impl Running {
    /// Process number of the supervisor.
    pub const fn id(&self) -> u32 {
        self.supervisor
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// When the system does not return it.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        self.ended.recv().map_err(|_| io::Error::other("a thread has panicked"))?
    }

    /// Status of the program, once it has ended.
    pub fn try_wait(&self) -> Option<io::Result<ExitStatus>> {
        self.ended.try_recv().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The supervisor: runs a program as the first process of its process namespace and ends as it ends, with 128 and the number of the
/// signal that killed it, or with 127 when it cannot be started.
///
/// # Errors
/// When the system does not let it wait.
pub fn supervise(program: &[OsString]) -> io::Result<u8> {
    let Some((name, arguments)) = program.split_first() else { return Ok(127) };
    let child = match process::Command::new(name).args(arguments).spawn() {
        Ok(child) => i32::try_from(child.id()).unwrap_or(-1),
        Err(error) => {
            eprintln!("error: cannot start {}: {error}", name.display());
            return Ok(127);
        }
    };
    // Orphans come to the first process of a namespace as well.
    while let Some((ended, code)) = sys::wait_for_any()? {
        if ended == child {
            return Ok(code);
        }
    }
    Ok(127)
}
