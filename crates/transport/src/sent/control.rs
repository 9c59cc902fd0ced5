//! Table of control frames. A row names the record that the ledger keeps of a frame, its source, and the command that processes the peer's
//! frame.
//!
//! CONTRIBUTING.md has the steps to add a frame.

/// Passes the rows of the table, in the order in which the frames are written, to the macro `$to`, behind `$args`.
///
/// A row has:
///
/// - the variant of [`ControlFrame`] and of [`wire::Frame`], with what the record holds to name the state that was sent;
/// - the source, a field of the connection's `Sources` or `Identity` that implements `FrameSource`;
/// - the fields of the peer's frame, and the method of the connection that takes them. Without it, `handle_control_frame`
///   has an arm for the frame.
macro_rules! control_frames {
    ($to:ident $($args:tt)*) => {
        $to! { $($args)*
            /// The peer was asked to acknowledge in another rhythm, in the request with this number.
            AckFrequency(u64): sources.ack_requests,
                { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => on_ack_frequency;
            /// The handshake is confirmed.
            HandshakeDone: sources.control.handshake_done, {} => on_handshake_done;
            /// The connection ID with this sequence number was issued.
            NewConnectionId(u64): identity.local_ids,
                { sequence, retire_prior_to, cid, reset_token } => on_new_connection_id;
            /// Retired connection ID of the peer, by sequence number.
            RetireConnectionId(u64): identity.remote_ids, { sequence } => on_retire_connection_id;
            /// A PING that has to be sent again when lost (keep-alive, liveness); others are not recorded.
            Ping: sources.control.ping;
            /// A token for the next connection.
            NewToken: sources.control.token, { token } => on_new_token;
        }
    };
}
pub(crate) use control_frames;

/// Declares [`ControlFrame`] from the rows.
macro_rules! records {
    ($(
        $(#[$doc:meta])* $name:ident $(($number:ty))?: $root:ident $(.$field:ident)+
        $(, { $($peer:ident),* } => $obey:ident)?;
    )+) => {
        /// Record of a control frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ControlFrame {
            $($(#[$doc])* $name $(($number))?,)+
        }
    };
}
control_frames!(records);
