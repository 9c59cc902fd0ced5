//! Path to a serving end: its session over QUIC, datagrams beside it, and the cost of both.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tiderace::{ClientConfig, Connection, Endpoint};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    inbox::{Inbox, lock},
    sample::{Pings, Sample, Shape},
};
use crate::{
    address::any_for,
    meter::{self, Followed, Meter},
    probe::{
        client::Direction,
        port::{Port, is_too_large, now},
        protocol::{self, Answer, ExchangeError, Request, Welcome},
        wire::{HEAD, Kind, Packet, Record, overhead},
    },
};

/// Timeout of an answer, in addition to the time that the request itself takes.
const ANSWER: Duration = Duration::from_secs(10);
/// Timeout of packets that a queue holds.
const DRAIN: Duration = Duration::from_secs(5);

/// The path.
pub(super) struct Path {
    pub(super) endpoint: Endpoint,
    pub(super) config: ClientConfig,
    pub(super) remote: SocketAddr,
    pub(super) name: String,
    pub(super) connection: Connection,
    pub(super) welcome: Welcome,
    port: Arc<Port>,
    inbox: Arc<Inbox>,
    arrivals: watch::Receiver<u32>,
    receiver: JoinHandle<()>,
    next_train: AtomicU8,
    ping_number: AtomicU32,
    /// Bytes of datagrams on the wire in both directions, and of load.
    spent: Arc<AtomicU64>,
    /// The part of them that loads have moved.
    loads: Arc<AtomicU64>,
    /// Figures for those who watch.
    pub(super) meter: Option<Meter>,
    limit: u64,
    is_cut: AtomicBool,
}

impl Path {
    /// Opens the datagrams of a session.
    pub(super) fn open(
        (endpoint, config): (Endpoint, ClientConfig),
        (remote, name): (SocketAddr, String),
        connection: Connection,
        welcome: Welcome,
        limit: u64,
    ) -> std::io::Result<Self> {
        let port = Arc::new(Port::bind(any_for(remote))?);
        let inbox = Arc::new(Inbox { smallest: AtomicU64::new(u64::MAX), ..Inbox::default() });
        let spent = Arc::new(AtomicU64::new(0));
        let (told, arrivals) = watch::channel(0_u32);
        let receiver = tokio::spawn({
            let (port, inbox, spent) = (port.clone(), inbox.clone(), spent.clone());
            let (key, head) = (welcome.udp, overhead(remote.is_ipv4()));
            async move {
                port.receive(|arrived| {
                    let Some(packet) = Packet::read(arrived.bytes).filter(|packet| packet.key == key) else { return };
                    spent.fetch_add(arrived.bytes.len() as u64 + u64::from(head), Ordering::Relaxed);
                    inbox.take(&packet, arrived.at, arrived.ecn);
                    told.send_modify(|count| *count = count.wrapping_add(1));
                })
                .await;
            }
        });
        let (next_train, ping_number) = (AtomicU8::new(1), AtomicU32::new(0));
        let limit = limit.min(welcome.bytes);
        let is_cut = AtomicBool::new(false);
        Ok(Self {
            endpoint,
            config,
            remote,
            name,
            connection,
            welcome,
            port,
            inbox,
            arrivals,
            receiver,
            next_train,
            ping_number,
            spent,
            loads: Arc::default(),
            meter: None,
            limit,
            is_cut,
        })
    }

