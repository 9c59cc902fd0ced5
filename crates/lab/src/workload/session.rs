//! User session over one connection: watches a video, opens a page, scrolls through a feed. A script at the client requests objects, at
//! times and in an order that follow from arrivals; the server answers.

use units::{Duration, Instant};

use super::{End, Scope, feed::Feed, fetch::Fetches, page::Page, video::Player};
use crate::{
    contender::RunSpec,
    host::{Host, HostEvent},
    scenario::Workload,
};

/// Time that before the end of the run a script accounts for the time that has passed.
const CLOSING: Duration = Duration::from_micros(1);

/// One end of such a connection.
#[derive(Debug)]
pub(super) struct Session {
    fetches: Fetches,
    /// `None` at the server.
    script: Option<Script>,
    begun: bool,
    /// Time of the script's final accounting, and then a moment after the run: a client that has received everything waits for nothing else
    /// and is not stalled.
    closing: Option<Instant>,
}

/// Script of the client.
#[derive(Debug)]
enum Script {
    Video(Player),
    Page(Page),
    Feed(Feed),
}

impl Session {
    pub(super) fn new(end: End, spec: &RunSpec<'_>) -> Self {
        let traffic = &spec.scenario.traffic;
        let script = (end == End::Client).then(|| match traffic.workload {
            Workload::Page => Script::Page(Page::new(traffic.page())),
            Workload::Feed => Script::Feed(Feed::new(traffic.feed())),
            _ => Script::Video(Player::new(traffic.video())),
        });
        let closing = script.is_some().then(|| spec.end.saturating_sub(CLOSING));
        Self { fetches: Fetches::new(end), script, begun: false, closing }
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        self.fetches.on_event(host, event, scope);
        let begins = !self.begun && matches!(event, HostEvent::Early | HostEvent::Established);
        self.begun |= begins;
        self.act(host, begins, scope);
    }

    /// Acts when a deadline has come. Returns whether one had.
    pub(super) fn on_time(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) -> bool {
        let due = self.deadline().is_some_and(|at| at <= scope.now);
        if due {
            if self.closing.is_some_and(|at| at <= scope.now) {
                self.closing = Some(scope.window.to + Duration::from_secs(1));
            }
            self.act(host, false, scope);
        }
        due
    }

    fn act(&mut self, host: &mut impl Host, begins: bool, scope: &mut Scope<'_>) {
        let fetches = &mut self.fetches;
        match &mut self.script {
            Some(Script::Video(player)) => player.act(host, fetches, begins, scope),
            Some(Script::Page(page)) => page.act(host, fetches, begins, scope),
            Some(Script::Feed(feed)) => feed.act(host, fetches, begins, scope),
            None => {}
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let next = match self.script.as_ref()? {
            Script::Video(player) => player.deadline(),
            Script::Page(_) => None,
            Script::Feed(feed) => feed.deadline(),
        };
        [next, self.closing].into_iter().flatten().min()
    }
}
