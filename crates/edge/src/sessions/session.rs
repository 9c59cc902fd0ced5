//! Life of a session: streams and datagrams, and its end by either side, by the idle timeout, or in a drain.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use webtransport::{RecvStream, SendStream, Session, SessionEnd};

use super::{
    datagrams,
    halves::{Counters, Down, Up},
    onward::Onward,
    relay::{self, Relay},
};
use crate::{
    activity::Activity,
    config,
    context::{Draining, ListenerContext},
    ending::{Cause, Ending},
    observe::Traffic,
    stream::{self, StreamClient},
    stream_target::StreamTarget,
};

/// Protocol of streams in metrics.
pub(super) const PROTOCOL: &str = "webtransport";
/// Code of a stream beyond the limit of its session.
pub(super) const EXCESS: u64 = 4;
/// Code with which a session is closed when the time of a drain has ended.
const DRAINED: u32 = 16;
/// Close code of a session after its idle timeout.
const IDLE: u32 = 17;

/// A session at work.
pub(super) struct SessionTask {
    pub(super) session: Session,
    /// Session at a back end that speaks WebTransport, if the route has one.
    pub(super) onward: Option<Onward>,
    pub(super) config: config::WebTransport,
    /// The route under which the session has begun.
    pub(super) route: config::Route,
    pub(super) target: Arc<StreamTarget>,
    pub(super) context: ListenerContext,
    pub(super) client: StreamClient,
    pub(super) traffic: Arc<Traffic>,
    /// Cause of the session's end.
    pub(super) cause: Cause,
}

/// A request to the client, and to a back end that speaks WebTransport, to end the session, and the time at which that is done here.
#[derive(Default)]
struct Drain(Option<Instant>);

impl Drain {
    /// Asks once, and sets the time unless an earlier one is set.
    fn begin(&mut self, task: &SessionTask, patience: Duration) {
        if self.0.is_none() {
            task.session.drain();
            if let Some(onward) = &task.onward {
                onward.session.drain();
            }
        }
        let until = Instant::now() + patience;
        self.0 = Some(self.0.map_or(until, |earlier| earlier.min(until)));
    }

    async fn over(&self) {
        match self.0 {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    }
}

/// Side at which a session has ended first.
enum Ended {
    Client(SessionEnd),
    BackEnd(SessionEnd),
}

impl SessionTask {
    /// Carries the session until it has ended. What its streams have in progress then is reset.
    pub(super) async fn run(self) {
        let activity = Arc::new(Activity::new());
        let counters = Counters { traffic: self.traffic.clone(), activity: activity.clone() };
        let mut streams = JoinSet::new();
        let end = {
            let mut carrying = std::pin::pin!(async {
                match &self.onward {
                    Some(onward) => self.relay(onward, &counters).run(&mut streams).await,
                    None => self.carry(&counters, &mut streams).await,
                }
            });
            let mut drain = Drain::default();
            let (mut generations, mut draining) = (self.context.shared.generations(), self.context.draining.clone());
            let mut has_listener = true;
            // What has happened since the request is looked at first.
            generations.mark_changed();
            draining.mark_changed();
            loop {
                tokio::select! {
                    biased;
                    end = self.session.closed() => break Ended::Client(end),
                    () = drain.over() => self.close(Ending::Drained, DRAINED, "the gateway ends the session"),
                    () = activity.over(self.config.idle_timeout.0) => self.close(Ending::Idle, IDLE, "nothing was carried"),
                    Ok(()) = generations.changed() => {
                        if !self.context.shared.current().has_route(&self.route) {
                            drain.begin(&self, self.config.drain.0);
                        }
                    }
                    changed = draining.changed(), if has_listener => {
                        has_listener = changed.is_ok();
                        // The listener is gone only when all end.
                        let state = if has_listener { *draining.borrow() } else { Draining::Yes };
                        self.on_draining(state, &mut drain);
                    }
                    end = &mut carrying => break Ended::BackEnd(end),
                }
            }
        };
        match &end {
            Ended::Client(end) => {
                self.note(end);
                if let Some(onward) = &self.onward {
                    relay::pass_end(end, &onward.session);
                }
            }
            Ended::BackEnd(end) => {
                self.note_back_end(end);
                relay::pass_end(end, &self.session);
            }
        }
        // Before the end of the answer: a connection to a back end is not older than its session.
        streams.shutdown().await;
    }

