//! Script of a session: streams, datagrams and closes of the client and of the server, over any stack.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::contract::{CLOSE_OF_CLIENT, CLOSE_OF_SERVER, Close, DATAGRAMS, Kind, Report, STREAMS, content, datagram};

/// Time within which all of a session ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Datagrams that have not come back and are not given up, at most.
const DATAGRAMS_IN_FLIGHT: usize = 32;
/// A datagram that has not come back by then is sent again.
const DATAGRAM_IS_LATE: Duration = Duration::from_secs(1);

/// A session of some stack.
pub trait Session: Clone + Send + Sync + 'static {
    /// Sending half of a stream.
    type Send: Send + 'static;
    /// Receiving half of a stream.
    type Recv: Send + 'static;

    /// Opens a bidirectional stream.
    fn open_bi(&self) -> impl Future<Output = Result<(Self::Send, Self::Recv)>> + Send;
    /// Opens a unidirectional stream.
    fn open_uni(&self) -> impl Future<Output = Result<Self::Send>> + Send;
    /// Waits for a bidirectional stream of the peer.
    fn accept_bi(&self) -> impl Future<Output = Result<(Self::Send, Self::Recv)>> + Send;
    /// Waits for a unidirectional stream of the peer.
    fn accept_uni(&self) -> impl Future<Output = Result<Self::Recv>> + Send;
    /// Sends all of `data`, and the end of the stream.
    fn send(stream: Self::Send, data: Vec<u8>) -> impl Future<Output = Result<()>> + Send;
    /// Reads a stream to its end.
    fn read(stream: Self::Recv) -> impl Future<Output = Result<Vec<u8>>> + Send;
    /// Sends a datagram, if there is room.
    fn send_datagram(&self, payload: &[u8]) -> Result<()>;
    /// Waits for a datagram.
    fn read_datagram(&self) -> impl Future<Output = Result<Vec<u8>>> + Send;
    /// Closes the session.
    fn close(&self, code: u32, reason: &str);
    /// Waits for the end of the session.
    fn closed(&self) -> impl Future<Output = Close> + Send;
    /// The variant of the protocol, where the stack says it.
    fn draft(&self) -> Option<String>;
    /// The application protocol that was agreed on.
    fn protocol(&self) -> Option<String>;
}

/// Streams and datagrams that have come in a session.
#[derive(Default)]
struct Tally {
    report: Mutex<(Report, BTreeSet<(u8, u32)>)>,
    changed: Notify,
}

impl Tally {
    /// Compares what came on a stream with what had to come, and returns the number of the stream.
    fn check(&self, kind: Kind, got: &[u8]) -> Result<u32> {
        let [first, rest @ ..] = got else { bail!("an empty stream came, not {kind:?}") };
        ensure!(*first == kind as u8, "a stream of kind {first} came, not {kind:?}");
        let index = rest.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).context("a stream without a number")?;
        ensure!(index < STREAMS, "there is no stream {index} of {kind:?}");
        let wanted = content(kind, index);
        ensure!(got.len() == wanted.len(), "{kind:?} {index} has {} bytes, not {}", got.len(), wanted.len());
        let differs = got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
        ensure!(differs.is_none(), "{kind:?} {index} differs at {differs:?}");
        let (report, seen) = &mut *self.report.lock().expect("no panic");
        ensure!(seen.insert((kind as u8, index)), "{kind:?} {index} came twice");
        report.streams += 1;
        report.bytes += got.len() as u64;
        self.changed.notify_waiters();
        Ok(index)
    }

    fn note<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let (report, _) = &mut *self.report.lock().expect("no panic");
                report.error.get_or_insert_with(|| format!("{error:#}"));
                self.changed.notify_waiters();
                None
            }
        }
    }

    /// Waits until this many directions have come, or something is wrong.
    async fn reaches(&self, streams: u32) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let (report, _) = &*self.report.lock().expect("no panic");
                if report.error.is_some() || report.streams >= streams {
                    return report.error.is_none();
                }
            }
            changed.await;
        }
    }

    fn into_report(self: Arc<Self>, path: &str, close: Close, session: &impl Session) -> Report {
        let report = std::mem::take(&mut self.report.lock().expect("no panic").0);
        Report { path: path.to_owned(), close, draft: session.draft(), protocol: session.protocol(), ..report }
    }
}

