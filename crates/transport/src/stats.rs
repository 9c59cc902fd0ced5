//! Statistics of a connection: one table with name, unit and meaning of each figure.
//!
//! qlog, metrics, the lab and dashboards read this table; nothing is counted in a second place.

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Bits per second.
    BitsPerSecond,
}

/// Kind of a figure: one that only grows, or one that goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counts since the start of the connection.
    Counter,
    /// The value of this moment.
    Gauge,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name in every output.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Counter or gauge.
    pub kind: Kind,
    /// Meaning of the figure.
    pub meaning: &'static str,
}

macro_rules! figures {
    ($($name:ident: $kind:ident, $unit:ident, $meaning:literal;)*) => {
        /// All figures of a connection at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        /// The table of figures, in the order of [`Stats::values`].
        pub const FIGURES: &[Figure] = &[
            $(Figure { name: stringify!($name), unit: Unit::$unit, kind: Kind::$kind, meaning: $meaning },)*
        ];

        impl Stats {
            /// The values, in the order of [`FIGURES`].
            pub fn values(&self) -> [u64; FIGURES.len()] {
                [$(self.$name,)*]
            }

            /// Adds the values of another connection.
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

figures! {
    datagrams_sent: Counter, Count, "UDP payloads sent";
    datagrams_received: Counter, Count, "UDP payloads received for this connection";
    bytes_sent: Counter, Bytes, "UDP payload bytes sent";
    bytes_received: Counter, Bytes, "UDP payload bytes received for this connection";
    header_bytes_sent: Counter, Bytes, "headers and authentication tags of packets sent, but for those of probes and of repair";
    ack_bytes_sent: Counter, Bytes, "frames sent that acknowledge packets, or report what repair has rebuilt";
    crypto_bytes_sent: Counter, Bytes, "CRYPTO frames sent, retransmissions included";
    control_bytes_sent: Counter, Bytes, "frames sent beside data and acknowledgements: flow control, connection IDs, tokens, closes";
    probe_bytes_sent: Counter, Bytes, "packets sent to try a path or a datagram size, whole, and PING frames of other probes";
    padding_bytes_sent: Counter, Bytes, "padding sent, but for that of probes and of repair";
    bytes_unsealed: Counter, Bytes, "bytes of packets that were built and could not be sealed: they are in no datagram";
    packet_bytes_received: Counter, Bytes, "bytes of the packets received that were authentic and new";
    duplicate_bytes_received: Counter, Bytes, "bytes of the packets received more than once";
    undecryptable_bytes_received: Counter, Bytes, "bytes of what could not be authenticated or read";
    unknown_address_bytes_received: Counter, Bytes, "bytes from addresses where the peer may not be";
    unopened_bytes_received: Counter, Bytes, "bytes of packets whose keys never came, or that found no room to wait for them";
    waiting_bytes_received: Gauge, Bytes, "bytes of the packets that wait for their keys";
    unsealed_bytes_received: Counter, Bytes, "bytes of Retry and Version Negotiation packets";
    ignored_bytes_received: Counter, Bytes, "bytes of packets for another connection, version or source ID, and what follows them in their datagrams";
    closing_bytes_received: Counter, Bytes, "bytes that came when the connection was closing";
    packets_sent: Counter, Count, "QUIC packets sent";
    packets_received: Counter, Count, "QUIC packets received, authenticated, and new";
    packets_duplicate: Counter, Count, "QUIC packets received more than once";
    packets_undecryptable: Counter, Count, "QUIC packets that could not be authenticated or read";
    packets_buffered: Counter, Count, "QUIC packets that were kept until their keys were there";
    packets_acked: Counter, Count, "packets of ours that the peer acknowledged";
    packets_lost: Counter, Count, "packets of ours that were declared lost";
    bytes_lost: Counter, Bytes, "bytes of the packets declared lost";
    packets_lost_randomly: Counter, Count, "packets declared lost without a sign of congestion, which the controller passed over";
    packets_lost_spuriously: Counter, Count, "packets declared lost that were acknowledged later";
    loss_detection_time: Counter, Nanoseconds, "time from sending to declaring lost, of all packets declared lost together";
    congestion_events: Counter, Count, "times the congestion controller reduced its window";
    persistent_congestion: Counter, Count, "times persistent congestion was found";
    probe_timeouts: Counter, Count, "probe timeouts that fired";
    silence_pings: Counter, Count, "PINGs sent because data was awaited and nothing arrived";
    ack_frames_sent: Counter, Count, "ACK frames sent";
    ack_frames_received: Counter, Count, "ACK frames received";
    ack_only_packets_sent: Counter, Count, "packets sent that carried nothing but an acknowledgement";
    ack_only_packets_received: Counter, Count, "packets received that asked for no acknowledgement themselves";
    ack_requests_sent: Counter, Count, "ACK_FREQUENCY frames sent: requests to acknowledge in another rhythm";
    ack_requests_acked: Counter, Count, "ACK_FREQUENCY frames that the peer has acknowledged";
    ack_requests_received: Counter, Count, "ACK_FREQUENCY frames received, obsolete ones included";
    immediate_acks_asked: Counter, Count, "IMMEDIATE_ACK frames sent";
    immediate_acks_received: Counter, Count, "IMMEDIATE_ACK frames received";
    receive_times_sent: Counter, Count, "receive times of the peer's packets that were reported to it";
    receive_times_received: Counter, Count, "receive times of packets of ours that the peer reported";
    stream_bytes_sent: Counter, Bytes, "stream payload sent, retransmissions included";
    stream_bytes_retransmitted: Counter, Bytes, "stream payload sent again";
    stream_header_bytes_sent: Counter, Bytes, "headers of STREAM frames sent";
    stream_bytes_received: Counter, Bytes, "stream payload received, duplicates included";
    stream_bytes_duplicate: Counter, Bytes, "stream payload received that had been received before";
    stream_bytes_unwanted: Counter, Bytes, "stream payload received that no application will read: of streams that were stopped, reset or over";
    stream_bytes_unread: Gauge, Bytes, "stream payload received and not read yet";
    stream_bytes_delivered: Counter, Bytes, "stream payload handed to the application";
    datagram_frames_sent: Counter, Count, "DATAGRAM frames sent";
    datagram_bytes_sent: Counter, Bytes, "payload of DATAGRAM frames sent";
    datagram_header_bytes_sent: Counter, Bytes, "headers of DATAGRAM frames sent";
    datagram_frames_queued: Counter, Count, "datagrams that the application handed over";
    datagram_frames_waiting: Gauge, Count, "datagrams that wait to be sent";
    datagram_frames_received: Counter, Count, "DATAGRAM frames received";
    datagram_frames_delivered: Counter, Count, "datagrams handed to the application";
    datagram_frames_unread: Gauge, Count, "datagrams received and not read yet";
    datagram_frames_lost: Counter, Count, "DATAGRAM frames in packets declared lost";
    datagram_frames_dropped: Counter, Count, "datagrams that left a full queue unsent or unread";
    datagram_frames_dropped_unsent: Counter, Count, "those of them that were to be sent: the queue was full, or no packet could hold them";
    datagram_frames_abandoned: Counter, Count, "datagrams that waited to be sent when the connection ended";
    datagram_frames_expired: Counter, Count, "datagrams that were worthless before they could be sent";
    fec_symbols_sent: Counter, Count, "packets sent that forward error correction protects: source symbols";
    fec_repairs_sent: Counter, Count, "packets sent with a repair symbol";
    fec_repair_bytes_sent: Counter, Bytes, "bytes of packets with a repair symbol";
    fec_header_bytes_sent: Counter, Bytes, "headers of source symbols sent, and what fills these up";
    fec_repairs_dropped: Counter, Count, "repair symbols that were due and lost their worth before they could be sent";
    fec_repair_rate: Gauge, Count, "repair symbols for a thousand source symbols at the moment; 0 when nothing is protected";
    fec_reviews: Counter, Count, "times that fec `auto` weighed what is worth protecting";
    fec_packets_recovered: Counter, Count, "packets of ours that were lost and rebuilt by the peer, and were not sent again";
    fec_packets_recovered_late: Counter, Count, "packets of ours that the peer rebuilt after they had been declared lost";
    fec_symbols_received: Counter, Count, "source symbols received";
    fec_repairs_received: Counter, Count, "repair symbols received";
    fec_symbols_recovered: Counter, Count, "source symbols that were lost and rebuilt at this end";
    fec_symbols_recovered_needlessly: Counter, Count, "those of them that arrived after all";
    fec_symbols_unrecovered: Counter, Count, "source symbols that were lost and left the memory of the decoder unrebuilt";
    fec_repairs_spare: Counter, Count, "repair symbols received when nothing was missing, or that told nothing new";
    fec_repairs_late: Counter, Count, "repair symbols received over symbols that the decoder had forgotten";
    fec_repairs_refused: Counter, Count, "repair symbols given up because what had arrived did not justify the work of decoding";
    fec_work: Counter, Count, "operations of decoding: bytes multiplied and added, and 32 for each term of an equation";
    fec_recovery_delay: Counter, Nanoseconds, "time from missing a symbol to having rebuilt it, of all rebuilt symbols together";
    handshake_time: Gauge, Nanoseconds, "time from the connection's first packet to the end of its handshake at this end; 0 before that";
    resumed: Gauge, Count, "1 when the handshake resumed a session";
    early_data_offered: Gauge, Count, "1 when the client offered early data";
    early_data_accepted: Gauge, Count, "1 when the server accepted early data";
    early_data_refused: Gauge, Count, "1 when the server refused early data";
    early_packets_sent: Counter, Count, "0-RTT packets sent";
    early_packets_received: Counter, Count, "0-RTT packets received, authenticated, and new";
    early_bytes_sent: Counter, Bytes, "bytes of the 0-RTT packets sent";
    early_bytes_received: Counter, Bytes, "bytes of frames in the 0-RTT packets received";
    key_updates: Counter, Count, "updates of the 1-RTT keys, by either side";
    ecn_failures: Counter, Count, "times that marking packets for ECN was given up on a path";
    ecn_confirmed: Counter, Count, "acknowledgements that counted our marks for ECN as they must";
    ecn_ce_marks: Counter, Count, "packets of ours that the network marked as having met congestion";
    packets_per_ack_asked: Gauge, Count, "packets per acknowledgement that the peer was asked for last; 2 unasked";
    ack_delay_asked: Gauge, Nanoseconds, "longest delay of an acknowledgement that the peer was asked for last, or promised";
    packets_per_ack_obeyed: Gauge, Count, "packets per acknowledgement that the peer has asked this end for, or the profile's";
    min_rtt: Gauge, Nanoseconds, "smallest round trip seen on the path in use";
    latest_rtt: Gauge, Nanoseconds, "round trip of the latest sample";
    smoothed_rtt: Gauge, Nanoseconds, "smoothed round trip";
    rtt_variation: Gauge, Nanoseconds, "mean deviation of the round trip";
    forward_delay_variation: Gauge, Nanoseconds, "mean one-way delay to the peer above its smallest of 5 to 10 s; needs receive times";
    reverse_delay_variation: Gauge, Nanoseconds, "mean one-way delay from the peer above its smallest of 5 to 10 s; needs receive times";
    forward_delay_variation_latest: Gauge, Nanoseconds, "the same of the latest packet that the peer reported";
    reverse_delay_variation_latest: Gauge, Nanoseconds, "the same of the latest acknowledgement";
    congestion_window: Gauge, Bytes, "bytes that may be in flight";
    bytes_in_flight: Gauge, Bytes, "bytes in flight";
    pacing_rate: Gauge, BitsPerSecond, "rate at which packets are released; 0 when not paced";
    delivery_rate: Gauge, BitsPerSecond, "largest delivery rate of the last round trips; 0 where the congestion controller keeps none";
    path_changes: Counter, Count, "times that another path came into use";
    path_failures: Counter, Count, "paths on which nobody answered in time";
    mtu_probes_sent: Counter, Count, "packets sent to try out a larger datagram size";
    mtu_probes_lost: Counter, Count, "those of them that were lost, which says nothing about congestion";
    mtu_black_holes: Counter, Count, "times that datagrams of a size that had arrived stopped to arrive";
    mtu: Gauge, Bytes, "largest UDP payload sent on the path in use";
}

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// Figures that a connection counts itself. All others are read from its parts when they are asked for, and take no memory in it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Counts {
            $(pub(crate) $name: u64,)*
        }

        impl Counts {
            /// The figures so far; 0 for those that are not counted here.
            pub(crate) fn stats(&self) -> Stats {
                Stats { $($name: self.$name,)* ..Stats::default() }
            }
        }
    };
}

