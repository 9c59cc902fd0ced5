//! Plan of one run for both ends: drawn from the seed, known to both, so that each can tell what it must see.

use std::time::Duration;

use rand_core::RngCore;
use units::{RandomStream, Seed};

use crate::{
    certificates::ChainSize,
    peer::{Dir, Side, stream_id},
};

/// One direction of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Bytes the sender offers.
    pub size: u64,
    /// End of the flow.
    pub end: FlowEnd,
}

/// End of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// The sender finishes after `size` bytes; the receiver must read exactly those.
    Finish,
    /// The sender resets after having written `size` bytes; the receiver must read a prefix and then this code.
    Reset(u64),
    /// The receiver asks to stop after having read `after` bytes (or as many as came at once). The sender writes `size`
    /// bytes, does not finish, and must learn this code.
    Stop {
        /// Bytes read before asking.
        after: u64,
        /// The application error code.
        code: u64,
    },
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// The QUIC stream ID it will have.
    pub id: u64,
    /// Initiator of the stream.
    pub initiator: Side,
    /// One or both ways.
    pub dir: Dir,
    /// Flow of the initiator.
    pub forward: Flow,
    /// Flow back on a bidirectional stream, from the moment the other end sees the stream.
    pub back: Option<Flow>,
}

/// End of the connection after both ends have seen everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Close by this side with this application error code; the other must see it.
    Close {
        /// Side that closes.
        by: Side,
        /// The code.
        code: u64,
    },
    /// Silence of both: the connection has to end after the idle timeout.
    Idle,
}

/// The whole script of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All streams but the farewells, in an order in which each end opens its own.
    pub streams: Vec<StreamPlan>,
    /// End of the connection.
    pub ending: Ending,
    /// After how many bytes read a side starts a key update, ascending; empty for none.
    pub key_updates: [Vec<u64>; 2],
    /// Size of the server's certificate chain.
    pub chain: ChainSize,
    /// A ClientHello in two datagrams.
    pub post_quantum: bool,
    /// `max_idle_timeout` of both ends.
    pub idle_timeout: Duration,
    /// Initial flow-control window of each stream, bytes.
    pub stream_window: u64,
    /// Initial flow-control window of the connection, bytes.
    pub connection_window: u64,
    /// Streams of each direction that an end lets the other have open.
    pub concurrent: u64,
}

/// The reason phrase of every close.
pub const REASON: &[u8] = b"all bytes compared";

/// Bytes that a side sends on its last unidirectional stream once it has received everything else.
pub const FAREWELL: u64 = 16;

impl Plan {
    /// The script of a seed.
    pub fn new(seed: &Seed) -> Self {
        let mut random = seed.stream("plan");
        let mut counts = [[0; 2]; 2];
        let streams: Vec<_> = (0..2 + below(&mut random, 30))
            .map(|_| {
                let initiator = if chance(&mut random, 60) { Side::Client } else { Side::Server };
                let dir = if chance(&mut random, 55) { Dir::Bi } else { Dir::Uni };
                let count = &mut counts[initiator as usize][dir as usize];
                let id = stream_id(initiator, dir, *count);
                *count += 1;
                let forward = flow(&mut random);
                let back = (dir == Dir::Bi).then(|| flow(&mut random));
                StreamPlan { id, initiator, dir, forward, back }
            })
            .collect();
        let ending = match below(&mut random, 5) {
            0 => Ending::Idle,
            choice => Ending::Close {
                by: if choice < 3 { Side::Client } else { Side::Server },
                code: below(&mut random, 1 << 20),
            },
        };
        let mut plan = Self {
            streams,
            ending,
            key_updates: [vec![], vec![]],
            chain: match below(&mut random, 4) {
                0 => ChainSize::Small,
                1 => ChainSize::Medium,
                _ => ChainSize::Large,
            },
            post_quantum: chance(&mut random, 70),
            idle_timeout: Duration::from_secs(200 + below(&mut random, 100)),
            stream_window: 8_000 << below(&mut random, 7),
            connection_window: 16_000 << below(&mut random, 8),
            concurrent: 1 + below(&mut random, 40),
        };
        for side in [Side::Client, Side::Server] {
            let readable = plan.readable(side);
            let mut points: Vec<_> = (0..below(&mut random, 3)).map(|_| below(&mut random, readable.max(1))).collect();
            points.sort_unstable();
            plan.key_updates[side as usize] = points;
        }
        plan
    }

