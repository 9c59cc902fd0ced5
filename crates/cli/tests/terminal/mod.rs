//! Runs the program at a terminal, as a user does.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};

/// Limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Sequences that enter and leave the alternate screen.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// The program at a terminal of 80 columns and 24 lines; killed when dropped.
pub(crate) struct AtTerminal {
    child: Child,
    keys: File,
    /// The program's side, held so that the terminal outlives the program.
    held: File,
    before: Termios,
    output: Arc<Mutex<Vec<u8>>>,
}

impl AtTerminal {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::with_log(arguments, None)
    }

    /// The program with a value of `RUST_LOG`.
    pub(crate) fn with_log(arguments: &[&str], log: Option<&str>) -> Self {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
        let side = || File::options().read(true).write(true).open(&name).unwrap();
        let held = side();
        tcsetwinsize(&held, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&held).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(arguments).env_remove("RUST_LOG").env("TERM", "xterm");
        command.envs(log.map(|filter| ("RUST_LOG", filter)));
        let [stdin, stdout, stderr] = [side(), side(), side()].map(Stdio::from);
        let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap();
        let keys = File::from(pty);
        let (mut from, output) = (keys.try_clone().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let into = output.clone();
        std::thread::spawn(move || {
            let mut part = [0; 4_096];
            while let Ok(length @ 1..) = from.read(&mut part) {
                into.lock().unwrap().extend_from_slice(&part[..length]);
            }
        });
        Self { child, keys, held, before, output }
    }

    /// Everything that was written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// The same at any later time, when this is gone.
    pub(crate) fn watched(&self) -> impl Fn() -> String + use<> {
        let output = Arc::clone(&self.output);
        move || String::from_utf8_lossy(&output.lock().unwrap()).into_owned()
    }

    /// Waits until all of these were written. The screen writes words, and moves between them.
    pub(crate) fn until(&self, parts: &[&str]) {
        let begun = Instant::now();
        while !parts.iter().all(|part| self.output().contains(part)) {
            assert!(begun.elapsed() < LIMIT, "{parts:?}: {}", self.end());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last that was written, for messages.
    fn end(&self) -> String {
        let output = self.output();
        let last: String = output.chars().rev().take(1_000).collect();
        last.chars().rev().collect::<String>().escape_debug().to_string()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, after which the terminal has to be as it was. Returns the exit code and what stays on the screen.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "{}", self.end());
            std::thread::sleep(Duration::from_millis(20));
        };
        self.until(&[ENTER, LEAVE]);
        let modes = |termios: &Termios| (termios.input_modes, termios.output_modes, termios.local_modes);
        assert_eq!(modes(&tcgetattr(&self.held).unwrap()), modes(&self.before));
        // A mark behind everything that the program wrote.
        self.held.write_all(b"\x04end").unwrap();
        self.until(&["\x04end"]);
        let output = self.output();
        let (screen, rest) = output.split_once(LEAVE).unwrap();
        assert!(screen.contains(ENTER) && !rest.contains(ENTER), "{}", self.end());
        assert!(output.contains("\u{1b}[?25h"), "the cursor is hidden: {}", self.end());
        (status.code(), rest.trim_end_matches("\x04end").to_owned())
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