counts! {
    datagrams_sent, datagrams_received, bytes_sent, bytes_received, header_bytes_sent, ack_bytes_sent, crypto_bytes_sent,
    control_bytes_sent, probe_bytes_sent, padding_bytes_sent, bytes_unsealed, packet_bytes_received, duplicate_bytes_received,
    undecryptable_bytes_received, unknown_address_bytes_received, unopened_bytes_received, unsealed_bytes_received,
    ignored_bytes_received, closing_bytes_received, packets_sent, packets_received, packets_duplicate, packets_undecryptable,
    packets_buffered, packets_acked, packets_lost, bytes_lost, packets_lost_randomly, packets_lost_spuriously,
    loss_detection_time, congestion_events, persistent_congestion, probe_timeouts, silence_pings, ack_frames_sent,
    ack_frames_received, ack_only_packets_sent, ack_only_packets_received, ack_requests_sent, ack_requests_received,
    immediate_acks_asked, immediate_acks_received, receive_times_received, stream_bytes_received, fec_header_bytes_sent,
    handshake_time, resumed, early_data_offered, early_data_accepted, early_data_refused, early_packets_sent,
    early_packets_received, early_bytes_sent, early_bytes_received, key_updates, ecn_failures, ecn_confirmed, ecn_ce_marks,
    path_changes, path_failures, mtu_probes_sent, mtu_probes_lost, mtu_black_holes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_values_agree() {
        let stats = Stats { mtu: 1452, datagrams_sent: 7, ..Stats::default() };
        let value = |name| {
            let place = FIGURES.iter().position(|f| f.name == name).unwrap();
            stats.values()[place]
        };
        assert_eq!((value("mtu"), value("datagrams_sent"), value("min_rtt")), (1452, 7, 0));
        let mut names: Vec<_> = FIGURES.iter().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len());
    }
}
