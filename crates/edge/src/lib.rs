//! The gateway: HTTP/3, HTTP/2, HTTP/1.1 and private protocols over QUIC, to back ends.
//!
//! The files in the order in which a request meets them: [`config`] says what there is; [`process`] makes it run, reloads and
//! drains it, and `setup` says what does not work; `worker` is a thread with its runtime; `memory` bounds what clients can make it hold; `listen` accepts connections and gives them their `context`, `certificate` reads certificates, `client_certificate` verifies those of clients, `tls` shows them, which `acme` gets from an authority, `admission` counts,
//! `offers` remembers who was told of HTTP/3, `fallback` who comes without it, and why;
//! `policy` says how QUIC sends;
//! `site` is what a route does around its handler: redirections, header fields, compression, pages for errors;
//! `gateway` takes the request of a `peer`, which may be a proxy that `forwarded` believes; the request's `path` gets the one form that is compared and sent, through `route`, and `guard` with `rate`s and `password`s, to `upstream` or `files`, which keeps what is asked for often; `fields` is what of a message goes on from one connection to the next, `body` its
//! content, and `ending` why a request ended; `stream` carries `stream_halves` of other protocols to their `stream_target` over a `tcp_back_end`, `qmux` where
//! they come over TCP; `masque` tunnels UDP and TCP to targets that clients name, and `sessions` has those of WebTransport; an `activity` says how long a tunnel has been silent;
//! [`keys`] is what several gateways share, and [`balance`] what stands in front of them; `folder` is where nobody else writes; `capture` shows single connections to operators; `observe` writes the access log and the figures of
//! [`metrics`]; [`admin`] is how an operator talks to it.
//!
//! Everything that a configuration decides hangs on a *generation*. A reload builds the next one beside the one that is in
//! use, and only when all of it works it takes its place; what began under a generation ends under it.
//!
//! Linux only: files are opened beneath their directory by the kernel (`openat2`), sockets are sharded and drained by it.
#![cfg(target_os = "linux")]

mod access;
mod acme;
mod activity;
pub mod admin;
mod admission;
pub mod balance;
mod body;
mod capture;
mod certificate;
mod client_certificate;
pub mod config;
mod context;
mod ending;
mod fallback;
mod fields;
mod files;
mod folder;
mod forwarded;
mod gateway;
mod generation;
mod guard;
pub mod keys;
mod listen;
mod masque;
mod memory;
pub mod metrics;
mod network;
mod observe;
mod offers;
mod password;
mod path;
mod peer;
mod policy;
pub mod process;
mod profile;
mod qmux;
mod rate;
mod register;
mod resolve;
mod room;
mod route;
mod services;
mod sessions;
mod setup;
mod site;
mod stream;
mod stream_halves;
mod stream_target;
mod tcp_back_end;
mod tls;
mod trust;
pub mod upgrade;
mod upstream;
mod worker;

pub use access::{TokenFault, TokensError};
pub use certificate::CertificateError;
pub use config::{Config, ConfigCause, ConfigError};
pub use password::{PasswordFault, PasswordsError};
pub use process::{Process, ProcessError};
pub use setup::SetupError;
pub use trust::RootsError;
pub use upgrade::UpgradeError;
