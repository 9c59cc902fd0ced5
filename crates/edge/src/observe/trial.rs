//! Request of a client that takes part in a trial: its time ends when the client has all of the response.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::Request;
use tokio::runtime::Handle;

use super::Entry;
use crate::{
    delivery::SentBytes,
    ending::Ending,
    peer::Peer,
    setup_time::SetupTime,
    trial::{Assignment, NetworkType, ObservedRequest, Trials},
};

/// Source of the set-up time and of the delivery of a request's response.
enum Transport {
    Tcp { setup: Arc<SetupTime>, sent: Arc<SentBytes> },
    Quic { is_first: bool, connection: tiderace::Connection, delivery: h3_quic::server::Delivery },
}

/// Part of an entry in a trial.
pub(crate) struct TrialEntry {
    trials: Arc<Trials>,
    assignment: Assignment,
    network_type: NetworkType,
    is_quic: bool,
    is_early: bool,
    transport: Option<Transport>,
    /// Of QUIC: watched from the beginning.
    delivered: Option<h3_quic::server::Delivered>,
}

/// Returns whether an end says something about the path: a request that is refused for what it is says nothing.
fn counts(ending: Ending) -> bool {
    !matches!(
        ending,
        Ending::Malformed | Ending::FieldsTooLarge | Ending::Rate | Ending::Refused | Ending::Excess | Ending::Idle
    )
}

/// Enters a request into the trial of its client.
pub(crate) fn take_part<B>(
    trials: &Arc<Trials>,
    assignment: Assignment,
    request: &Request<B>,
    peer: &Peer,
    entry: &mut Entry,
) {
    let delivery = || request.extensions().get().cloned();
    let transport = match (&peer.quic, &peer.tcp) {
        (Some(connection), _) => delivery().map(|delivery| {
            let (is_first, connection) = (peer.is_first, connection.clone());
            Transport::Quic { is_first, connection, delivery }
        }),
        (None, Some((setup, sent))) => Some(Transport::Tcp { setup: setup.clone(), sent: sent.clone() }),
        (None, None) => None,
    };
    let network_type = NetworkType::of(request.headers());
    let trial = TrialEntry::new(trials, assignment, network_type, (peer.quic.is_some(), peer.early), transport);
    entry.set_trial(trial);
}

impl TrialEntry {
    fn new(
        trials: &Arc<Trials>,
        assignment: Assignment,
        network_type: NetworkType,
        (is_quic, is_early): (bool, bool),
        transport: Option<Transport>,
    ) -> Self {
        let delivered = match &transport {
            Some(Transport::Quic { delivery, .. }) => Some(delivery.watch()),
            _ => None,
        };
        Self { trials: trials.clone(), assignment, network_type, is_quic, is_early, transport, delivered }
    }

    /// The request that began then has ended. It is noted when the client has the response, or never will.
    pub(super) fn end(self, begun: Instant, ending: Ending) {
        if !counts(ending) {
            return;
        }
        let Self { trials, assignment, network_type, is_quic, is_early, transport, delivered } = self;
        let place = if ending == Ending::Complete {
            let Some(place) = trials.awaits(&assignment) else { return };
            Some(place)
        } else {
            None
        };
        let note = move |seconds: Option<f64>| {
            trials.note(&assignment, &ObservedRequest { is_quic, network_type, seconds });
            drop(place);
        };
        // Without a runtime the process ends.
        let (true, Some(transport), Ok(runtime)) = (ending == Ending::Complete, transport, Handle::try_current())
        else {
            return note(None);
        };
        let setup = match &transport {
            Transport::Tcp { setup, .. } => setup.take(),
            // Early data has not waited for the handshake.
            Transport::Quic { is_first: true, connection, .. } if !is_early => {
                Duration::from_nanos(connection.stats().map_or(0, |stats| stats.handshake_time))
            }
            Transport::Quic { .. } => Duration::ZERO,
        };
        let note = move |at: Option<Instant>| {
            note(at.map(|at| (at.saturating_duration_since(begun) + setup).as_secs_f64()));
        };
        match (delivered, transport) {
            (Some(delivered), _) => drop(runtime.spawn(async move { note(delivered.wait().await) })),
            (None, Transport::Tcp { sent, .. }) => {
                // Before the connection goes on: the next flush is that of this response.
                let awaited = sent.awaited();
                drop(runtime.spawn(async move { note(awaited.delivered().await) }));
            }
            (None, Transport::Quic { .. }) => note(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tiderace::ProcessBudget;
    use tokio::{
        io::AsyncWriteExt as _,
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;
    use crate::{
        delivery::Counting,
        trial::{AWAITED, Arm},
    };

    #[tokio::test]
    async fn responses_that_nobody_acknowledges_wait_in_a_bounded_number() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = Counting::new(listener.accept().await.unwrap().0);
        // More than the buffers of both ends take.
        while let Ok(Ok(_)) = timeout(Duration::from_millis(200), server.write(&[7; 64 * 1024])).await {}
        let memory = ProcessBudget::new(1 << 30);
        let trials = Trials::new(&memory);
        let (policy, client) = ("p".to_owned(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let assignment = Assignment { policy, share: 0.5, arm: Arm::Tcp, client, order: 0 };
        for _ in 0..1_000 {
            let transport = Transport::Tcp { setup: Arc::default(), sent: server.sent() };
            let entry = |transport| {
                TrialEntry::new(&trials, assignment.clone(), NetworkType::Unreported, (false, false), Some(transport))
            };
            entry(transport).end(Instant::now(), Ending::Complete);
        }
        assert!(memory.held() > 0 && memory.held() <= AWAITED as u64 * 1024, "{}", memory.held());
    }

    #[test]
    fn the_first_request_alone_has_waited_for_the_set_up() {
        let setup = SetupTime::new(Duration::from_millis(80));
        assert_eq!((setup.take(), setup.take()), (Duration::from_millis(80), Duration::ZERO));
    }
}
