//! State of the terminal: raw mode and the alternate screen, and the way back on every end of the program.

use std::{
    io::{self, IsTerminal, Stdout, Write},
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use ratatui::{
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

use super::{draw::draw, view::View};
use crate::logging;

/// Set while the terminal is not as it was found.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Returns whether a screen is shown: other output would damage it.
pub(crate) fn is_shown() -> bool {
    SHOWN.load(Ordering::Relaxed)
}

/// Restores the terminal, if a screen is shown. For ends that run no destructors; otherwise [`Terminal`] does it.
pub(crate) fn leave() {
    if SHOWN.swap(false, Ordering::Relaxed) {
        // Nobody is left to tell about a terminal that has gone away.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        logging::release();
    }
}

/// Returns whether there is a terminal to draw on and to read keys from.
pub(super) fn is_usable() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

/// The terminal while a screen is shown.
pub(super) struct Terminal(ratatui::Terminal<CrosstermBackend<Stdout>>);

impl Terminal {
    /// Enters raw mode and the alternate screen.
    pub(super) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                // The message is for the screen that stays.
                leave();
                before(info);
            }));
        });
        io::stdout().flush()?;
        enable_raw_mode()?;
        SHOWN.store(true, Ordering::Relaxed);
        logging::hold();
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(io::stdout())));
        entered.map(Self).inspect_err(|_| leave())
    }

    /// Draws, unless the terminal has been restored in the meantime. Takes the present size.
    pub(super) fn draw(&mut self, view: &View) -> io::Result<()> {
        if is_shown() {
            self.0.draw(|frame| draw(frame, view))?;
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        fs::File,
        io::Read,
        process::{Command, Stdio},
    };

    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{Termios, tcgetattr},
    };

    use super::*;

    /// Run by the tests below, in a process whose terminal they watch.
    #[test]
    #[ignore = "run by `the_terminal_is_restored_on_every_end`, on a terminal of its own"]
    fn enters_and_ends() {
        let how = std::env::var("SCREEN_ENDS").unwrap();
        let terminal = Terminal::enter().unwrap();
        assert!(is_shown());
        match how.as_str() {
            "panic" => panic!("a defect"),
            "exit" => {
                leave();
                std::process::exit(0);
            }
            _ => drop(terminal),
        }
    }

    fn modes(termios: &Termios) -> impl PartialEq + std::fmt::Debug + use<> {
        (termios.input_modes, termios.output_modes, termios.local_modes)
    }

    /// Output of a process that enters and ends, if its terminal is as it was before.
    fn ended(how: &str) -> String {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
        let side = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        // Held, so that the terminal outlives the process.
        let held = File::options().read(true).write(true).open(&name).unwrap();
        let before = tcgetattr(&held).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "screen::terminal::tests::enters_and_ends", "--ignored", "--nocapture"]);
        command.env("SCREEN_ENDS", how).env("TERM", "xterm").env_remove("RUST_BACKTRACE");
        let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        // Less is written than a terminal holds.
        child.wait().unwrap();
        drop(command);
        assert_eq!(modes(&tcgetattr(&held).unwrap()), modes(&before), "{how}");
        drop(held);
        let (mut output, mut master) = (Vec::new(), File::from(pty));
        // Without another end, reading ends with an error.
        let _ = master.read_to_end(&mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn the_terminal_is_restored_on_every_end() {
        for how in ["drop", "exit", "panic"] {
            let output = ended(how);
            let entered = output.find("\u{1b}[?1049h").unwrap_or_else(|| panic!("{how}: {output:?}"));
            let left = output.find("\u{1b}[?1049l").unwrap_or_else(|| panic!("{how}: {output:?}"));
            assert!(entered < left && output.contains("\u{1b}[?25h"), "{how}: {output:?}");
            // The message stands on the screen that stays.
            if how == "panic" {
                assert!(output.find("a defect").is_some_and(|message| message > left), "{output:?}");
            }
        }
    }
}
