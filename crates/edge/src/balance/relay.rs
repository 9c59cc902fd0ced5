//! Bytes of a connection of TCP, both ways between client and machine. What one side closes is closed at the other, and what one side
//! resets is reset there: a half-close is no end, and a reset is no close.
//!
//! An idle connection holds no buffer: what is read into the buffer of the thread is written at once, and only what the other side does
//! not take is kept.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, sleep_until},
};

use super::counters::add;

/// Bytes of one read, which is what a connection holds for a side that takes nothing.
const PIECE: usize = 32 * 1024;
/// Reads before other connections of the thread get their turn.
const READS_PER_TURN: usize = 16;
/// Time in which a client may still send what nobody reads, so that it gets the end of an answer before its connection is gone.
const LINGER: Duration = Duration::from_secs(5);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// Both sides have closed.
    Completed,
    /// The client has reset the connection.
    ClientReset,
    /// The machine has reset the connection.
    MachineReset,
    /// Nothing has moved for the idle limit.
    Idle,
    /// The load balancer ends.
    Cut,
}

/// Side of a connection that has broken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Reader,
    Writer,
}

impl Side {
    fn of(self, reader: RelayEnd, writer: RelayEnd) -> RelayEnd {
        match self {
            Self::Reader => reader,
            Self::Writer => writer,
        }
    }
}

/// Lets a connection end with a reset when it is dropped.
pub(super) fn reset_on_drop(stream: &TcpStream) {
    // A connection that is gone already needs none.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// A connection with its two sides.
pub(super) struct Relay<'a> {
    pub(super) client: &'a TcpStream,
    pub(super) machine: &'a TcpStream,
    pub(super) idle: Duration,
    pub(super) bytes_in: &'a AtomicU64,
    pub(super) bytes_out: &'a AtomicU64,
}

impl Relay<'_> {
    /// Carries bytes until the connection ends, or `cut` is ready. What is to be reset is when its stream is dropped.
    pub(super) async fn carry(&self, cut: impl Future<Output = ()>) -> RelayEnd {
        let moved = Moved::new();
        let (up_ended, down_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let up = async {
            let ended = one_way(self.client, self.machine, self.bytes_in, &moved, &up_ended).await;
            ended.map_err(|side| side.of(RelayEnd::ClientReset, RelayEnd::MachineReset))
        };
        let down = async {
            let ended = one_way(self.machine, self.client, self.bytes_out, &moved, &down_ended).await;
            ended.map_err(|side| side.of(RelayEnd::MachineReset, RelayEnd::ClientReset))
        };
        let both = async { tokio::try_join!(up, down).map_or_else(|end| end, |_| RelayEnd::Completed) };
        let end = tokio::select! {
            biased;
            end = both => end,
            () = is_broken(self.client) => RelayEnd::ClientReset,
            () = is_broken(self.machine) => RelayEnd::MachineReset,
            () = idle(&moved, self.idle) => RelayEnd::Idle,
            () = cut => RelayEnd::Cut,
        };
        match end {
            RelayEnd::Completed => {}
            RelayEnd::ClientReset => reset_on_drop(self.machine),
            // Its answer is complete: a reset would take the end of it from the client.
            RelayEnd::MachineReset if down_ended.load(Ordering::Relaxed) => discard(self.client).await,
            RelayEnd::MachineReset => reset_on_drop(self.client),
            RelayEnd::Idle | RelayEnd::Cut => {
                reset_on_drop(self.client);
                reset_on_drop(self.machine);
            }
        }
        end
    }
}

/// Time at which a byte has moved last.
struct Moved {
    begun: Instant,
    /// Since the beginning, in milliseconds.
    last: AtomicU64,
}

impl Moved {
    fn new() -> Self {
        Self { begun: Instant::now(), last: AtomicU64::new(0) }
    }

