//! A signer: has private keys, and signs the handshakes of gateways on other machines.
//!
//! `config` says which keys there are, and `server` answers. The protocol, and the gateway's side of it, are in `remote_signer`.

mod config;
mod error;
pub mod reference;
mod server;

pub use self::{
    config::{SignerConfig, SignerIdentity},
    error::SignerStartError,
    server::{SignerServer, check},
};
pub use crate::remote_signer::{SignerError, SignerLinkError};
