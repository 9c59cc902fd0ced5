//! Initial packets of clients: how many datagrams the ClientHello takes, and whether the server answers them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tiderace::{
    transport::{
        observe::{DatagramsEvent, Observer, ObserverFactory, PacketEvent, PacketSpace, Start, Unsealed},
        tls::Level,
    },
    units::Instant,
};
use wire::{Frame, Frames};

/// Counters of all handshakes of some clients.
#[derive(Clone, Default)]
pub(crate) struct Initials(Arc<Counters>);

#[derive(Default)]
struct Counters {
    in_two_datagrams: AtomicU64,
    in_other_numbers: AtomicU64,
    /// Packets with the ClientHello that the server had not acknowledged at the end of the Initial keys.
    unanswered: AtomicU64,
    /// Connections whose client probed before anything came from the server: after 1 s (RFC 9002 §6.2.2).
    silent: AtomicU64,
    /// Connections with a probe after the first answer: a packet, or its acknowledgement, was late.
    late: AtomicU64,
    /// Times until the handshakes were complete, and the upgrades before.
    handshakes: Mutex<Vec<(Duration, u64)>>,
}

impl Initials {
    /// Notes the time that a handshake took, after so many upgrades.
    pub(crate) fn took(&self, time: Duration, upgrades: u64) {
        self.0.handshakes.lock().unwrap().push((time, upgrades));
    }

    pub(crate) fn print(&self) {
        let Counters { in_two_datagrams, in_other_numbers, unanswered, silent, late, handshakes } = &*self.0;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut times = handshakes.lock().unwrap().clone();
        times.sort();
        let ms = |time: Option<&(Duration, u64)>| time.map_or(f64::NAN, |(time, _)| time.as_secs_f64() * 1e3);
        println!("measured ClientHellos in two datagrams: {}", get(in_two_datagrams));
        println!("measured ClientHellos in another number of datagrams: {}", get(in_other_numbers));
        println!("measured unanswered Initials: {}", get(unanswered));
        println!("measured handshakes without any answer for 1 s: {}", get(silent));
        println!("measured handshakes with a probe after the first answer: {}", get(late));
        println!("measured slowest handshake, ms: {}", ms(times.last()));
        println!(
            "measured upgrades before the slowest handshake: {}",
            times.last().map_or(0, |(_, upgrades)| *upgrades)
        );
        println!("measured median handshake, ms: {}", ms(times.get(times.len() / 2)));
    }

    /// Asserts that each ClientHello took two datagrams and was answered.
    pub(crate) fn check(&self) {
        let Counters { in_two_datagrams, in_other_numbers, unanswered, .. } = &*self.0;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert!(get(in_two_datagrams) > 0, "no handshake");
        assert_eq!(get(in_other_numbers), 0, "ClientHellos took another number of datagrams");
        assert_eq!(get(unanswered), 0, "unanswered Initials");
    }
}

impl ObserverFactory for Initials {
    fn observe(&self, _: Instant, _: &Start) -> Option<Box<dyn Observer>> {
        Some(Box::new(FirstFlight {
            counters: self.0.clone(),
            datagrams: 0,
            outstanding: BTreeSet::new(),
            is_answered: false,
            is_probed: false,
        }))
    }
}

/// One handshake.
struct FirstFlight {
    counters: Arc<Counters>,
    /// Datagrams sent before the first packet of the server.
    datagrams: usize,
    /// Numbers of the first packets with the ClientHello, until they are acknowledged.
    outstanding: BTreeSet<u64>,
    is_answered: bool,
    is_probed: bool,
}

impl FirstFlight {
    fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_answered, true) && !self.is_probed {
            let counters = &self.counters;
            let counter = if self.datagrams == 2 { &counters.in_two_datagrams } else { &counters.in_other_numbers };
            count(counter, 1);
        }
    }
}

impl Observer for FirstFlight {
    fn packet_sent(&mut self, _: Instant, packet: &PacketEvent<'_>) {
        if packet.space != PacketSpace::Initial {
            return;
        }
        if !packet.out_of_turn && !self.is_answered {
            self.outstanding.insert(packet.pn);
        }
        if packet.out_of_turn && !std::mem::replace(&mut self.is_probed, true) {
            count(if self.is_answered { &self.counters.late } else { &self.counters.silent }, 1);
        }
    }

    fn datagrams_sent(&mut self, _: Instant, datagrams: &DatagramsEvent) {
        if !self.is_answered {
            self.datagrams += datagrams.sizes().len();
        }
    }

    fn packet_received(&mut self, _: Instant, packet: &PacketEvent<'_>) {
        self.answered();
        for frame in Frames::new(packet.payload).filter(|_| packet.space == PacketSpace::Initial) {
            let Ok(Frame::Ack(ack)) = frame else { continue };
            ack.ranges().for_each(|range| self.outstanding.retain(|number| !range.contains(number)));
        }
    }

    fn unsealed_received(&mut self, _: Instant, _: &Unsealed<'_>, _: usize) {
        self.answered();
        // The client sends its ClientHello again, with the token of a Retry packet.
        self.outstanding.clear();
    }

    fn keys_discarded(&mut self, _: Instant, level: Level, _: Option<u64>) {
        if level == Level::Initial {
            count(&self.counters.unanswered, self.outstanding.len() as u64);
            self.outstanding.clear();
        }
    }
}

fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