/// Opens all streams of one end, and checks the answers on bidirectional ones.
fn open_all<S: Session>(session: &S, tally: &Arc<Tally>, [ask, answer, one_way]: [Kind; 3]) {
    for index in 0..STREAMS {
        let (its, counts) = (session.clone(), tally.clone());
        tokio::spawn(async move {
            let both = async {
                let (send, recv) = its.open_bi().await?;
                let (sent, got) = tokio::join!(S::send(send, content(ask, index)), S::read(recv));
                sent?;
                ensure!(counts.check(answer, &got?)? == index, "the answer of another stream than {index}");
                anyhow::Ok(())
            };
            counts.note(both.await.with_context(|| format!("{ask:?} {index}")));
        });
        let (its, counts) = (session.clone(), tally.clone());
        tokio::spawn(async move {
            let send = async { S::send(its.open_uni().await?, content(one_way, index)).await };
            counts.note(send.await.with_context(|| format!("{one_way:?} {index}")));
        });
    }
}

/// Answers on bidirectional streams of the peer, until the session is over.
async fn answer_all<S: Session>(session: S, tally: Arc<Tally>, ask: Kind, answer: Kind) {
    while let Ok((send, recv)) = session.accept_bi().await {
        let tally = tally.clone();
        tokio::spawn(async move {
            let both = async { S::send(send, content(answer, tally.check(ask, &S::read(recv).await?)?)).await };
            tally.note(both.await.with_context(|| format!("a stream of {ask:?}")));
        });
    }
}

/// Reads unidirectional streams of the peer, until the session is over; one of kind `special` is told.
async fn read_all<S: Session>(session: S, tally: Arc<Tally>, one_way: Kind, special: Kind) -> Arc<Semaphore> {
    let came = Arc::new(Semaphore::new(0));
    let told = came.clone();
    tokio::spawn(async move {
        while let Ok(recv) = session.accept_uni().await {
            let (tally, told) = (tally.clone(), told.clone());
            tokio::spawn(async move {
                let read = async {
                    let got = S::read(recv).await?;
                    if got == content(special, 0) {
                        told.add_permits(1);
                        return Ok(());
                    }
                    tally.check(one_way, &got).map(drop)
                };
                tally.note(read.await.with_context(|| format!("a stream of {one_way:?}")));
            });
        }
    });
    came
}

/// Serves a session to its end, and returns what came.
pub async fn serve<S: Session>(session: S, path: &str) -> Report {
    let tally = Arc::new(Tally::default());
    let please = read_all(session.clone(), tally.clone(), Kind::Up, Kind::PleaseClose).await;
    let its = session.clone();
    tokio::spawn(async move {
        if please.acquire().await.is_ok() {
            let (code, reason) = CLOSE_OF_SERVER;
            its.close(code, reason);
        }
    });
    if path.ends_with(crate::contract::STREAMS_PATH) {
        tokio::spawn(answer_all(session.clone(), tally.clone(), Kind::Ask, Kind::Answer));
        open_all(&session, &tally, [Kind::ServerAsk, Kind::ClientAnswer, Kind::Down]);
        let (its, counts) = (session.clone(), tally.clone());
        tokio::spawn(async move {
            if counts.reaches(3 * STREAMS).await {
                let complete = async { S::send(its.open_uni().await?, content(Kind::Complete, 0)).await };
                counts.note(complete.await.context("the last stream"));
            }
        });
        let (its, counts) = (session.clone(), tally.clone());
        tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            while let Ok(payload) = its.read_datagram().await {
                // One that finds no room is lost, as on the way.
                let _ = its.send_datagram(&payload);
                counts.note(check_datagram(&payload, &mut seen));
                counts.report.lock().expect("no panic").0.datagrams = seen.len() as u32;
            }
        });
    }
    let close = match tokio::time::timeout(PATIENCE, session.closed()).await {
        Ok(close) => close,
        Err(_) => Close { how: "the session does not end".to_owned(), ..Close::default() },
    };
    tally.into_report(path, close, &session)
}

