//! Programs behind an emulated network. All processes that a program starts end with it, and all of them end with this process, even if it
//! is killed.
//!
//! A program runs in a process namespace (`CLONE_NEWPID`) under a supervisor, which is this program with other arguments. The kernel kills
//! the supervisor when the thread that started it ends, and with a supervisor everything in its process namespace.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::AsFd,
    process::{self, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time,
};

use units::{Duration, Instant};

use super::{Namespace, now, sys};

/// Time that a supervisor has to end its processes, before it is killed with them.
const STOPS_WITHIN: time::Duration = time::Duration::from_secs(2);

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
    /// Destination of its output.
    pub output: Output,
}

/// Destination of a program's output.
#[derive(Clone, Debug)]
pub enum Output {
    /// Standard output and standard error of this process, as they are.
    Inherited,
    /// Standard error of this process for both.
    Error,
    /// A file for both.
    File(Arc<File>),
}

/// A program that runs. Killed, with all it has started, when dropped.
#[derive(Debug)]
pub struct Running {
    supervisor: u32,
    started: Instant,
    ended: mpsc::Receiver<io::Result<Ended>>,
    thread: Option<JoinHandle<()>>,
    alive: Arc<Mutex<bool>>,
}

/// End of a program.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Status of the supervisor, which ends as the program does.
    pub status: ExitStatus,
    /// Time of the end, by the clock of [`now`].
    pub at: Instant,
    /// CPU time of the program, of everything that it had started, and of the supervisor. A tree that had to be killed with its supervisor
    /// counts without the processes that ran then.
    pub cpu: Duration,
}

impl Ended {
    /// Exit code as shells give it: 128 and the number of the signal for a program that one has killed.
    pub fn code(&self) -> u8 {
        // The supervisor turns signals into codes; one that was killed itself has none.
        self.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(137)
    }
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
        let alive = Arc::new(Mutex::new(true));
        let is_alive = Arc::clone(&alive);
        // The supervisor dies with this thread, so the thread lasts as long as the supervisor.
        let work = move || {
            let child = sys::enter(namespace.file().as_fd())
                .and_then(|()| sys::unshare(libc::CLONE_NEWPID))
                .and_then(|()| self.spawn(executable));
            let child = match child {
                Ok(child) => child.id(),
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok((child, now())));
            let waited = sys::wait_for_end(child);
            let at = now();
            // Nobody may signal a number that belongs to no process of ours.
            *is_alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
            let reaped = waited.and_then(|()| sys::reap(child));
            let _ = ended.send(reaped.map(|(status, cpu)| Ended { status, at, cpu }));
        };
        let thread = thread::Builder::new().name("command".to_owned()).spawn(work)?;
        let (supervisor, started) = has_started.recv().map_err(|_| io::Error::other("a thread has panicked"))??;
        Ok(Running { supervisor, started, ended: has_ended, thread: Some(thread), alive })
    }

    /// Starts the supervisor in the namespaces of the calling thread.
    fn spawn(self, executable: std::path::PathBuf) -> io::Result<process::Child> {
        let mut command = process::Command::new(executable);
        command.args(&self.supervisor).args(&self.program).envs(self.environment);
        if self.without_input {
            command.stdin(Stdio::null());
        }
        match &self.output {
            Output::Inherited => {}
            Output::Error => {
                command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
            }
            Output::File(file) => {
                command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file.try_clone()?));
            }
        }
        sys::die_with_this_thread(&mut command);
        command.spawn()
    }
}

impl Running {
    /// Process number of the supervisor.
    pub const fn id(&self) -> u32 {
        self.supervisor
    }

    /// Time of the start, by the clock of [`now`].
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// When the system does not return it.
    pub fn wait(&self) -> io::Result<Ended> {
        self.ended.recv().map_err(|_| io::Error::other("a thread has panicked"))?
    }

    /// End of the program, once it has ended.
    pub fn try_wait(&self) -> Option<io::Result<Ended>> {
        self.ended.try_recv().ok()
    }

    /// Ends the program with everything that it has started.
    ///
    /// # Errors
    /// When the system does not return its end, or [`Self::try_wait`] had returned it before.
    pub fn stop(self) -> io::Result<Ended> {
        self.signal(libc::SIGTERM);
        match self.ended.recv_timeout(STOPS_WITHIN) {
            Ok(ended) => ended,
            Err(_) => {
                self.signal(libc::SIGKILL);
                self.wait()
            }
        }
    }

    /// Sends the supervisor a signal, if it has not ended.
    fn signal(&self, signal: libc::c_int) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if *alive {
            sys::signal(self.supervisor, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The supervisor: runs a program as the first process of its process namespace and ends as it ends, with 128 and the number of the
/// signal that killed it, or with 127 when it cannot be started. Before it ends, or when SIGTERM arrives, it kills all other processes of
/// its namespace, and waits for them, so that their CPU time is part of its own.
///
/// # Errors
/// When the system does not let it wait.
pub fn supervise(program: &[OsString]) -> io::Result<u8> {
    let Some((name, arguments)) = program.split_first() else { return Ok(127) };
    sys::kill_namespace_at_sigterm()?;
    let child = match process::Command::new(name).args(arguments).spawn() {
        Ok(child) => i32::try_from(child.id()).unwrap_or(-1),
        Err(error) => {
            eprintln!("error: cannot start {}: {error}", name.display());
            eprintln!("hint: is it installed, and in PATH? A file needs its path and the right to be executed");
            return Ok(127);
        }
    };
    // Orphans come to the first process of a namespace as well.
    let mut result = 127;
    while let Some((ended, code)) = sys::wait_for_any()? {
        if ended == child {
            result = code;
            sys::kill_namespace();
        }
    }
    Ok(result)
}
