//! Invariants that hold for any bytes at all. The fuzz targets in `fuzz/`, the replay of their corpora and the random tests
//! share these checks, so that an input found by one is judged the same by the others.

use wire::{
    Ack, Frame, FrameErrorKind, Frames, Header, LongHeader, Side, TransportParameters, Writer, encode_retry,
    encode_version_negotiation, frame_type, header, long_dcid, patch_length, short_dcid,
};

/// Reads the bytes as the payload of a packet. Every frame lies inside it, comes back when written again, and the first
/// error is the last thing that is read.
pub(crate) fn frames(payload: &[u8]) {
    let mut frames = Frames::new(payload);
    let mut position = 0;
    while let Some(frame) = frames.next() {
        assert!(frames.position() > position && frames.position() <= payload.len());
        position = frames.position();
        match frame {
            Ok(frame) => one_frame(&frame),
            Err(error) => {
                assert_eq!(frames.next(), None, "nothing is read after {error}");
                // What is reported as unknown must not be a type that could have been read.
                if error.kind == FrameErrorKind::Unknown {
                    assert!(
                        error.frame_type > frame_type::IMMEDIATE_ACK
                            && !EXTENSIONS.contains(&error.frame_type)
                            && error.frame_type & !frame_type::DATAGRAM_LEN != frame_type::DATAGRAM
                    );
                }
            }
        }
    }
    assert_eq!(position, payload.len());
}

/// Types beyond those of RFC 9000 that can be read.
const EXTENSIONS: [u64; 6] = [
    frame_type::ACK_FREQUENCY,
    frame_type::ACK_RECEIVE_TIMESTAMPS,
    frame_type::ACK_RECEIVE_TIMESTAMPS_ECN,
    frame_type::SOURCE_SYMBOL,
    frame_type::REPAIR,
    frame_type::SYMBOL_ACK,
];

fn one_frame(frame: &Frame<'_>) {
    if let Frame::Ack(ack) = frame {
        ack_ranges(ack);
    }
    let mut buf = vec![0; frame.encoded_len()];
    let mut w = Writer::new(&mut buf);
    frame.encode(&mut w);
    assert_eq!(w.remaining(), 0, "{frame:?} has another length than encoded_len says");
    let mut again = Frames::new(w.written());
    assert_eq!(again.next(), Some(Ok(*frame)));
    assert_eq!(again.next(), None);
}

fn ack_ranges(ack: &Ack<'_>) {
    let ranges: Vec<_> = ack.ranges().collect();
    assert_eq!(ranges.len(), ack.range_count());
    assert_eq!(*ranges[0].end(), ack.largest);
    assert!(ranges.iter().all(|range| range.start() <= range.end()));
    assert!(
        ranges.windows(2).all(|pair| pair[1].end() + 1 < *pair[0].start()),
        "at least one packet is missing between ranges"
    );

    // Written from its ranges, the frame says the same.
    let count = ranges.len().min(1 << 14);
    let mut buf = vec![0; 64 + 16 * count];
    let mut w = Writer::new(&mut buf);
    assert_eq!(Ack::encode(&mut w, ack.delay, ranges.iter().cloned(), count, ack.ecn, usize::MAX), count);
    let Some(Ok(Frame::Ack(again))) = Frames::new(w.written()).next() else { panic!("{ack:?} does not come back") };
    assert_eq!((again.largest, again.delay, again.ecn), (ack.largest, ack.delay, ack.ecn));
    assert!(again.ranges().eq(ranges.into_iter().take(count)));
}

/// Reads all but the first byte as a datagram, packet after packet; the first byte says how long connection IDs in
/// short headers are. Every offset lies inside the packet, and every packet comes back when written again.
pub(crate) fn headers(data: &[u8]) {
    let Some((&first, mut datagram)) = data.split_first() else { return };
    let short_dcid_len = usize::from(first % 22);
    while let Ok(header) = Header::parse(datagram, short_dcid_len) {
        let packet_len = header.packet_len();
        assert!(packet_len > 0 && packet_len <= datagram.len());
        one_header(&header, &datagram[..packet_len], short_dcid_len);
        datagram = &datagram[packet_len..];
    }
}

fn one_header(header: &Header, packet: &[u8], short_dcid_len: usize) {
    let mut buf = vec![0; packet.len() + 64];
    let mut w = Writer::new(&mut buf);
    match header.clone() {
        Header::Long { ty, version, dcid, scid, token, pn_offset, packet_len } => {
            assert!(token.end < pn_offset && pn_offset <= packet_len);
            assert_eq!(long_dcid(packet), Some(dcid.as_slice()));
            let pos = LongHeader { ty, version, dcid, scid }.encode(&mut w, &packet[token.clone()], 0, 1);
            let end = w.position();
            patch_length(&mut buf, &pos, end);
            let Ok(Header::Long { ty: t, version: v, dcid: d, scid: s, token: tok, packet_len, .. }) =
                Header::parse(&buf[..end], 0)
            else {
                panic!("{header:?} does not come back")
            };
            assert_eq!((t, v, d, s, packet_len), (ty, version, dcid, scid, end));
            assert_eq!(buf[tok], packet[token]);
        }
        Header::Short { dcid, pn_offset, packet_len } => {
            assert_eq!((pn_offset, packet_len), (1 + short_dcid_len, packet.len()));
            assert_eq!(short_dcid(packet, short_dcid_len), Some(dcid.as_slice()));
            assert_eq!(long_dcid(packet), None);
        }
        Header::Retry { version, dcid, scid, token, tag_offset, packet_len } => {
            assert_eq!((token.end, tag_offset + header::RETRY_TAG_LEN), (tag_offset, packet_len));
            encode_retry(&mut w, version, &dcid, &scid, &packet[token]);
            w.bytes(&packet[tag_offset..]);
            assert_eq!(Header::parse(w.written(), 0).as_ref(), Ok(header));
        }
        Header::VersionNegotiation { dcid, scid, versions, packet_len } => {
            assert_eq!(long_dcid(packet), Some(&packet[dcid.clone()]));
            assert_eq!(versions.end, packet_len);
            let versions: Vec<u32> = header::versions(&packet[versions]).collect();
            encode_version_negotiation(&mut w, packet[0], &packet[dcid], &packet[scid], &versions);
            assert_eq!(w.written()[1..], packet[1..]);
        }
        Header::UnknownVersion { version, dcid, scid, packet_len } => {
            assert!(!wire::version::is_known(version));
            assert_eq!(long_dcid(packet), Some(&packet[dcid.clone()]));
            assert!(dcid.end < scid.start && scid.end <= packet_len);
        }
    }
}

/// Reads the bytes as transport parameters of either side. What is accepted comes back when written again, with and
/// without a reserved parameter among it.
pub(crate) fn transport_parameters(bytes: &[u8]) {
    for sender in [Side::Client, Side::Server] {
        let Ok(parameters) = TransportParameters::decode(sender, bytes) else { continue };
        for grease in [None, Some(bytes.len() as u64)] {
            let mut out = Vec::new();
            parameters.encode(&mut out, sender, grease);
            assert_eq!(TransportParameters::decode(sender, &out).as_ref(), Ok(&parameters));
        }
    }
}