    fn relay<'a>(&'a self, onward: &'a Onward, counters: &'a Counters) -> Relay<'a> {
        Relay {
            client: &self.session,
            back_end: &onward.session,
            counters,
            rooms: &self.client.rooms,
            streams: self.config.streams_per_session,
            shared: &self.context.shared,
            cause: &self.cause,
        }
    }

    /// Carries streams and datagrams to back ends over TCP and UDP, for as long as it is polled.
    async fn carry(&self, counters: &Counters, streams: &mut JoinSet<()>) -> SessionEnd {
        let resolver = self.context.shared.persistent.resolver.clone();
        let mut carrying = std::pin::pin!(async {
            datagrams::carry(&self.session, &self.config.datagrams_to, &*resolver, counters).await;
            std::future::pending::<()>().await;
        });
        loop {
            tokio::select! {
                biased;
                Some(_) = streams.join_next() => {}
                Ok((send, recv)) = self.session.accept_bi() => self.accept(send, recv, counters, streams),
                Ok(recv) = self.session.accept_uni() => self.refuse_uni(recv),
                () = &mut carrying => {}
            }
        }
    }

    /// Closes the session for a reason of this end.
    fn close(&self, ending: Ending, code: u32, reason: &str) {
        self.cause.note(ending);
        self.session.close(code, reason);
    }

    fn on_draining(&self, state: Draining, drain: &mut Drain) {
        match state {
            Draining::No => {}
            Draining::HandedOver => drain.begin(self, self.config.drain.0),
            // The connection ends after that time, and takes what was not said with it.
            Draining::Yes => {
                let patience = self.context.shared.current().config.drain.0;
                drain.begin(self, patience - patience / 8);
            }
        }
    }

    /// Begins a stream, if there is a place for it.
    fn accept(&self, send: SendStream, recv: RecvStream, counters: &Counters, streams: &mut JoinSet<()>) {
        let (mut down, mut up) = (Down(send, counters.clone()), Up(recv, counters.clone()));
        counters.activity.note();
        self.traffic.on_stream();
        if streams.len() >= self.config.streams_per_session {
            return stream::refuse(&mut down, &mut up, EXCESS, PROTOCOL, "excess", &self.context.shared);
        }
        let (client, target, context) = (self.client.clone(), self.target.clone(), self.context.clone());
        streams.spawn(stream::carry(down, up, client, PROTOCOL, target, context, &self.cause));
    }

    /// Refuses a unidirectional stream: a back end has no place to answer that it is a stream of this kind.
    fn refuse_uni(&self, mut recv: RecvStream) {
        self.traffic.on_stream();
        recv.stop(u32::try_from(stream::NOBODY).unwrap_or_default());
        stream::count_refused(PROTOCOL, "refused", &self.context.shared);
    }

    /// Notes the end at a back end that speaks WebTransport for the access log.
    fn note_back_end(&self, end: &SessionEnd) {
        match end {
            SessionEnd::ClosedByPeer { code: 0, reason } if reason.is_empty() => {}
            SessionEnd::ClosedByPeer { code, reason } => {
                self.traffic.note_end(format!("the back end closed the session (code {code}): {reason}"));
            }
            _ => {
                self.cause.note(Ending::Broken);
                self.traffic.note_end(format!("the back end: {end}"));
            }
        }
    }

    /// Notes the end for the access log, unless this end is the cause.
    fn note(&self, end: &SessionEnd) {
        match end {
            SessionEnd::ClosedByPeer { code: 0, reason } if reason.is_empty() => {}
            SessionEnd::ClosedByPeer { .. } => self.traffic.note_end(end.to_string()),
            SessionEnd::Reset(_) => {
                self.cause.note(Ending::Cancelled);
                self.traffic.note_end(end.to_string());
            }
            SessionEnd::Violation { .. } => {
                self.cause.note(Ending::Malformed);
                self.traffic.note_end(end.to_string());
            }
            // The connection says why.
            _ => {}
        }
    }
}
