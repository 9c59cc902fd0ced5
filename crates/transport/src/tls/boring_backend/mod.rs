//! Backend on BoringSSL, for two functions that rustls lacks: client tickets in a file for another process, and an external private key of
//! a server that answers later.
//!
//! It is the feature `boringssl`, off by default: BoringSSL is built from source with cmake, a C++ compiler and libclang. Secrets go to the
//! transport as with rustls, and the same code protects packets. The same [`Tickets`](super::rustls_backend::Tickets) seal and open a
//! server's tickets and guard against replays. The session in a ticket has the library's format, so with a common ring each backend refuses
//! the other's tickets and makes a full handshake.
//!
//! Only with rustls: client certificates, a choice of cipher suites (BoringSSL orders those of TLS 1.3 itself), a choice of certificates by
//! name (put [`choose`](super::choose) in front), a key log.

mod config;
mod key;
mod library;
mod session;
mod signer;
mod state;
#[cfg(test)]
mod tests;
mod ticket;

pub use config::{BoringClient, BoringServer, ClientBuilder, ServerBuilder};
pub use signer::{Signature, Signer};
