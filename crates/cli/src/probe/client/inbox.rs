//! Received packets at the measuring end: answers to pings, and trains.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::probe::{
    estimate::Arrival,
    wire::{Kind, Packet, Record},
};

/// Answer to a ping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pong {
    pub(super) number: u32,
    /// Round trip in microseconds.
    pub(super) rtt: u64,
}

/// Packets that have arrived.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) trains: Mutex<HashMap<u8, Vec<Record>>>,
    pub(super) pongs: Mutex<HashMap<u8, Vec<Pong>>>,
    /// Smallest round trip so far, in microseconds.
    pub(super) smallest: AtomicU64,
    /// Newest round trip, in microseconds; 0 before the first.
    pub(super) latest: AtomicU64,
    pub(super) nonce: AtomicU64,
}

impl Inbox {
    pub(super) fn take(&self, packet: &Packet, at: u64, ecn: u8) {
        match packet.kind {
            Kind::Pong => {
                let rtt = at.saturating_sub(packet.sent);
                self.smallest.fetch_min(rtt, Ordering::Relaxed);
                self.latest.store(rtt, Ordering::Relaxed);
                self.nonce.store(packet.nonce, Ordering::Relaxed);
                let mut pongs = lock(&self.pongs);
                let pongs = pongs.entry(packet.train).or_default();
                if pongs.len() < LOCAL_RECORDS && pongs.iter().rev().take(64).all(|pong| pong.number != packet.number) {
                    pongs.push(Pong { number: packet.number, rtt });
                }
            }
            Kind::Data => {
                let mut trains = lock(&self.trains);
                let records = trains.entry(packet.train).or_default();
                if records.len() < LOCAL_RECORDS {
                    let arrival = Arrival { number: packet.number, sent: packet.sent, received: at };
                    records.push(Record { arrival, ecn });
                }
            }
            Kind::Ping => {}
        }
    }

    pub(super) fn pong_count(&self, train: u8) -> usize {
        lock(&self.pongs).get(&train).map_or(0, Vec::len)
    }
}

/// Largest number of records of a train that this end keeps.
const LOCAL_RECORDS: usize = 1_000_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
