//! Trains of packets over links of `netem`, in virtual time, with known parameters.

use netem::{Link, LinkConfig, PacketMeta};
use units::{Duration, Instant, Seed};

use super::{Arrival, overload::Train};

/// Returns whether a packet that is sent now arrives.
pub(super) fn passes(link: &mut Link, now: Instant) -> bool {
    link.offer(now, &PacketMeta { size: 100, ..PacketMeta::default() }).verdict.arrival().is_some()
}

/// A train of packets of `size` bytes at `rate` bit/s for `span` microseconds. The clocks of both ends differ.
pub(super) fn train(config: &LinkConfig, rate: u64, size: u32, span: u64, seed: u64) -> Train {
    let mut link = Link::new(config, Seed::from_number(seed)).unwrap();
    let mut train = Train { size, ..Train::default() };
    for number in 0.. {
        let sent = u64::from(number) * u64::from(size) * 8_000_000 / rate;
        if sent >= span {
            break;
        }
        train.sent.push(sent);
        let now = Instant::ZERO + Duration::from_micros(sent);
        let transit = link.offer(now, &PacketMeta { size, number: u64::from(number), ..PacketMeta::default() });
        if let Some(arrival) = transit.verdict.arrival() {
            let received = u64::try_from((arrival - Instant::ZERO).as_micros()).unwrap() + 5_000_000;
            train.arrivals.push(Arrival { number, sent, received });
        }
    }
    train.arrivals.sort_by_key(|arrival| arrival.received);
    train
}
