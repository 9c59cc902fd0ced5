//! Evidence: what the exchanges showed, without any judgement. Everything here is in the JSON output.

use serde::Serialize;

use super::arrivals::{ArrivalFacts, Stall};

/// Transport of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// HTTP/3 over QUIC.
    H3,
    /// HTTP/2 over TLS on the kernel's TCP.
    H2,
}

impl Transport {
    pub(super) const BOTH: [Self; 2] = [Self::H3, Self::H2];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::H3 => "HTTP/3",
            Self::H2 => "HTTP/2",
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::H3 => Self::H2,
            Self::H2 => Self::H3,
        }
    }
}

/// Reason why an exchange was ended before the whole object was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Cut {
    /// Share of `--time` used up.
    Time,
    /// Share of `--bytes` used up.
    Bytes,
}

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fault {
    /// The server answered with a status other than 2xx.
    Status,
    /// The server, or a device before it, refused the connection or the request.
    Refused,
    /// Nothing came in time.
    Silence,
    /// Anything else, such as a reset or a violation of the protocol.
    Other,
}

/// One transfer of the object on a connection of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Exchange {
    pub(super) transport: Transport,
    /// Number of the round, from 0.
    pub(super) round: u32,
    /// `h3`, `h2` or `http/1.1`, once there was an answer.
    pub(super) protocol: Option<&'static str>,
    /// Handshake: that of QUIC, or those of TCP and TLS together.
    pub(super) handshake_ms: Option<f64>,
    /// From the first packet to the header section of the response.
    pub(super) first_byte_ms: Option<f64>,
    /// From the first packet to the last byte.
    pub(super) seconds: f64,
    /// Bytes of content.
    pub(super) bytes: u64,
    /// `None`: the whole object came, or an error ended it.
    pub(super) cut: Option<Cut>,
    /// Round trips of further requests (HEAD) on the connection during the transfer, each to the header section of its response.
    pub(super) loaded_ms: Vec<f64>,
    pub(super) cpu: Option<CpuFacts>,
    /// Arrivals of content; `None` where too little came for a rate.
    pub(super) arrivals: Option<ArrivalFacts>,
    pub(super) quic: Option<QuicFacts>,
    pub(super) tcp: Option<TcpFacts>,
    /// Datagrams came after the time was used up, when the server was asked again; `None`: it was not asked.
    pub(super) path_answers: Option<bool>,
    pub(super) fault: Option<Fault>,
    pub(super) error: Option<String>,
}

impl Exchange {
    /// Returns whether the server was asked for the object and did not refuse: a refusal says nothing about speed.
    pub(super) fn is_comparable(&self) -> bool {
        !matches!(self.fault, Some(Fault::Status | Fault::Refused))
    }

    /// Returns whether the answer was complete, and had no content.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.cut.is_none() && self.error.is_none()
    }

    /// Seconds that `bytes` bytes take at the speed of this exchange; infinite where nothing came.
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
    pub(super) fn seconds_for(&self, bytes: u64) -> f64 {
        if self.bytes >= bytes && self.error.is_none() {
            return self.seconds;
        }
        // What an error broke off would not have come to an end.
        if self.bytes == 0 || self.error.is_some() {
            return f64::INFINITY;
        }
        self.seconds * bytes as f64 / self.bytes as f64
    }

    /// Goodput after the header section, in bit/s.
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
    pub(super) fn goodput(&self) -> Option<f64> {
        let span = self.seconds - self.first_byte_ms? / 1e3;
        (self.bytes > 0 && span > 0.0).then(|| self.bytes as f64 * 8.0 / span)
    }
}

/// Time of the thread that receives, as shares of the time of the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct CpuFacts {
    /// Running.
    pub(super) ran: f64,
    /// Ready, and waiting for a CPU.
    pub(super) waited: f64,
}

