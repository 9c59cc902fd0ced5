//! Identity of a connection on the wire: version, connection IDs, and tokens of its addresses.

use std::sync::Arc;

use units::{Instant, RandomStream};
use wire::{ConnectionId, Frame, ResetToken, Writer};

use super::{
    Connection, Origin,
    control::{FrameSource, write_one},
    receive::PacketSeen,
    versions::Versions,
};
use crate::{
    cid::{LocalIds, RemoteIds},
    config::{ClientConfig, ServerConfig},
    error::TransportError,
    handshake::ExpectedIds,
    sent::ControlFrame,
    token::Tokens,
    token_store::{TokenOwner, TokenStore},
};

/// Owns what names a connection and its addresses.
pub(super) struct Identity {
    pub(super) version: u32,
    /// Until the handshake is confirmed.
    pub(super) versions: Option<Box<Versions>>,
    pub(super) local_ids: LocalIds,
    pub(super) remote_ids: RemoteIds,
    /// Destination ID of the client's very first packet, before a Retry. A client has the server confirm it.
    pub(super) original_dcid: Option<ConnectionId>,
    /// Destination of clients before they know the server's ID. It routes here to the end: a copy of the first packet that
    /// the network delivers late must not start another connection.
    first_dcid: Option<ConnectionId>,
    /// The IDs that the peer has to confirm in its transport parameters.
    pub(super) expected: ExpectedIds,
    /// Seals the tokens of a server.
    tokens: Arc<Tokens>,
    /// The token that a client shows in its Initial packets.
    pub(super) token: Vec<u8>,
    /// Store of the tokens that a client is given, and the server's name.
    token_store: Option<Box<(Arc<dyn TokenStore>, String)>>,
    /// A server that gives its client a token for the next connection.
    gives_token: bool,
}

impl Identity {
    pub(super) fn new(version: u32, local_ids: LocalIds, remote_ids: RemoteIds, tokens: Arc<Tokens>) -> Self {
        Self {
            version,
            versions: None,
            local_ids,
            remote_ids,
            original_dcid: None,
            first_dcid: None,
            expected: ExpectedIds::default(),
            tokens,
            token: Vec::new(),
            token_store: None,
            gives_token: false,
        }
    }

    /// A client addresses `dcid` first.
    pub(super) fn begin_client(&mut self, config: &ClientConfig, dcid: ConnectionId, server_name: &str) {
        self.versions = Versions::new(config.version, &config.versions, dcid, config.reacts);
        self.original_dcid = Some(dcid);
        self.set_tokens(config, server_name);
    }

    /// A server answers a client.
    pub(super) fn begin_server(&mut self, config: &ServerConfig, origin: &Origin) {
        self.versions = Versions::new(origin.version, &[], origin.initial_dcid, false);
        self.expected.initial_source = Some(origin.peer);
        self.first_dcid = Some(origin.initial_dcid);
        self.gives_token = config.send_token;
        self.original_dcid = Some(origin.original_dcid);
    }

    /// Takes a client's token for `server_name`, and remembers where it stores new ones.
    fn set_tokens(&mut self, config: &ClientConfig, server_name: &str) {
        // RFC 9000 §8.1.3 SHOULD-2: a client that has a token for the server shows it
        // RFC 9000 §8.1.3 MUST NOT-3: and to no other server
        self.token.clone_from(&config.token);
        if let (true, Some(store)) = (config.token.is_empty(), &config.tokens) {
            let owner = TokenOwner { server_name, version: config.version };
            self.token = store.take(owner).unwrap_or_default();
        }
        self.token_store = config.tokens.clone().map(|store| Box::new((store, server_name.to_owned())));
    }

    /// Stores a token for the next connection of a client.
    // RFC 9001 §9.2 MUST-2: tickets and tokens are opaque to a client
    pub(super) fn keep_token(&self, token: &[u8]) {
        if let Some((store, server_name)) = self.token_store.as_deref() {
            store.put(TokenOwner { server_name, version: self.version }, token);
        }
    }

    /// A NEW_TOKEN token for the client at `remote`, if this server gives one.
    pub(super) fn new_token(
        &self,
        random: &mut RandomStream,
        now: Instant,
        remote: std::net::SocketAddr,
    ) -> Option<Vec<u8>> {
        self.gives_token.then(|| self.tokens.new_token(random, now, self.version, remote))
    }

    /// Checks the peer's source ID in a long header. `false` when the packet has to be discarded.
    // RFC 9000 §7.2 MUST-2, MUST-3, MUST-4, MUST-6: the peer's source ID of its first authentic packet is what it wants to
    // be called; packets with another are discarded from then on.
    pub(super) fn accept_source(&mut self, scid: ConnectionId) -> bool {
        match self.expected.initial_source {
            None => {
                self.expected.initial_source = Some(scid);
                self.remote_ids.replace_first(scid);
                true
            }
            Some(known) => known == scid,
        }
    }

