use proptest::prelude::*;

use super::*;

fn stream(from: u64, to: u64) -> Bytes {
    (from..to).map(|i| ((i * 31) >> 3) as u8).collect::<Vec<_>>().into()
}

#[derive(Clone, Debug)]
enum Action {
    Insert(u64, u64),
    NextBuffer,
    Compact,
    Ordered(usize),
    Unordered(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..400u64, 0..40u64).prop_map(|(a, n)| Action::Insert(a, a + n)),
        2 => Just(Action::NextBuffer),
        1 => Just(Action::Compact),
        1 => (1..60usize).prop_map(Action::Ordered),
        1 => (1..60usize).prop_map(Action::Unordered),
    ]
}

proptest! {
    // RFC 9000 §2.2 MUST-1
    #[test]
    fn every_byte_comes_out_once(actions in prop::collection::vec(action(), 1..200), busy in any::<bool>()) {
        let mut held = Holdings::default();
        held.set_slack(if busy { 0 } else { 1 << 20 });
        let mut asm = Assembler::default();
        let (mut arrived, mut seen) = ([false; 500], [false; 500]);
        for action in actions {
            let (chunk, ordered) = match action {
                Action::Insert(a, b) => {
                    asm.insert(a, stream(a, b), &mut held);
                    arrived[a as usize..b as usize].fill(true);
                    (None, false)
                }
                Action::NextBuffer => {
                    held.next_buffer(65_536, 60);
                    (None, false)
                }
                Action::Compact => {
                    held.set_slack(0);
                    asm.compact(&mut held);
                    prop_assert!(!held.is_wasteful());
                    (None, false)
                }
                Action::Ordered(max) => (asm.read_ordered(max, &mut held).map(|c| (c, max)), true),
                Action::Unordered(max) => (asm.read_unordered(max, &mut held).map(|c| (c, max)), false),
            };
            let prefix = arrived.iter().take_while(|a| **a).count();
            prop_assert_eq!(asm.prefix(), prefix as u64);
            if let Some(((offset, data), max)) = chunk {
                prop_assert!(!data.is_empty() && data.len() <= max);
                prop_assert_eq!(&data, &stream(offset, offset + data.len() as u64));
                for i in offset as usize..offset as usize + data.len() {
                    prop_assert!(arrived[i] && !seen[i]);
                    seen[i] = true;
                }
                if ordered {
                    prop_assert!(seen[..offset as usize].iter().all(|s| *s), "ordered reads leave nothing behind");
                }
            }
            let unread = (0..500).filter(|i| arrived[*i] && !seen[*i]).count() as u64;
            prop_assert_eq!(held.bytes, unread);
            prop_assert_eq!(asm.has_any(), unread > 0);
            prop_assert_eq!(asm.has_ready(), (0..prefix).any(|i| !seen[i]));
        }
        asm.clear(&mut held);
        prop_assert_eq!((held.bytes, held.holes, held.pins.slices(), held.pins.pinned()), (0, 0, 0, 0));
        prop_assert_eq!((held.copies, held.queues, held.ahead), (0, 0, 0));
    }
}

proptest! {
    /// Data behind an end that moves to the front is gone, counted, and charged to nobody.
    #[test]
    fn bytes_behind_the_end_are_given_up(
        rounds in prop::collection::vec((prop::collection::vec(action(), 0..40), 0..500u64), 1..5),
    ) {
        let mut held = Holdings::default();
        held.set_slack(1 << 20);
        let mut asm = Assembler::default();
        let (mut arrived, mut seen) = ([false; 500], [false; 500]);
        let mut end = 500;
        for (actions, at) in rounds {
            for action in actions {
                let chunk = match action {
                    Action::Insert(a, b) => {
                        let (a, b) = (a.min(end), b.min(end));
                        asm.insert(a, stream(a, b), &mut held);
                        arrived[a as usize..b as usize].fill(true);
                        None
                    }
                    Action::NextBuffer => {
                        held.next_buffer(65_536, 60);
                        None
                    }
                    Action::Compact => {
                        asm.compact(&mut held);
                        None
                    }
                    Action::Ordered(max) => asm.read_ordered(max, &mut held),
                    Action::Unordered(max) => asm.read_unordered(max, &mut held),
                };
                if let Some((offset, data)) = chunk {
                    prop_assert_eq!(&data, &stream(offset, offset + data.len() as u64));
                    let places = offset as usize..offset as usize + data.len();
                    prop_assert!(places.end as u64 <= end && seen[places.clone()].iter().all(|seen| !seen));
                    seen[places].fill(true);
                }
            }
            let at = at.min(end);
            let behind = at as usize..end as usize;
            let unread = behind.clone().filter(|i| !seen[*i]).count() as u64;
            let thrown_away = behind.filter(|i| arrived[*i] && !seen[*i]).count() as u64;
            let before = held.thrown_away;
            prop_assert_eq!(asm.truncate(at, end, &mut held), unread);
            prop_assert_eq!(held.thrown_away - before, thrown_away);
            end = at;
            let left = (0..end as usize).filter(|i| arrived[*i] && !seen[*i]).count() as u64;
            prop_assert_eq!((held.bytes, asm.has_any()), (left, left > 0));
            let all = (0..end as usize).all(|i| arrived[i]);
            prop_assert_eq!(asm.prefix() >= end, all);
        }
        while asm.read_unordered(usize::MAX, &mut held).is_some() {}
        asm.clear(&mut held);
        prop_assert_eq!((held.bytes, held.holes, held.pins.slices(), held.pins.pinned()), (0, 0, 0, 0));
        prop_assert_eq!((held.copies, held.queues, held.ahead), (0, 0, 0));
    }
}