    /// Bytes used so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Bytes that may still be used.
    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.spent())
    }

    /// Enters bytes that a load has moved.
    pub(super) fn charge_load(&self, bytes: u64) {
        self.loads.fetch_add(bytes, Ordering::Relaxed);
        self.charge(bytes);
    }

    /// Shows the datagrams of both directions as a subject, with their bytes on the wire and the newest round trip.
    pub(super) fn follow_datagrams(&self) -> Option<Followed> {
        let (spent, loads, inbox) = (self.spent.clone(), self.loads.clone(), self.inbox.clone());
        let look = move || {
            let latest = inbox.latest.load(Ordering::Relaxed);
            Some(meter::Sample {
                received: Some(spent.load(Ordering::Relaxed).saturating_sub(loads.load(Ordering::Relaxed))),
                rtt: (latest > 0).then(|| Duration::from_micros(latest)),
                ..meter::Sample::default()
            })
        };
        self.follow("datagrams", look)
    }

    /// Shows a subject to those who watch, until the result is dropped.
    pub(super) fn follow(
        &self,
        name: &str,
        look: impl FnMut() -> Option<meter::Sample> + Send + 'static,
    ) -> Option<Followed> {
        self.meter.as_ref().map(|meter| meter.follow(name.to_owned(), look))
    }

    /// Enters bytes that were moved beside the datagrams.
    pub(super) fn charge(&self, bytes: u64) {
        self.spent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns whether a limit has cut a measurement short.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Bytes of the IP and UDP headers.
    pub(super) fn overhead(&self) -> u32 {
        overhead(self.remote.is_ipv4())
    }

    /// Smallest round trip of a datagram so far; one second before the first.
    pub(super) fn rtt(&self) -> Duration {
        match self.inbox.smallest.load(Ordering::Relaxed) {
            u64::MAX => Duration::from_secs(1),
            micros => Duration::from_micros(micros),
        }
    }

    /// Returns whether an answer to a datagram has arrived, from which the server knows the address of this end.
    pub(super) fn is_answered(&self) -> bool {
        self.inbox.nonce.load(Ordering::Relaxed) != 0
    }

    /// Address for datagrams.
    fn udp(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.welcome.udp_port)
    }

    /// Number for a train that has not been used, unless 255 have.
    fn new_train(&self) -> u8 {
        self.next_train.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request to the server, on a new stream.
    ///
    /// # Errors
    /// When there is no answer in time, or a refusal.
    pub(super) async fn ask(&self, request: &Request, takes: Duration) -> Result<Answer, ExchangeError> {
        let exchange = async {
            let (mut send, mut recv) = self.connection.open_bi().await?;
            protocol::request(&mut send, request).await?;
            let answer = protocol::read(&mut recv).await?;
            match answer {
                Answer::Refused(refusal) => Err(refusal.into()),
                answer => Ok(answer),
            }
        };
        timeout(takes + ANSWER, exchange).await.map_err(|_| ExchangeError::Silence)?
    }

    fn packet(&self, kind: Kind, train: u8, number: u32) -> Packet {
        Packet { key: self.welcome.udp, kind, train, number, sent: now(), nonce: 0 }
    }

    /// Sends one packet. `Ok(false)`: this machine's interface takes none of this size.
    async fn send(&self, packet: Packet, size: usize) -> std::io::Result<bool> {
        let mut bytes = vec![0; size.max(HEAD)];
        packet.write(&mut bytes);
        self.charge(bytes.len() as u64 + u64::from(self.overhead()));
        match self.port.send(self.udp(), None, &bytes, 0).await {
            Ok(()) => Ok(true),
            Err(error) if is_too_large(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends pings of this size, `gap` apart. Returns the answers within twice the slowest round trip so far, and the number sent.
    pub(super) async fn pings(&self, count: u32, gap: Duration, size: usize) -> Pings {
        let train = self.new_train();
        let mut pings = Pings { sent: 0, pongs: Vec::new(), is_too_large: false };
        let begun = Instant::now();
        for number in 0..count {
            tokio::time::sleep_until(begun + gap * number).await;
            match self.send(self.packet(Kind::Ping, train, number), size).await {
                Ok(true) => pings.sent += 1,
                Ok(false) => {
                    pings.is_too_large = true;
                    break;
                }
                // An interface that is down, a full table: the packet is lost to us as on the path.
                Err(_) => pings.sent += 1,
            }
        }
        let patience = (self.rtt() * 2 + Duration::from_millis(100)).max(Duration::from_millis(250));
        let mut arrivals = self.arrivals.clone();
        let all = async {
            while self.inbox.pong_count(train) < pings.sent as usize {
                if arrivals.changed().await.is_err() {
                    break;
                }
            }
        };
        let _ = timeout(patience, all).await;
        pings.pongs = lock(&self.inbox.pongs).remove(&train).unwrap_or_default();
        pings
    }

    /// Waits until a ping gets through that was sent after everything else, and until the queues are empty again.
    pub(super) async fn settle(&self) {
        let until = Instant::now() + DRAIN;
        let (train, normal) = (self.new_train(), self.rtt() * 3 / 2 + Duration::from_millis(20));
        while Instant::now() < until {
            let number = self.ping_number.fetch_add(1, Ordering::Relaxed);
            let _ = self.send(self.packet(Kind::Ping, train, number), HEAD).await;
            sleep(Duration::from_millis(50)).await;
            let is_idle = lock(&self.inbox.pongs)
                .get(&train)
                .is_some_and(|pongs| pongs.iter().any(|pong| Duration::from_micros(pong.rtt) <= normal));
            if is_idle {
                break;
            }
        }
        lock(&self.inbox.pongs).remove(&train);
    }

    /// A train to the server. Without `settles`, what came when a ping behind it is answered.
    ///
    /// # Errors
    /// When the server does not tell what came.
    pub(super) async fn train_up(&self, shape: Shape, settles: bool) -> Result<Sample, ExchangeError> {
        let train = self.new_train();
        let (mut sent, order) = (Vec::new(), shape.order(0, train));
        let head = u64::from(self.overhead());
        let packet = self.packet(Kind::Data, train, 0);
        let may_send = |bytes: u64| {
            let may = self.left() > bytes + head;
            if may {
                self.charge(bytes + head);
            }
            may
        };
        let account = self.port.train(self.udp(), None, packet, order, may_send, |at| sent.push(at)).await;
        self.is_cut.fetch_or(account.is_cut, Ordering::Relaxed);
        if settles {
            self.settle().await;
        } else {
            self.pings(1, Duration::ZERO, HEAD).await;
        }
        let (mut send, mut recv) = self.connection.open_bi().await?;
        protocol::request(&mut send, &Request::Records { train }).await?;
        let records = async {
            match protocol::read(&mut recv).await? {
                Answer::Records { count, dropped } => {
                    Ok((protocol::read_records(&mut recv, count, 2 * sent.len() + 100).await?, dropped))
                }
                Answer::Refused(refusal) => Err(refusal.into()),
                _ => Err(ExchangeError::Protocol),
            }
        };
        let (records, dropped) = timeout(ANSWER * 2, records).await.map_err(|_| ExchangeError::Silence)??;
        self.charge(records.len() as u64 * Record::LEN as u64);
        Ok(Sample::new(shape, head, sent, records, dropped, account.is_too_large))
    }

    /// A train in this direction.
    ///
    /// # Errors
    /// When the server does not do its part.
    pub(super) async fn train(&self, direction: Direction, shape: Shape) -> Result<Sample, ExchangeError> {
        match direction {
            Direction::Up => self.train_up(shape, true).await,
            Direction::Down => self.train_down(shape, true).await,
        }
    }

    /// A train from the server. Without `settles`, what comes within a round trip and a little more.
    ///
    /// # Errors
    /// When the server does not send it.
    pub(super) async fn train_down(&self, shape: Shape, settles: bool) -> Result<Sample, ExchangeError> {
        let train = self.new_train();
        let head = u64::from(self.overhead());
        let to = self.inbox.nonce.load(Ordering::Relaxed);
        let most = self.left() / (u64::from(shape.size) + head);
        let count = shape.count.min(u32::try_from(most).unwrap_or(u32::MAX));
        self.is_cut.fetch_or(count < shape.count, Ordering::Relaxed);
        let shape = Shape { count, ..shape };
        let takes = Duration::from_nanos(shape.gap_ns.saturating_mul(shape.count.into()));
        let account = match self.ask(&Request::Send(shape.order(to, train)), takes + DRAIN).await? {
            Answer::Sent(sent) => sent,
            _ => return Err(ExchangeError::Protocol),
        };
        self.is_cut.fetch_or(account.is_cut, Ordering::Relaxed);
        if settles {
            self.settle().await;
        } else if account.count > 0 {
            let all = async {
                let mut arrivals = self.arrivals.clone();
                while lock(&self.inbox.trains).get(&train).is_none_or(|records| records.len() < account.count as usize)
                {
                    if arrivals.changed().await.is_err() {
                        break;
                    }
                }
            };
            let _ = timeout(self.rtt() + Duration::from_millis(150), all).await;
        }
        let records = lock(&self.inbox.trains).remove(&train).unwrap_or_default();
        // Times of packets that were lost are those of an even rhythm.
        let (count, last) = (account.count.min(shape.count), u64::from(account.count.max(2) - 1));
        let step = |number: u32| (account.last.saturating_sub(account.first)).saturating_mul(number.into()) / last;
        let sent = (0..count).map(|number| account.first.saturating_add(step(number))).collect();
        Ok(Sample::new(shape, head, sent, records, 0, account.is_too_large))
    }

    /// Opens another socket for datagrams of this session, and asks the server for one after a time. Returns whether it arrived.
    ///
    /// # Errors
    /// When the server is not reached at all.
    pub(super) async fn comes_after(&self, silence: Duration) -> Result<bool, ExchangeError> {
        let protocol = |_| ExchangeError::Silence;
        let port = Port::bind(any_for(self.remote)).map_err(protocol)?;
        let (train, key) = (u8::MAX, self.welcome.udp);
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let receive = port.receive(|arrived| {
            if let Some(packet) = Packet::read(arrived.bytes).filter(|packet| packet.key == key) {
                let _ = told.send(packet);
            }
        });
        let work = async {
            let mut nonce = None;
            for _ in 0..5 {
                let mut bytes = [0; HEAD];
                self.packet(Kind::Ping, train, 0).write(&mut bytes);
                port.send(self.udp(), None, &bytes, 0).await.map_err(protocol)?;
                if let Ok(Some(pong)) = timeout(self.rtt() * 2 + Duration::from_millis(200), heard.recv()).await {
                    nonce = Some(pong.nonce);
                    break;
                }
            }
            let to = nonce.ok_or(ExchangeError::Silence)?;
            while heard.try_recv().is_ok() {}
            let after_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
            self.ask(&Request::SendLater { to, train, after_ms }, Duration::ZERO).await?;
            let comes = async { while heard.recv().await.is_some_and(|packet| packet.kind != Kind::Data) {} };
            Ok(timeout(silence + self.rtt() * 2 + Duration::from_secs(1), comes).await.is_ok())
        };
        tokio::select! {
            result = work => result,
            () = receive => Err(ExchangeError::Silence),
        }
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.receiver.abort();
        self.connection.close(0, b"done");
    }
}