    /// Returns whether a client that has received no other packet accepts Version Negotiation with these versions.
    // RFC 8999 §6 MUST-2: one that names no version is ignored.
    // RFC 8999 §6 MUST-1: unused bits of Version Negotiation mean nothing
    // RFC 9000 §17.2.1 MUST-1: the unused bits of Version Negotiation mean nothing to a client
    // RFC 9368 §4 MUST-1: Version Negotiation that offers the version in use is ignored
    // RFC 9368 §4 MUST-2: nor does it count in an attempt that already follows from one.
    pub(super) fn minds_negotiation(&self, offered: &[u32]) -> bool {
        let reacts = self.versions.as_ref().is_some_and(|versions| versions.reacts());
        !reacts && !offered.is_empty() && !offered.contains(&self.version)
    }

    /// A client follows a Retry.
    pub(super) fn follow_retry(&mut self, scid: ConnectionId, token: Vec<u8>) {
        // RFC 9369 §4.1 MUST NOT-1: what answers it is of the same version, with the token
        // RFC 9000 §8.1.3 MUST NOT-1: a token from a Retry is not kept for later connections
        // RFC 9000 §8.1.3 MUST-3: a token from a Retry is used at once
        self.token = token;
        self.expected.retry_source = Some(scid);
        // RFC 9000 §7.2 MUST-4: the destination ID changes for the first Initial and for a Retry only
        // RFC 9000 §17.2.5.1 MUST-2: what follows a Retry goes to the ID that it brought
        self.remote_ids.replace_first(scid);
        if let Some(versions) = &mut self.versions {
            versions.initial_dcid = scid;
        }
    }

    /// Every ID that datagrams for this connection may be addressed to.
    pub(super) fn routed_ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.local_ids.iter().chain(self.first_dcid)
    }

    /// Connection IDs of this connection: the one that the client addressed first, then those of this endpoint.
    pub(super) fn known_ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.original_dcid.into_iter().chain(self.local_ids.iter())
    }

    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.local_ids.shrink();
        self.remote_ids.shrink();
    }
}

impl Connection {
    /// Obeys a NEW_CONNECTION_ID frame.
    pub(super) fn on_new_connection_id(
        &mut self,
        now: Instant,
        _seen: &PacketSeen<'_>,
        sequence: u64,
        retire_prior_to: u64,
        cid: ConnectionId,
        reset_token: ResetToken,
    ) -> Result<(), TransportError> {
        self.packets.identity.remote_ids.on_new(sequence, retire_prior_to, cid, reset_token)?;
        // The ID in use may be another, of another length.
        self.fit_datagrams();
        if self.packets.sources.handshake.is_confirmed() {
            self.consider_preferred_address(now);
        }
        Ok(())
    }

    /// Obeys a RETIRE_CONNECTION_ID frame.
    pub(super) fn on_retire_connection_id(
        &mut self,
        _now: Instant,
        seen: &PacketSeen<'_>,
        sequence: u64,
    ) -> Result<(), TransportError> {
        self.packets.identity.local_ids.on_retire(sequence, seen.dcid)
    }
}

impl FrameSource for LocalIds {
    #[inline]
    fn wants_to_send(&self) -> bool {
        LocalIds::wants_to_send(self)
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        while let Some(issued) = self.next_announcement() {
            let frame = Frame::NewConnectionId {
                sequence: issued.sequence,
                retire_prior_to: self.retire_prior_to(issued.sequence),
                cid: issued.id,
                reset_token: issued.reset_token,
            };
            if !write_one(w, &frame, || record(ControlFrame::NewConnectionId(issued.sequence))) {
                return false;
            }
            self.announced();
        }
        true
    }

    fn on_acked(&mut self, _frame: &ControlFrame) {}

    fn on_lost(&mut self, frame: &ControlFrame) {
        if let ControlFrame::NewConnectionId(sequence) = frame {
            LocalIds::on_lost(self, *sequence);
        }
    }
}

impl FrameSource for RemoteIds {
    #[inline]
    fn wants_to_send(&self) -> bool {
        self.next_retirement().is_some()
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        // RFC 9000 §19.16 MUST NOT-1: the ID that a packet is addressed to is not retired in it
        while let Some(sequence) = self.next_retirement() {
            let frame = Frame::RetireConnectionId { sequence };
            if !write_one(w, &frame, || record(ControlFrame::RetireConnectionId(sequence))) {
                return false;
            }
            self.retirement_sent();
        }
        true
    }

    fn on_acked(&mut self, frame: &ControlFrame) {
        if let ControlFrame::RetireConnectionId(sequence) = frame {
            RemoteIds::on_acked(self, *sequence);
        }
    }

    fn on_lost(&mut self, frame: &ControlFrame) {
        if let ControlFrame::RetireConnectionId(sequence) = frame {
            RemoteIds::on_lost(self, *sequence);
        }
    }

    fn is_repeated(&self) -> bool {
        false
    }
}