/// Packets of full buffers are kept as they are, however many; packets that came alone are copied beyond the slack.
#[test]
fn what_fills_its_buffers_is_not_copied() {
    const PACKET: u64 = 1400;
    const BUFFER: u64 = 65_536;
    for (per_buffer, copies) in [(44, false), (1, true)] {
        let mut held = Holdings::default();
        held.set_slack(4 * BUFFER);
        let mut asm = Assembler::default();
        let packets = 2000;
        let whole = stream(0, packets * PACKET);
        for i in 0..packets {
            if i % per_buffer == 0 {
                held.next_buffer(BUFFER as usize, (per_buffer * (PACKET + 40)) as usize);
            }
            // From the second packet on, ahead of a hole.
            let range = i * PACKET..(i + 1) * PACKET;
            asm.insert(range.start + 1, whole.slice(range.start as usize..range.end as usize), &mut held);
        }
        assert_eq!(held.pins.slices() < packets as usize, copies);
        assert!(held.memory() < whole.len() as u64 * 5 / 4 + 4 * BUFFER, "{}", held.memory());
        assert!(!held.is_wasteful());
        asm.clear(&mut held);
        assert_eq!((held.pins.slices(), held.pins.pinned(), held.copies), (0, 0, 0));
    }
}

/// Data that shares buffers with data that was read is copied, once most of them was read.
#[test]
fn what_is_left_of_buffers_is_copied() {
    const BUFFER: usize = 65_536;
    let mut held = Holdings::default();
    let mut streams: [Assembler; 2] = Default::default();
    for i in 0..50u64 {
        held.next_buffer(BUFFER, BUFFER);
        streams[0].insert(i * 60_000, stream(i * 60_000, (i + 1) * 60_000), &mut held);
        streams[1].insert(i, stream(i, i + 1), &mut held);
    }
    assert_eq!(held.pins.pinned(), 50 * BUFFER as u64);
    while streams[0].read_ordered(usize::MAX, &mut held).is_some() {
        if held.is_wasteful() {
            streams.iter_mut().for_each(|stream| stream.compact(&mut held));
            assert!(!held.is_wasteful());
        }
    }
    assert!(held.memory() < 10_000, "{}", held.memory());
    let mut at = 0;
    while let Some((offset, data)) = streams[1].read_ordered(7, &mut held) {
        assert_eq!((offset, &data), (at, &stream(at, at + data.len() as u64)));
        at += data.len() as u64;
    }
    assert_eq!((at, held.bytes, held.copies), (50, 0, 0));
}

/// One byte per frame, each in a buffer of its own, in every order that could hurt: memory stays in proportion.
#[test]
fn a_flood_of_single_bytes_is_gathered() {
    let n = 200_000u64;
    let orders: [fn(u64, u64) -> u64; 4] = [
        |i, _| i,
        |i, n| n - 1 - i,
        |i, n| i * 7919 % n,
        // Backwards in small groups that are themselves in order.
        |i, _| i / 500 * 500 + 499 - i % 500,
    ];
    for (which, order) in orders.iter().enumerate() {
        let mut held = Holdings::default();
        let mut asm = Assembler::default();
        let mut worst = 0;
        let mut refused = false;
        for i in 0..n {
            let at = order(i, n);
            held.next_buffer(65_536, 1);
            if !asm.insert(at, stream(at, at + 1), &mut held) {
                refused = true;
                break;
            }
            if i % 1000 == 0 {
                worst = worst.max(held.memory());
            }
        }
        assert_eq!(refused, which == 2, "only scattered bytes make too many holes");
        assert!(worst < 3 << 20, "order {which} holds {worst} bytes");
        if !refused {
            let mut at = 0;
            while let Some((offset, data)) = asm.read_ordered(usize::MAX, &mut held) {
                assert_eq!((offset, &data), (at, &stream(at, at + data.len() as u64)));
                at += data.len() as u64;
            }
            assert_eq!(at, n);
            assert_eq!((held.bytes, held.pins.slices(), held.holes, held.pins.pinned()), (0, 0, 0, 0));
            assert_eq!((held.copies, held.ahead), (0, 0));
        }
    }
}
