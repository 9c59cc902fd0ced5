//! A signer: has private keys, and signs the handshakes of gateways on other machines.
//!
//! `config` names the keys, which the `state` has: those of files, and those of a `token`. `server` accepts gateways and answers their
//! `requests`; `counters` count both. The protocol, and the gateway's side of it, are in `remote_signer`.

mod config;
mod counters;
mod error;
pub mod reference;
mod requests;
mod server;
mod state;
mod token;

pub use self::{
    config::{SignerConfig, SignerIdentity},
    error::SignerStartError,
    server::{SignerServer, check},
    token::{Pkcs11Token, TokenError},
};
pub use crate::remote_signer::{SignerError, SignerLinkError};