/// Facts of a QUIC connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct QuicFacts {
    /// The handshake was complete.
    pub(super) connected: bool,
    pub(super) handshake_ms: Option<f64>,
    /// Packets of a handshake that is not complete.
    pub(super) handshake: Option<HandshakeFacts>,
    /// The server asked for a token first (Retry).
    pub(super) retry: bool,
    /// The server did not support the version.
    pub(super) version_negotiation: bool,
    /// Datagrams received.
    pub(super) datagrams: u64,
    /// The largest, in bytes of UDP payload.
    pub(super) largest_datagram: u64,
    /// 1-RTT packet numbers that the server used, as far as is known.
    pub(super) numbers: u64,
    /// Packet numbers that never came: lost on the way, or skipped by the server.
    pub(super) missing: u64,
    /// Packets lost: as many of them as packets that sent data again.
    pub(super) lost: u64,
    /// Share of the gaps between lost packets that are shorter than ten packets; independent losses are further apart.
    pub(super) lost_together: Option<f64>,
    /// Packets that came after later ones.
    pub(super) late: u64,
    /// Packets that came after three later ones, which senders take for lost.
    pub(super) late_by_three: u64,
    /// Stream bytes received.
    pub(super) stream_bytes: u64,
    /// Bytes among them that had been received before: the server took them for lost.
    pub(super) stream_bytes_again: u64,
    /// From the first to the last new data of the object.
    pub(super) data_ms: Option<f64>,
    /// Time in it for which the server had no credit to send; `None` where it opened more streams than are followed.
    pub(super) blocked_ms: Option<f64>,
    /// DATA_BLOCKED and STREAM_DATA_BLOCKED frames received.
    pub(super) blocked_frames: u64,
    pub(super) rtt_min_ms: Option<f64>,
    /// Median of the samples.
    pub(super) rtt_median_ms: Option<f64>,
    pub(super) rtt_samples: usize,
    /// Ack-eliciting packets received.
    pub(super) eliciting_received: u64,
    /// ACK frames sent.
    pub(super) acks_sent: u64,
    /// ACK_FREQUENCY frames received.
    pub(super) ack_requests: u64,
    /// Highest threshold among them, in packets.
    pub(super) ack_threshold: Option<u64>,
    /// Ack-eliciting packets sent.
    pub(super) eliciting_sent: u64,
    /// Packets sent that were declared lost.
    pub(super) sent_lost: u64,
    /// Arrivals of packets with data of the object.
    pub(super) arrivals: Option<ArrivalFacts>,
    pub(super) stalls: Vec<Stall>,
    /// Time in silences longer than a round trip across which nothing was lost.
    pub(super) pauses_ms: Option<f64>,
    /// Packets after the last new data of the object.
    pub(super) tail: Tail,
}

/// Initial and Handshake packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct HandshakeFacts {
    /// Ack-eliciting packets of this end.
    pub(super) sent: u64,
    /// Those among them that were not acknowledged.
    pub(super) unacknowledged: u64,
    /// Packets of the server that came.
    pub(super) received: u64,
    /// Packet numbers between them that did not come.
    pub(super) missing: u64,
}

impl HandshakeFacts {
    /// Packets of both sides that did not arrive, as far as is known here.
    pub(super) const fn lost(&self) -> u64 {
        self.unacknowledged + self.missing
    }

    /// Packets of both sides.
    pub(super) const fn packets(&self) -> u64 {
        self.sent + self.received + self.missing
    }
}

/// Packets without new data at the end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tail {
    pub(super) packets: u64,
    /// The largest, in bytes.
    pub(super) largest: usize,
    /// Packets that were missing at the end and not at the last new data.
    pub(super) missing: usize,
}

/// Facts of a TCP connection, from `TCP_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct TcpFacts {
    pub(super) rtt_min_ms: Option<f64>,
    /// Median over the transfer of the receiver's estimate.
    pub(super) rtt_median_ms: Option<f64>,
    /// Packets received with data.
    pub(super) packets: u32,
    /// Packets among them that came beyond a gap.
    pub(super) out_of_order: u32,
}

/// Ways in which a client can learn of HTTP/3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Discovery {
    /// The HTTPS record offers HTTP/3; `None`: it was not asked for.
    pub(super) record: Option<bool>,
    /// `alt-svc` of the response over TCP.
    pub(super) alt_svc: Option<String>,
    /// Address of QUIC.
    pub(super) address: Option<std::net::SocketAddr>,
}

impl Discovery {
    pub(super) fn is_announced(&self) -> bool {
        self.record == Some(true) || self.alt_svc.is_some()
    }
}

/// Outcome of a resumed session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Resumption {
    /// `none`, `offered`, `accepted` or `rejected`.
    pub(super) early_data: &'static str,
    /// From the first packet to the header section.
    pub(super) first_byte_ms: f64,
}

/// Measurements of all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Evidence {
    pub(super) discovery: Discovery,
    /// In the order in which they were made.
    pub(super) exchanges: Vec<Exchange>,
    /// Bytes that each exchange was to transfer.
    pub(super) wanted: u64,
    /// HTTP/3 with a ticket of a connection before.
    pub(super) resumption: Option<Resumption>,
    /// Rounds that were asked for.
    pub(super) rounds: u32,
    /// Reason why there are fewer.
    pub(super) ended_early: Option<String>,
}

impl Evidence {
    /// Exchanges over a transport.
    pub(super) fn of(&self, transport: Transport) -> impl Iterator<Item = &Exchange> + Clone {
        self.exchanges.iter().filter(move |exchange| exchange.transport == transport)
    }
}