    /// Returns whether a side tells the other that it has received everything: the end that closes waits for it, so that it
    /// does not cut off what the other end still reads.
    pub fn says_farewell(&self, side: Side) -> bool {
        match self.ending {
            Ending::Close { by, .. } => by != side,
            Ending::Idle => true,
        }
    }

    /// The ID of a side's farewell: its last unidirectional stream.
    pub fn farewell_id(&self, side: Side) -> u64 {
        let before = self.streams.iter().filter(|s| s.initiator == side && s.dir == Dir::Uni).count();
        stream_id(side, Dir::Uni, before as u64)
    }

    /// Bytes that a side reads for certain.
    pub fn readable(&self, side: Side) -> u64 {
        let certain = |flow: &Flow| if flow.end == FlowEnd::Finish { flow.size } else { 0 };
        self.streams
            .iter()
            .map(|s| if s.initiator == side { s.back.as_ref().map_or(0, certain) } else { certain(&s.forward) })
            .sum()
    }
}

/// One direction of a stream: most finish, one in eight is reset, one in eight is stopped.
fn flow(random: &mut RandomStream) -> Flow {
    let size = match below(random, 10) {
        0 => 0,
        1..=3 => below(random, 200),
        4..=6 => below(random, 10_000),
        7 | 8 => below(random, 60_000),
        _ => below(random, 200_001),
    };
    let code = below(random, 1 << 30);
    match below(random, 8) {
        0 => Flow { size, end: FlowEnd::Reset(code) },
        // A stream that is only ever stopped must carry a byte, or the receiver would never hear of it.
        1 => Flow { size: size + 1, end: FlowEnd::Stop { after: below(random, size + 1), code } },
        _ => Flow { size, end: FlowEnd::Finish },
    }
}

/// A number from 0 up to `bound`, excluded. The bias of the modulus is far below what a few thousand draws can show.
pub(crate) fn below(random: &mut RandomStream, bound: u64) -> u64 {
    random.next_u64() % bound
}

/// True in `percent` of 100 draws.
pub(crate) fn chance(random: &mut RandomStream, percent: u64) -> bool {
    below(random, 100) < percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_cover_what_the_script_can_do() {
        let plans: Vec<_> = (0..200).map(|n| Plan::new(&Seed::from_number(n))).collect();
        let some = |test: &dyn Fn(&Plan) -> bool| plans.iter().filter(|p| test(p)).count() > 10;
        assert!(some(&|p| p.ending == Ending::Idle));
        assert!(some(&|p| matches!(p.ending, Ending::Close { by: Side::Server, .. })));
        assert!(some(&|p| p.streams.iter().any(|s| matches!(s.forward.end, FlowEnd::Reset(_)))));
        assert!(some(&|p| p.streams.iter().any(|s| matches!(s.forward.end, FlowEnd::Stop { .. }))));
        assert!(some(&|p| p.key_updates.iter().any(|k| !k.is_empty())));
        assert!(some(&|p| p.post_quantum && p.chain == ChainSize::Large));
        assert!(some(&|p| p.streams.len() as u64 > 2 * p.concurrent));
    }

    #[test]
    fn ids_are_in_order_of_opening() {
        for number in 0..50 {
            let plan = Plan::new(&Seed::from_number(number));
            for side in [Side::Client, Side::Server] {
                let uni: Vec<_> =
                    plan.streams.iter().filter(|s| s.initiator == side && s.dir == Dir::Uni).map(|s| s.id).collect();
                assert!(uni.windows(2).all(|pair| pair[1] == pair[0] + 4));
                assert!(uni.last().is_none_or(|last| last + 4 == plan.farewell_id(side)));
            }
        }
    }
}
