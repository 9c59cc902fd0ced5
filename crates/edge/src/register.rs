//! Strike register of early data, in a Redis that all gateways share.
//!
//! Separate threads query it, so that neither data nor other handshakes wait: a handshake is pending until its answer arrives. Without an
//! answer in time the register counts as full: early data is refused, and nothing else is lost.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use tiderace::transport::ring::{Strike, StrikeId, StrikeRegister};

/// The register has to answer within this time, or early data is refused: the handshake continues without.
const PATIENCE: Duration = Duration::from_millis(500);
/// After a failure the register is left alone for this long, so that handshakes do not wait for one that is away.
const PAUSE: Duration = Duration::from_secs(1);
/// Threads for queries, each with a connection.
const THREADS: usize = 16;
/// Questions that wait for a thread.
const QUESTIONS: usize = 1_024;
/// Copies of one first flight that may wait for the same answer.
const COPIES: usize = 8;
/// Time after which an unread answer belongs to an abandoned handshake.
const FORGOTTEN: Duration = Duration::from_secs(30);

struct Question {
    id: StrikeId,
    /// For how long the register has to remember the ID.
    seconds: u64,
}

/// A question that was put, until its answer is taken.
struct Open {
    wakers: Vec<Waker>,
    answer: Option<Strike>,
    since: Instant,
}

#[derive(Default)]
struct State {
    open: HashMap<StrikeId, Open>,
    /// End of a pause in which the register is not asked.
    pause: Option<Instant>,
    threads: usize,
    /// Threads that wait for a question.
    idle: usize,
}

struct Shared {
    client: redis::Client,
    patience: Duration,
    state: Mutex<State>,
    questions: Mutex<mpsc::Receiver<Question>>,
}

/// The register.
pub(crate) struct RedisRegister {
    shared: Arc<Shared>,
    ask: mpsc::SyncSender<Question>,
}

impl RedisRegister {
    /// A register at the address of `client`. Sends no query.
    pub(crate) fn new(client: redis::Client) -> Self {
        Self::with_patience(client, PATIENCE)
    }

    fn with_patience(client: redis::Client, patience: Duration) -> Self {
        let (ask, questions) = mpsc::sync_channel(QUESTIONS);
        let shared = Shared { client, patience, state: Mutex::default(), questions: Mutex::new(questions) };
        Self { shared: Arc::new(shared), ask }
    }
}

impl StrikeRegister for RedisRegister {
    fn strike(&self, id: &StrikeId, now: u64, expires: u64, waker: &Waker) -> Strike {
        let mut state = self.shared.lock();
        if let Some(open) = state.open.get_mut(id) {
            // Of several that show the same ticket one takes the answer; the others ask again, and hear that it was used.
            return match open.answer {
                Some(answer) => {
                    state.open.remove(id);
                    answer
                }
                None if open.wakers.iter().any(|other| other.will_wake(waker)) => Strike::Pending,
                None if open.wakers.len() < COPIES => {
                    open.wakers.push(waker.clone());
                    Strike::Pending
                }
                None => Strike::Full,
            };
        }
        let clock = Instant::now();
        if state.pause.is_some_and(|until| clock < until) {
            return Strike::Full;
        }
        if state.open.len() >= QUESTIONS {
            state.open.retain(|_, open| clock.duration_since(open.since) < FORGOTTEN);
        }
        // Its clock counts from its own now, and a second is lost to rounding.
        let question = Question { id: *id, seconds: expires.saturating_sub(now) + 1 };
        if state.open.len() >= 2 * QUESTIONS || self.ask.try_send(question).is_err() {
            return Strike::Full;
        }
        state.open.insert(*id, Open { wakers: vec![waker.clone()], answer: None, since: clock });
        if state.idle == 0 && state.threads < THREADS {
            let shared = self.shared.clone();
            let named = thread::Builder::new().name("tiderace-register".to_owned());
            match named.spawn(move || shared.ask_all()) {
                Ok(_) => state.threads += 1,
                Err(error) => tracing::error!("no thread asks the register of early data: {error}"),
            }
        }
        Strike::Pending
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one question after the other, until the register is not in use any more.
    fn ask_all(&self) {
        let mut kept = None;
        loop {
            self.lock().idle += 1;
            let question = self.questions.lock().unwrap_or_else(PoisonError::into_inner).recv();
            self.lock().idle -= 1;
            let Ok(question) = question else { return };
            let answer = self.answer(&question, &mut kept);
            let wakers = match self.lock().open.get_mut(&question.id) {
                Some(open) => {
                    open.answer = Some(answer);
                    std::mem::take(&mut open.wakers)
                }
                None => Vec::new(),
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn answer(&self, question: &Question, kept: &mut Option<redis::Connection>) -> Strike {
        // Those who wait in line are not to wait once more for one that is away.
        if self.lock().pause.is_some_and(|until| Instant::now() < until) {
            return Strike::Full;
        }
        // A connection that was kept may have been closed by the other side: once more, with a new one.
        let was_kept = kept.is_some();
        let asked = self.ask(question, kept).or_else(|error| {
            if !was_kept || !error.is_connection_dropped() && !error.is_io_error() || error.is_timeout() {
                return Err(error);
            }
            self.ask(question, kept)
        });
        asked.unwrap_or_else(|error| {
            tracing::warn!("the register of early data gives no answer, and early data is refused: {error}");
            self.lock().pause = Some(Instant::now() + PAUSE);
            Strike::Full
        })
    }

    /// Asks with the connection that was kept, or a new one, which is kept unless it fails.
    fn ask(&self, question: &Question, kept: &mut Option<redis::Connection>) -> redis::RedisResult<Strike> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let connection = self.client.get_connection_with_timeout(self.patience)?;
                connection.set_read_timeout(Some(self.patience))?;
                connection.set_write_timeout(Some(self.patience))?;
                connection
            }
        };
        let mut key = b"tiderace:0rtt:".to_vec();
        question.id.iter().for_each(|byte| key.extend_from_slice(format!("{byte:02x}").as_bytes()));
        // One command, so that of two that ask at the same time one is the first.
        let set: Option<String> =
            redis::cmd("SET").arg(key).arg(1).arg("NX").arg("EX").arg(question.seconds).query(&mut connection)?;
        *kept = Some(connection);
        Ok(if set.is_some() { Strike::First } else { Strike::Again })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::{TcpListener, TcpStream},
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    /// Waker that signals the test.
    struct Told(mpsc::Sender<()>);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    fn waker() -> (Waker, mpsc::Receiver<()>) {
        let (tell, told) = mpsc::channel();
        (Arc::new(Told(tell)).into(), told)
    }

    /// The answer, however long it takes.
    fn strike(register: &RedisRegister, id: u8) -> Strike {
        let (waker, told) = waker();
        loop {
            match register.strike(&[id; 16], 100, 110, &waker) {
                Strike::Pending => told.recv().unwrap(),
                answer => return answer,
            }
        }
    }

    fn at(address: impl std::fmt::Display) -> RedisRegister {
        let client = redis::Client::open(format!("redis://{address}/")).unwrap();
        RedisRegister::with_patience(client, Duration::from_secs(600))
    }

    /// Server with the part of Redis that is used: the first to set a key learns that it was. Answers when the test lets it.
    fn redis(listener: TcpListener, known: Keys, gate: Gate) {
        for stream in listener.incoming() {
            let (stream, known, gate) = (stream.unwrap(), known.clone(), gate.clone());
            thread::spawn(move || serve(&stream, &known, &gate));
        }
    }

    fn serve(mut stream: &TcpStream, known: &Mutex<Vec<String>>, gate: &Mutex<()>) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            // An array of strings, each with its length before it.
            let count: usize = lines.next()?.ok()?.strip_prefix('*')?.parse().ok()?;
            let words: Vec<String> = (0..count).map(|_| lines.by_ref().nth(1).unwrap().unwrap()).collect();
            let answer = if words[0] == "SET" {
                let _open = gate.lock().unwrap();
                let mut known = known.lock().unwrap();
                let first = !known.contains(&words[1]);
                known.push(words[1].clone());
                if first { "+OK\r\n" } else { "$-1\r\n" }
            } else {
                "+OK\r\n"
            };
            stream.write_all(answer.as_bytes()).ok()?;
        }
    }

