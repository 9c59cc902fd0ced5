//! A feed: every screen requests some answers of an interface and images, all at once and the answers first. With the next screen, images
//! that have not arrived are cancelled. Figures are latency of answers, and the share of images seen.

use units::Instant;

use super::{
    Scope,
    fetch::{Fetches, Object},
};
use crate::{host::Host, scenario::FeedTraffic};

/// Tag of an answer of the interface; images have others.
const CALL: u64 = 0;

/// The client of one feed.
#[derive(Debug)]
pub(super) struct Feed {
    traffic: FeedTraffic,
    next: Option<Instant>,
}

impl Feed {
    pub(super) fn new(traffic: FeedTraffic) -> Self {
        Self { traffic, next: None }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn act(&mut self, host: &mut impl Host, fetches: &mut Fetches, begins: bool, scope: &mut Scope<'_>) {
        for fetched in fetches.take_done().into_iter().filter(|_| scope.window.contains(scope.now)) {
            if fetched.object.tag == CALL {
                scope.tally.requests.push(fetched.took);
            } else {
                scope.tally.feed.seen += 1;
                scope.tally.feed.image_bytes += fetched.object.bytes;
            }
        }
        if !begins && self.next.is_none_or(|at| scope.now < at) {
            return;
        }
        self.next = Some(scope.now + self.traffic.every);
        let (missed, wasted) = fetches.give_up(host, |object| object.tag != CALL);
        if scope.window.contains(scope.now) {
            scope.tally.feed.missed += missed;
            scope.tally.feed.wasted_bytes += wasted;
        }
        let FeedTraffic { calls, call_size, images, image_size, .. } = &self.traffic;
        for (count, tag, bytes, urgency) in [(*calls, CALL, call_size, 1), (*images, CALL + 1, image_size, 5)] {
            for _ in 0..count {
                fetches.fetch(host, Object { tag, bytes: bytes.as_bytes(), urgency }, scope.now);
            }
        }
    }
}
