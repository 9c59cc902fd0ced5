//! A web page: a document, then resources that its layout needs, then images. The figure is the time to the last object.

use super::{
    Scope,
    fetch::{Fetches, Object},
};
use crate::{host::Host, scenario::PageTraffic};

/// The client of one page.
#[derive(Debug)]
pub(super) struct Page {
    traffic: PageTraffic,
    /// The next level of the graph: document, styles and scripts, images.
    level: u8,
}

impl Page {
    pub(super) fn new(traffic: PageTraffic) -> Self {
        Self { traffic, level: 0 }
    }

    pub(super) fn act(&mut self, host: &mut impl Host, fetches: &mut Fetches, begins: bool, scope: &mut Scope<'_>) {
        let arrived = !fetches.take_done().is_empty();
        if !begins && (!arrived || fetches.pending() > 0) {
            return;
        }
        let PageTraffic { document, styles, style_size, images, image_size } = &self.traffic;
        let (count, bytes, urgency) = match self.level {
            0 => (1, document, 1),
            1 => (*styles, style_size, 2),
            2 => (*images, image_size, 5),
            _ => {
                scope.tally.answered = Some(scope.now);
                return;
            }
        };
        self.level += 1;
        for index in 0..count {
            fetches.fetch(host, Object { tag: index.into(), bytes: bytes.as_bytes(), urgency }, scope.now);
        }
        if self.level == 3 && count == 0 {
            scope.tally.answered = Some(scope.now);
        }
    }
}
