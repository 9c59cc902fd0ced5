//! Video in segments, with a bitrate that adapts to the path. Figures are stalls, changes of quality, and bitrate.
//!
//! The player requests one segment at a time while its buffer has room. The first one has the lowest bitrate. Then it is the highest
//! bitrate within four fifths of the rate at which the last three segments arrived, and the lowest again while the buffer holds less than a
//! segment. The player plays from the first segment on, and again from the next one when the buffer ran dry.

use units::{Bitrate, Duration, Instant};

use super::{
    Scope,
    fetch::{Fetches, Object},
};
use crate::{host::Host, scenario::VideoTraffic};

/// Segments over which the rate is averaged.
const MEMORY: usize = 3;

/// The client of one video.
#[derive(Debug)]
pub(super) struct Player {
    traffic: VideoTraffic,
    /// Media in the buffer that has not been played.
    buffered: Duration,
    /// Up to when time has been accounted for.
    counted_to: Instant,
    playing: bool,
    /// The rung of the ladder of the last segment.
    rung: Option<usize>,
    /// Seconds for each bit, of the last segments.
    costs: Vec<f64>,
    next: Option<Instant>,
}

impl Player {
    pub(super) fn new(traffic: VideoTraffic) -> Self {
        Self {
            traffic,
            buffered: Duration::ZERO,
            counted_to: Instant::ZERO,
            playing: false,
            rung: None,
            costs: Vec::new(),
            next: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn act(&mut self, host: &mut impl Host, fetches: &mut Fetches, begins: bool, scope: &mut Scope<'_>) {
        self.pass(scope);
        for fetched in fetches.take_done() {
            #[expect(clippy::cast_precision_loss, reason = "a segment is far below 2^53 bits")]
            let bits = fetched.object.bytes as f64 * 8.0;
            self.costs.push(fetched.took.as_secs_f64() / bits);
            if self.costs.len() > MEMORY {
                self.costs.remove(0);
            }
            self.buffered += self.traffic.segment;
            self.playing = true;
            let video = &mut scope.tally.video;
            video.began.get_or_insert(scope.now);
            if scope.window.contains(scope.now) {
                video.segments += 1;
                video.bits += bits;
            }
        }
        if (begins || self.rung.is_some()) && fetches.pending() == 0 {
            self.ask(host, fetches, scope);
        }
    }

    /// Requests the next segment when there is room for it, and otherwise waits.
    fn ask(&mut self, host: &mut impl Host, fetches: &mut Fetches, scope: &mut Scope<'_>) {
        let room = self.traffic.buffer.saturating_sub(self.buffered);
        if room < self.traffic.segment {
            self.next = Some(scope.now + (self.traffic.segment - room));
            return;
        }
        self.next = None;
        let rung = self.choose();
        if self.rung.is_some_and(|last| last != rung) && scope.window.contains(scope.now) {
            scope.tally.video.switches += 1;
        }
        self.rung = Some(rung);
        let bytes = self.traffic.ladder[rung].in_time(self.traffic.segment).as_bytes().max(1);
        fetches.fetch(host, Object { tag: 0, bytes, urgency: 3 }, scope.now);
    }

    fn choose(&self) -> usize {
        if self.costs.is_empty() || self.buffered < self.traffic.segment {
            return 0;
        }
        #[expect(clippy::cast_precision_loss, reason = "three costs")]
        let rate = self.costs.len() as f64 / self.costs.iter().sum::<f64>() * 0.8;
        #[expect(clippy::cast_precision_loss, reason = "bitrates are far below 2^53")]
        let carried = |rung: &Bitrate| rung.as_bps() as f64 <= rate;
        self.traffic.ladder.iter().rposition(carried).unwrap_or(0)
    }

    /// Accounts for the time since the last call: what was played, and how long the picture stood still.
    fn pass(&mut self, scope: &mut Scope<'_>) {
        let (from, to) = (self.counted_to, scope.now);
        self.counted_to = to;
        if scope.tally.video.began.is_none() {
            return;
        }
        let span = to - from;
        let played = if self.playing { span.min(self.buffered) } else { Duration::ZERO };
        self.buffered -= played;
        if played < span {
            self.playing = false;
            let still = (from + played).max(scope.window.from)..to.min(scope.window.to);
            scope.tally.video.stalls += u64::from(played > Duration::ZERO && scope.window.contains(from + played));
            scope.tally.video.stalled += still.end.saturating_since(still.start);
        }
        let watched = from.max(scope.window.from)..to.min(scope.window.to);
        scope.tally.video.watched += watched.end.saturating_since(watched.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn player() -> Player {
        Player::new(VideoTraffic::default())
    }

    #[test]
    fn the_bitrate_follows_the_path_and_falls_with_an_empty_buffer() {
        let mut player = player();
        assert_eq!(player.choose(), 0);
        player.buffered = Duration::from_secs(4);
        // 4 Mbit/s: four fifths carry 2.5 but not 5.
        player.costs = vec![0.25e-6];
        assert_eq!(player.traffic.ladder[player.choose()], Bitrate::from_bps(2_500_000));
        player.buffered = Duration::from_secs(1);
        assert_eq!(player.choose(), 0);
        player.buffered = Duration::from_secs(4);
        player.costs = vec![1.0];
        assert_eq!(player.choose(), 0, "the lowest when nothing is carried");
    }

    #[test]
    fn the_picture_stands_still_when_the_buffer_is_empty() {
        let mut player = player();
        let mut tally = super::super::Tally::default();
        let window = super::super::Window { from: Instant::from_millis(1000), to: Instant::from_millis(9000) };
        let pass = |player: &mut Player, at: u64, tally: &mut super::super::Tally| {
            player.pass(&mut Scope { now: Instant::from_millis(at), window, tally });
        };
        pass(&mut player, 500, &mut tally);
        (tally.video.began, player.playing, player.buffered) =
            (Some(Instant::from_millis(500)), true, Duration::from_secs(2));
        pass(&mut player, 4500, &mut tally);
        assert_eq!((tally.video.stalled, tally.video.stalls), (Duration::from_secs(2), 1));
        assert_eq!(tally.video.watched, Duration::from_millis(3500));
        // It continues standing still, and that is the same stall.
        pass(&mut player, 10_000, &mut tally);
        assert_eq!((tally.video.stalled, tally.video.stalls), (Duration::from_millis(6500), 1));
    }
}