    fn note(&self) {
        let since = self.begun.elapsed().as_millis();
        self.last.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// Carries bytes until `from` has closed, and closes `to` then.
async fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    bytes: &AtomicU64,
    moved: &Moved,
    has_ended: &AtomicBool,
) -> Result<(), Side> {
    for read in 1_usize.. {
        from.readable().await.map_err(|_| Side::Reader)?;
        let Some((taken, rest)) = piece(from, to)? else { break };
        add(bytes, (taken + rest.len()) as u64);
        if taken + rest.len() > 0 {
            moved.note();
        }
        write_all(to, &rest, moved).await?;
        if read % READS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    SockRef::from(to).shutdown(std::net::Shutdown::Write).map_err(|_| Side::Writer)?;
    moved.note();
    has_ended.store(true, Ordering::Relaxed);
    Ok(())
}

/// Reads once, and writes what `to` takes: how much that is, and the rest. `None` at the end.
fn piece(from: &TcpStream, to: &TcpStream) -> Result<Option<(usize, Vec<u8>)>, Side> {
    BUFFER.with_borrow_mut(|buffer| {
        let len = match from.try_read(buffer) {
            Ok(0) => return Ok(None),
            Ok(len) => len,
            Err(error) if is_later(&error) => return Ok(Some((0, Vec::new()))),
            Err(_) => return Err(Side::Reader),
        };
        let taken = match to.try_write(&buffer[..len]) {
            Ok(taken) => taken,
            Err(error) if is_later(&error) => 0,
            Err(_) => return Err(Side::Writer),
        };
        Ok(Some((taken, buffer[taken..len].to_vec())))
    })
}

async fn write_all(to: &TcpStream, mut rest: &[u8], moved: &Moved) -> Result<(), Side> {
    while !rest.is_empty() {
        to.writable().await.map_err(|_| Side::Writer)?;
        match to.try_write(rest) {
            Ok(taken) => {
                rest = &rest[taken..];
                moved.note();
            }
            Err(error) if is_later(&error) => {}
            Err(_) => return Err(Side::Writer),
        }
    }
    Ok(())
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until a connection is reset, also while nobody reads from it.
async fn is_broken(stream: &TcpStream) {
    // Without a reactor nothing of the connection comes any more.
    let _ = stream.ready(Interest::ERROR).await;
}

/// Waits until nothing has moved for the limit.
async fn idle(moved: &Moved, limit: Duration) {
    loop {
        let due = moved.last() + limit;
        if Instant::now() >= due {
            return;
        }
        sleep_until(due).await;
    }
}

/// Reads and drops what a client still sends, until it closes.
async fn discard(client: &TcpStream) {
    let reading = async {
        while client.readable().await.is_ok() {
            let read = BUFFER.with_borrow_mut(|buffer| client.try_read(buffer));
            match read {
                Ok(len) if len > 0 => tokio::task::yield_now().await,
                Err(error) if is_later(&error) => {}
                _ => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, reading).await;
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Client and machine with a relay between them; what the relay said of the end, and the bytes up and down.
    async fn relayed<F: Future<Output = ()>>(
        idle: Duration,
        ends: impl FnOnce(TcpStream, TcpStream) -> F,
    ) -> (RelayEnd, u64, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pair = async || {
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (near, listener.accept().await.unwrap().0)
        };
        let ((client, client_side), (machine_side, machine)) = (pair().await, pair().await);
        let (bytes_in, bytes_out) = (AtomicU64::new(0), AtomicU64::new(0));
        let carrying = async {
            let (client, machine) = (client_side, machine_side);
            let (bytes_in, bytes_out) = (&bytes_in, &bytes_out);
            let relay = Relay { client: &client, machine: &machine, idle, bytes_in, bytes_out };
            relay.carry(std::future::pending()).await
        };
        let (end, ()) = tokio::join!(carrying, ends(client, machine));
        (end, bytes_in.into_inner(), bytes_out.into_inner())
    }

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_half_close_ends_one_direction_and_both_end_the_connection() {
        let (end, up, down) = relayed(LONG, async |mut client, mut machine| {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut all = Vec::new();
            machine.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"question");
            machine.write_all(&[7; 3_000_000]).await.unwrap();
            let mut got = vec![0; 3_000_000 / 2];
            client.read_exact(&mut got).await.unwrap();
            machine.shutdown().await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest.len(), 3_000_000 / 2);
        })
        .await;
        assert_eq!((end, up, down), (RelayEnd::Completed, 8, 3_000_000));
    }

    #[tokio::test]
    async fn a_reset_is_a_reset_at_the_other_side_also_after_a_half_close() {
        for closes_before in [false, true] {
            let (end, ..) = relayed(LONG, async |mut client, mut machine| {
                if closes_before {
                    client.shutdown().await.unwrap();
                    assert_eq!(machine.read(&mut [0; 8]).await.unwrap(), 0);
                }
                reset_on_drop(&client);
                drop(client);
                let error = machine.read_u8().await.map(drop).unwrap_err();
                if !closes_before {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                }
            })
            .await;
            assert_eq!(end, RelayEnd::ClientReset, "{closes_before}");
            let (end, ..) = relayed(LONG, async |mut client, mut machine| {
                if closes_before {
                    client.shutdown().await.unwrap();
                    assert_eq!(machine.read(&mut [0; 8]).await.unwrap(), 0);
                }
                reset_on_drop(&machine);
                drop(machine);
                assert_eq!(client.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            })
            .await;
            assert_eq!(end, RelayEnd::MachineReset, "{closes_before}");
        }
    }

    #[tokio::test]
    async fn the_end_of_an_answer_reaches_a_client_that_sends_on() {
        let (end, _, down) = relayed(LONG, async |mut client, mut machine| {
            client.write_all(b"begin").await.unwrap();
            machine.read_exact(&mut [0; 5]).await.unwrap();
            machine.write_all(b"refused").await.unwrap();
            // With all of it read, this closes without a reset; what comes later is answered by one.
            drop(machine);
            while client.write_all(&[1; 10_000]).await.is_ok() && client.readable().await.is_err() {}
            let mut got = [0; 7];
            client.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"refused");
            assert_eq!(client.read(&mut got).await.unwrap(), 0, "closed, and not reset");
        })
        .await;
        assert!(matches!(end, RelayEnd::MachineReset | RelayEnd::Completed), "{end:?}");
        assert_eq!(down, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_traffic_ends_and_one_with_a_little_does_not() {
        let begun = Instant::now();
        let (end, up, _) = relayed(Duration::from_secs(30), async |mut client, mut machine| {
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(25)).await;
                client.write_all(b"x").await.unwrap();
                machine.read_exact(&mut [0]).await.unwrap();
            }
            assert!(machine.read_u8().await.is_err());
        })
        .await;
        assert_eq!((end, up), (RelayEnd::Idle, 4));
        assert!(begun.elapsed() >= Duration::from_secs(130));
    }
}
