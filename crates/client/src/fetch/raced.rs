//! Outcome of a race: the connection that is used, and the verdict on QUIC, which follows later.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use units::Instant;

use super::{Client, FetchError, Inner, Live, Route, gone, setup::Target};
use crate::{
    dial::{self, Dial, DialContext},
    link::{Job, Link, Quic},
    memory::Network,
    race::{Leg, Verdict},
    resolve::Offer,
};

/// Connection that a race opened.
pub(super) struct Raced {
    /// The race, which continues until its verdict.
    pub(super) dial: Dial,
    pub(super) link: Link,
    /// Answer to the request that left as early data.
    pub(super) answer: Option<dial::Answer>,
    pub(super) evidence: Evidence,
    pub(super) offer: Option<Offer>,
}

/// Facts of a race that its verdict is recorded with.
pub(super) struct Evidence {
    pub(super) network: Network,
    /// First address of TCP.
    remote: Option<SocketAddr>,
    /// QUIC used an alternative of `alt-svc`.
    by_alternative: bool,
    /// QUIC was connected before: the race has measured the answer and no handshake.
    was_there: bool,
}

impl Client {
    /// Races until a leg is to be used, and begins HTTP on it.
    pub(super) async fn connect(
        &self,
        target: &Target,
        route: &Route,
        job: &mut Job,
        live: Option<Live>,
    ) -> Result<Raced, FetchError> {
        let (inner, was_there) = (&self.inner, live.is_some());
        let setup = self.setup(target, route, was_there).await?;
        let remote = setup.to.tcp.first().copied();
        let means = DialContext {
            started: inner.started,
            quic: inner.quic.clone(),
            tcp: inner.tcp.clone(),
            tcp_observer: inner.tcp_observer.clone(),
            closing: inner.closing.clone(),
            memory: inner.budget.clone(),
            packets: inner.packets.clone(),
            tcp_allowed: route.only != Some(Leg::Quic),
        };
        let mut dial = match live {
            Some(live) => Dial::beside(means, setup.to, setup.plan, live.pending),
            None => {
                let early = job.is_repeatable().then(|| job.request());
                Dial::new(means, setup.to, setup.plan, early)
            }
        };
        let (link, answer) = match dial.until_used().await? {
            Leg::Quic => {
                let opened = dial.quic.take().ok_or_else(gone)?;
                match opened.asked {
                    Some((quic, answer)) => (Link::Quic(quic), Some(answer)),
                    None => (Link::Quic(Quic::begin(opened.endpoint, opened.connection).await?), None),
                }
            }
            Leg::Tcp => {
                let stream = dial.tcp.take().ok_or_else(gone)?;
                (Link::over_tls(*stream, &inner.closing).await?, None)
            }
        };
        let evidence = Evidence { network: setup.network, remote, by_alternative: setup.by_alternative, was_there };
        Ok(Raced { dial, link, answer, evidence, offer: setup.offer })
    }
}

impl Evidence {
    /// Waits for the verdict and records it, with the handshake `of_connection` where the race has measured none.
    pub(super) async fn judge(
        self,
        inner: Arc<Inner>,
        mut dial: Dial,
        origin: String,
        of_connection: Option<Duration>,
    ) -> Option<Verdict> {
        let Self { network, remote, by_alternative, was_there } = self;
        let verdict = dial.until_judged().await?;
        let took = if was_there { of_connection } else { dial.handshake };
        let now = Instant::ZERO + inner.started.elapsed();
        let mut memory = inner.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.learn(now, network, &origin, verdict, took);
        if let Some(remote) = remote {
            inner.reports.learn(&origin, verdict, network, remote);
        }
        if by_alternative && !matches!(verdict, Verdict::Works | Verdict::Slower { .. }) {
            memory.unlearn_alternative(network, &origin);
        }
        Some(verdict)
    }
}

/// Duration of the handshake of a QUIC connection, if known.
pub(super) fn handshake_time(quic: &Quic) -> Option<Duration> {
    quic.connection().stats().map(|stats| Duration::from_nanos(stats.handshake_time))
}
