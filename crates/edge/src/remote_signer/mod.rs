//! Private keys on another machine, for the gateway that has handshakes signed there; `signer` is the other side.
//!
//! `remote_key` is a key as TLS sees it, `link` asks the signer on a thread of its own in the words of the `protocol`, and `waiting` is
//! where handshakes wait, so that nothing else does.

mod error;
mod link;
pub(crate) mod protocol;
mod remote_key;
mod waiting;

pub use self::error::{SignerError, SignerLinkError};
pub(crate) use self::{
    link::{Link, LinkConfig, probe},
    protocol::KeyId,
    remote_key::{RemoteKey, is_usable, key_id, schemes},
    waiting::Waiting,
};
