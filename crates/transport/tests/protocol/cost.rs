//! Work of a receiver per packet, counted: no more than its bytes justify, however many frames are in it.

use crate::support;

use std::collections::BTreeSet;

use support::puppet::{Puppet, ack};
use transport::{Profile, Stats, tls::Level};

fn stats(puppet: &Puppet) -> Stats {
    puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats()
}

/// Each ACK frame of five bytes would wake loss detection and congestion control.
#[test]
fn a_packet_of_ack_frames_is_read_in_part() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    puppet.collect();
    let one = ack(&BTreeSet::from([0]));
    let before = stats(&puppet).ack_frames_received;
    let packets = 50;
    for _ in 0..packets {
        puppet.send(Level::OneRtt, &one.repeat(1_100 / one.len()));
        puppet.collect();
    }
    let read = stats(&puppet).ack_frames_received - before;
    println!("attack: ack-frames | {} in a packet, {} read", 1_100 / one.len(), read / packets);
    assert!(read <= 4 * packets, "{read} of {packets} packets");
    assert_eq!(puppet.close_code(), None);
}