fn check_datagram(payload: &[u8], seen: &mut BTreeSet<u32>) -> Result<u32> {
    let index = payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).context("a datagram without a number")?;
    ensure!(index < DATAGRAMS && payload == datagram(index), "datagram {index} has other bytes");
    seen.insert(index);
    Ok(index)
}

/// Sends datagrams until all have come back; returns how many were sent again.
async fn exchange_datagrams<S: Session>(session: &S, tally: &Tally) -> Result<u32> {
    let (mut seen, mut resent) = (BTreeSet::new(), 0);
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let its = session.clone();
    let reader = tokio::spawn(async move {
        while let Ok(payload) = its.read_datagram().await {
            if arrived.send(payload).is_err() {
                break;
            }
        }
    });
    let mut next = 0;
    let mut in_flight: BTreeSet<u32> = BTreeSet::new();
    while seen.len() < DATAGRAMS as usize {
        while in_flight.len() < DATAGRAMS_IN_FLIGHT && next < DATAGRAMS {
            session.send_datagram(&datagram(next)).with_context(|| format!("datagram {next}"))?;
            in_flight.insert(next);
            next += 1;
        }
        match tokio::time::timeout(DATAGRAM_IS_LATE, arrivals.recv()).await {
            Ok(Some(payload)) => {
                in_flight.remove(&check_datagram(&payload, &mut seen)?);
            }
            Ok(None) => bail!("the session ended after {} datagrams", seen.len()),
            Err(_) => {
                for &index in &in_flight {
                    session.send_datagram(&datagram(index))?;
                    resent += 1;
                }
            }
        }
        tally.report.lock().expect("no panic").0.datagrams = seen.len() as u32;
    }
    reader.abort();
    Ok(resent)
}

/// Plays the client of the session that carries everything, closes it, and returns what came.
pub async fn request<S: Session>(session: S, path: &str) -> Report {
    let tally = Arc::new(Tally::default());
    let complete = read_all(session.clone(), tally.clone(), Kind::Down, Kind::Complete).await;
    tokio::spawn(answer_all(session.clone(), tally.clone(), Kind::ServerAsk, Kind::ClientAnswer));
    open_all(&session, &tally, [Kind::Ask, Kind::Answer, Kind::Up]);
    let all = async {
        let (datagrams, streams) = tokio::join!(exchange_datagrams(&session, &tally), tally.reaches(3 * STREAMS));
        if let Some(resent) = tally.note(datagrams) {
            tally.report.lock().expect("no panic").0.resent = resent;
        }
        if streams {
            let _ = complete.acquire().await;
        }
    };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        tally.note(Err::<(), _>(anyhow::anyhow!("not all has come, or the server does not say that it has all")));
    }
    let (code, reason) = CLOSE_OF_CLIENT;
    session.close(code, reason);
    let close = Close { code: Some(code), reason: reason.to_owned(), how: "closed here".to_owned() };
    tally.into_report(path, close, &session)
}

/// Plays the client of the session that the server closes.
pub async fn request_close<S: Session>(session: S, path: &str) -> Report {
    let tally = Arc::new(Tally::default());
    let asked = async { S::send(session.open_uni().await?, content(Kind::PleaseClose, 0)).await };
    let (asked, close) = tokio::join!(asked, tokio::time::timeout(PATIENCE, session.closed()));
    // A close may overtake the acknowledgement of the stream that asked for it.
    let close = match close {
        Ok(close) => close,
        Err(_) => {
            tally.note(asked);
            Close { how: "the session does not end".to_owned(), ..Close::default() }
        }
    };
    tally.into_report(path, close, &session)
}
