//! Event loop of an emulator's thread: deliver due packets, then wait for the timer, the owner or further packets.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::mpsc,
};

use units::{Duration, Instant};

use crate::{
    lead::{Lead, Wait},
    sys::{self, Poll, Timer},
};

/// Numbers in the poll: the source with number `n` has `SOURCES + n`.
const TIMER: u64 = 0;
const COMMAND: u64 = 1;
const SOURCES: u64 = 2;

/// Owns what the thread waits for.
pub(crate) struct EventLoop<C> {
    poll: Poll,
    timer: Timer,
    lead: Lead,
    commands: mpsc::Receiver<C>,
    wake: UnixStream,
}

impl<C> EventLoop<C> {
    /// Creates a loop that executes `commands`. A byte on `wake` announces a command; the end of `wake` means that the owner was dropped.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn new(commands: mpsc::Receiver<C>, wake: UnixStream) -> io::Result<Self> {
        let (poll, timer) = (Poll::new()?, Timer::new()?);
        poll.add(timer.fd(), TIMER)?;
        poll.add(wake.as_fd(), COMMAND)?;
        Ok(Self { poll, timer, lead: Lead::default(), commands, wake })
    }

    /// Watches a source of packets, which [`Emulator::receive`] gets by this number.
    ///
    /// # Errors
    /// When the system refuses to watch it.
    pub(crate) fn watch(&self, source: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        self.poll.add(source, SOURCES + number)
    }

    /// Takes this delay for that of a wake-up, until wake-ups tell more.
    pub(crate) fn expect_delay(&mut self, delay: Duration) {
        self.lead = Lead::new(delay);
    }

    /// Waits until something is ready, at most until shortly before `due`.
    fn wait(&mut self, due: Option<Instant>) -> io::Result<()> {
        let until = match due.map(|due| self.lead.wait(due, sys::now())) {
            Some(Wait::Awake) => return self.poll.wait(false),
            Some(Wait::Asleep(until)) => Some(until),
            None => None,
        };
        self.timer.arm(until)?;
        self.poll.wait(true)
    }

    /// The timer has fired.
    fn fired(&mut self) {
        if self.timer.fired() {
            self.lead.woken(sys::now());
        }
    }

    /// True once the owner is gone.
    fn is_orphaned(&mut self) -> bool {
        // The bytes mean nothing.
        matches!(self.wake.read(&mut [0; 64]), Ok(0))
    }
}

/// An emulator that a loop runs.
pub(crate) trait Emulator {
    /// Order of the owner.
    type Command;

    /// The loop that runs this emulator.
    fn events(&mut self) -> &mut EventLoop<Self::Command>;

    /// Sends every packet whose time has come.
    fn deliver(&mut self);

    /// Takes the decisions of links whose time has come.
    fn release(&mut self) {}

    /// Time of the next packet or decision.
    fn next_due(&mut self) -> Option<Instant>;

    /// Carries out an order of the owner; true to end.
    fn obey(&mut self, command: Self::Command) -> bool;

    /// Receives packets from a source.
    ///
    /// # Errors
    /// When the source is broken.
    fn receive(&mut self, source: u64) -> io::Result<()>;
}

/// Runs an emulator until its owner ends it or is gone.
///
/// # Errors
/// When the timer, the poll or a source fails.
pub(crate) fn run(emulator: &mut impl Emulator) -> io::Result<()> {
    loop {
        emulator.release();
        emulator.deliver();
        let due = emulator.next_due();
        emulator.events().wait(due)?;
        let mut index = 0;
        while let Some(number) = emulator.events().poll.ready(index) {
            index += 1;
            match number {
                TIMER => emulator.events().fired(),
                COMMAND => {
                    if ends(emulator) {
                        return Ok(());
                    }
                }
                number => emulator.receive(number - SOURCES)?,
            }
            // Packets that are due do not wait for the rest of what has come in.
            emulator.deliver();
        }
    }
}

/// Carries out what the owner wants; true to end.
fn ends(emulator: &mut impl Emulator) -> bool {
    if emulator.events().is_orphaned() {
        return true;
    }
    while let Ok(command) = emulator.events().commands.try_recv() {
        if emulator.obey(command) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for a time that is always a millisecond ahead.
    struct Clockwork {
        events: EventLoop<()>,
        /// End of `wake` at the owner; the loop ends without it.
        owner: Option<UnixStream>,
        due: Instant,
        waited: bool,
        early: bool,
        rounds: u32,
    }

    impl Emulator for Clockwork {
        type Command = ();

        fn events(&mut self) -> &mut EventLoop<()> {
            &mut self.events
        }

        fn deliver(&mut self) {
            let now = sys::now();
            self.early |= self.waited && now < self.due;
            if now >= self.due {
                self.due = now + Duration::from_millis(1);
                self.rounds += 1;
            }
            self.waited = false;
            if self.early || self.rounds == 5_000 {
                self.owner = None;
            }
        }

        fn next_due(&mut self) -> Option<Instant> {
            self.waited = true;
            Some(self.due)
        }

        fn obey(&mut self, (): ()) -> bool {
            true
        }

        fn receive(&mut self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    /// A timer that was set to the time itself never wakes it sooner.
    #[test]
    fn the_thread_is_awake_before_the_time() {
        let (_commands, orders) = mpsc::channel();
        let (owner, wake) = UnixStream::pair().unwrap();
        wake.set_nonblocking(true).unwrap();
        let events = EventLoop::new(orders, wake).unwrap();
        let due = sys::now() + Duration::from_millis(1);
        let mut clockwork = Clockwork { events, owner: Some(owner), due, waited: false, early: false, rounds: 0 };
        run(&mut clockwork).unwrap();
        assert!(clockwork.early, "{} rounds", clockwork.rounds);
    }
}
