use proptest::prelude::*;

use super::*;

fn byte_at(offset: u64) -> u8 {
    (offset ^ offset >> 8) as u8
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// Reads the frames that a stream writes into a packet of this size.
fn frames(stream: &mut CryptoStream, space: usize) -> Vec<(u64, Vec<u8>)> {
    let mut buffer = vec![0; space];
    let mut w = Writer::new(&mut buffer);
    let mut recorded = Vec::new();
    stream.write_frames(&mut w, &mut |frame| recorded.push(frame));
    let written = w.written().to_vec();
    let mut r = wire::Reader::new(&written);
    let mut frames = Vec::new();
    for record in recorded {
        assert_eq!(r.varint().unwrap(), FRAME_TYPE);
        let offset = r.varint().unwrap();
        let len = r.varint().unwrap();
        assert_eq!(record, SentFrame::Crypto { offset, len: len as u16 });
        frames.push((offset, r.bytes(len as usize).unwrap().to_vec()));
    }
    assert!(r.is_empty());
    frames
}

// RFC 9000 §7.5 MUST-1, MUST-2
#[test]
fn data_far_ahead_and_too_many_gaps_are_refused() {
    let mut stream = CryptoStream::new();
    assert!(stream.on_frame(MAX_AHEAD - 1, &[1]).is_ok());
    assert_eq!(stream.on_frame(MAX_AHEAD, &[1]).unwrap_err().code, Code::CRYPTO_BUFFER_EXCEEDED);
    assert_eq!(stream.on_frame(varint::MAX, &[1]).unwrap_err().code, Code::CRYPTO_BUFFER_EXCEEDED);

    let mut stream = CryptoStream::new();
    let outcome = (1..=MAX_FRAGMENTS as u64 + 1).try_for_each(|i| stream.on_frame(2 * i, &[1]));
    assert_eq!(outcome.unwrap_err().code, Code::CRYPTO_BUFFER_EXCEEDED);
}

#[test]
fn data_that_nobody_reads_is_bounded_too() {
    let mut stream = CryptoStream::new();
    let chunk = vec![0; 1024];
    let taken = (0..1000).take_while(|i| stream.on_frame(i * 1024, &chunk).is_ok()).count();
    assert_eq!(taken as u64 * 1024, MAX_AHEAD);
    assert_eq!(stream.read().unwrap().len() as u64, MAX_AHEAD);
    assert!(stream.on_frame(MAX_AHEAD, &chunk).is_ok());
}

#[test]
fn a_frame_fills_the_space_that_is_left() {
    for space in 0..300 {
        let mut stream = CryptoStream::new();
        stream.write(&bytes(0..1000));
        let sent: u64 = frames(&mut stream, space).iter().map(|(_, data)| data.len() as u64).sum();
        // Type, offset, and a length of one byte below 64, of two above.
        let expected = match space {
            0..=3 => 0,
            4..=66 => space - 3,
            67 => 63,
            // After 63 bytes with a short length field nothing else fits until a long one does more.
            _ => space - 4,
        };
        assert_eq!(sent, expected as u64, "{space} bytes");
    }
}

/// Filling gaps from behind, byte by byte, moves few bytes for each: what is joined is short, what is apart is counted.
#[test]
fn fragments_from_behind_are_cheap_or_refused() {
    let mut stream = CryptoStream::new();
    let mut refused = None;
    for offset in (1..MAX_AHEAD).rev() {
        if stream.on_frame(offset, &[1]).is_err() {
            refused = Some(offset);
            break;
        }
        let longest = stream.receive.fragments.values().map(Vec::len).max();
        assert!(longest <= Some(JOINED + 1) && stream.receive.fragments.len() <= MAX_FRAGMENTS);
    }
    assert_eq!(refused, None, "64 KiB are within the limits");
    let mut stream = CryptoStream::new();
    assert!((0..MAX_FRAGMENTS as u64 + 2).any(|n| stream.on_frame(1 + 2 * n, &[1]).is_err()));
}

proptest! {
    #[test]
    fn reassembly_agrees_with_a_bitmap(
        fragments in prop::collection::vec((0u64..600, 0usize..80), 1..120),
        reads in prop::collection::vec(any::<bool>(), 120),
    ) {
        let mut stream = CryptoStream::new();
        let mut seen = vec![false; 700];
        let mut got = Vec::new();
        for ((offset, len), read) in fragments.into_iter().zip(reads) {
            stream.on_frame(offset, &bytes(offset..offset + len as u64)).unwrap();
            seen[offset as usize..offset as usize + len].fill(true);
            if read {
                got.extend(stream.read().unwrap_or_default());
                let contiguous = seen.iter().take_while(|seen| **seen).count();
                prop_assert_eq!(got.len(), contiguous);
                let ahead = seen[contiguous..].iter().any(|seen| *seen);
                prop_assert_eq!(stream.has_unread(), ahead);
            }
            let mut end_before = stream.receive.next;
            for (&start, data) in &stream.receive.fragments {
                prop_assert!(start >= end_before && start > stream.receive.next && !data.is_empty());
                end_before = start + data.len() as u64;
            }
        }
        prop_assert_eq!(&got, &bytes(0..got.len() as u64));
    }

    // RFC 9000 §13.3 SHOULD-3
    #[test]
    fn everything_arrives_in_the_end_and_nothing_acknowledged_is_sent_again(
        total in 1u64..3000,
        verdicts in prop::collection::vec((any::<bool>(), 4usize..200, any::<u8>()), 1..60),
    ) {
        let mut sender = CryptoStream::new();
        let mut receiver = CryptoStream::new();
        sender.write(&bytes(0..total));
        let mut acked = vec![false; total as usize];
        let mut in_flight: Vec<(u64, u16)> = Vec::new();
        let mut got = Vec::new();
        let ends = std::iter::repeat_n((true, 100, 0), 4000);
        for (delivered, space, which) in verdicts.into_iter().chain(ends) {
            for (offset, data) in frames(&mut sender, space) {
                prop_assert_eq!(&data, &bytes(offset..offset + data.len() as u64));
                prop_assert!(!acked[offset as usize..][..data.len()].iter().any(|a| *a));
                in_flight.push((offset, data.len() as u16));
            }
            if in_flight.is_empty() {
                if !sender.has_unacknowledged() && !sender.wants_to_send() {
                    break;
                }
                sender.send_again();
                continue;
            }
            let (offset, len) = in_flight.swap_remove(usize::from(which) % in_flight.len());
            if delivered {
                receiver.on_frame(offset, &bytes(offset..offset + u64::from(len))).unwrap();
                got.extend(receiver.read().unwrap_or_default());
                sender.on_acked(offset, len);
                acked[offset as usize..][..usize::from(len)].fill(true);
            } else {
                sender.on_lost(offset, len);
                if which % 7 == 0 {
                    sender.send_again();
                }
            }
        }
        prop_assert_eq!(got, bytes(0..total));
        prop_assert!(!sender.has_unacknowledged() && !sender.wants_to_send());
        prop_assert!(sender.send.data.is_empty() && sender.send.acked.is_empty());
    }
}
