//! Private keys on another machine: a signer has them, and signs the handshakes of gateways.
//!
//! `protocol` is what both sides say. On the gateway's side `remote_key` is a key as TLS sees it, `link` asks the signer on a thread of its
//! own, and `waiting` is where handshakes wait, so that nothing else does. On the signer's side `config` says which keys there are,
//! `server` answers.

mod config;
mod error;
mod link;
mod protocol;
pub mod reference;
mod remote_key;
mod server;
mod waiting;

pub use self::{
    config::{SignerConfig, SignerIdentity},
    error::{SignerError, SignerStartError},
    server::{SignerServer, check},
};
pub(crate) use self::{
    link::{Link, probe},
    protocol::KeyId,
    remote_key::{RemoteKey, is_usable, key_id},
    waiting::Waiting,
};