    type Keys = Arc<Mutex<Vec<String>>>;
    type Gate = Arc<Mutex<()>>;

    fn start() -> (RedisRegister, Keys, Gate) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let register = at(listener.local_addr().unwrap());
        let (known, gate): (Keys, Gate) = Default::default();
        let (keys, holds) = (known.clone(), gate.clone());
        thread::spawn(move || redis(listener, keys, holds));
        (register, known, gate)
    }

    #[test]
    fn one_of_many_copies_is_the_first() {
        let (register, known, gate) = start();
        assert_eq!(
            [strike(&register, 1), strike(&register, 1), strike(&register, 2)],
            [Strike::First, Strike::Again, Strike::First]
        );
        // Many at a time, all before the answer: some may be one too many to wait.
        let closed = gate.lock().unwrap();
        let first = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 * COPIES {
                scope.spawn(|| first.fetch_add((strike(&register, 3) == Strike::First).into(), Ordering::SeqCst));
            }
            drop(closed);
        });
        assert_eq!(first.into_inner(), 1);
        assert!(known.lock().unwrap()[0].starts_with("tiderace:0rtt:0101"));
        let state = register.shared.lock();
        assert!(state.open.is_empty() && state.threads <= THREADS, "{}", state.open.len());
    }

    #[test]
    fn questions_are_asked_side_by_side() {
        let (register, _, gate) = start();
        let closed = gate.lock().unwrap();
        let (waker, told) = waker();
        for id in 0..10 {
            assert_eq!(register.strike(&[id; 16], 100, 110, &waker), Strike::Pending, "nobody is kept waiting");
        }
        drop(closed);
        for _ in 0..10 {
            told.recv().unwrap();
        }
        for id in 0..10 {
            assert_eq!(register.strike(&[id; 16], 100, 110, &waker), Strike::First);
        }
    }

    #[test]
    fn one_that_is_away_refuses_early_data() {
        // Nobody listens there.
        let register = at("127.0.0.1:1");
        assert_eq!(strike(&register, 1), Strike::Full);
        // And for a while nobody asks: no thread is begun for those who come now.
        let threads = register.shared.lock().threads;
        register.shared.lock().pause = Some(Instant::now() + Duration::from_secs(600));
        for id in 0..100 {
            assert_eq!(register.strike(&[id; 16], 100, 110, Waker::noop()), Strike::Full);
        }
        let state = register.shared.lock();
        assert_eq!((state.open.len(), state.threads), (0, threads));
    }

    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let register = at("127.0.0.1:1");
        let mut refused = 0;
        for id in 0..10_000_u32 {
            let mut name = [0; 16];
            name[..4].copy_from_slice(&id.to_be_bytes());
            register.shared.lock().pause = None;
            refused += usize::from(register.strike(&name, 100, 110, Waker::noop()) == Strike::Full);
        }
        assert!(refused > 0 && register.shared.lock().open.len() <= 2 * QUESTIONS);
    }
}
