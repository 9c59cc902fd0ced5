//! The gateway: HTTP/3, HTTP/2, HTTP/1.1 and private protocols over QUIC, to back ends.
//!
//! The files in the order in which a request meets them: [`config`] says what there is; [`process`] makes it run, reloads and
//! drains it, and `setup` says what does not work; `worker` is a thread with its runtime; `memory` bounds what clients can make it hold; `listen` accepts connections and gives them their `context`, `certificate` reads certificates, `client_certificate` verifies those of clients, `tls` shows them, which `acme` gets from an authority, [`signer`] has their keys where they are on another machine, `admission` counts,
//! `offers` remembers who was told of HTTP/3, `fallback` who comes without it, and why;
//! `policy` says how QUIC sends;
//! `site` is what a route does around its handler: redirections, header fields, compression, pages for errors;
//! `gateway` takes the request of a `peer`, which may be a proxy that `forwarded` believes; the request's `path` gets the one form that is compared and sent, through `route`, and `guard` with `rate`s and `password`s, to `upstream` or `files`, which keeps what is asked for often; `fields` is what of a message goes on from one connection to the next, `body` its
//! content, and `ending` why a request ended; `stream` carries `stream_halves` of other protocols to their `stream_target` over a `tcp_back_end`, `qmux` where
//! they come over TCP; `masque` tunnels UDP and TCP to targets that clients name, and `sessions` has those of WebTransport; an `activity` says how long a tunnel has been silent;
//! [`keys`] is what several gateways share, and [`balance`] what stands in front of them; `folder` is where nobody else writes; `capture` shows single connections to operators; `observe` writes the access log and the figures of
//! [`metrics`]; [`admin`] is how an operator talks to it.
//!
//! - [`config`]: the configuration file. `generation`: the state of one configuration at work. `setup`: errors of a start.
//! - [`process`]: runs, reloads and drains the gateway. [`upgrade`]: replaces its program. `services`: sockets for operators.
//! - `worker`: a thread with its runtime. `memory` limits what clients can make the gateway hold.
//! - `listen`: accepts connections and gives them their `context`. `admission` counts them.
//! - `tls`: the server's side of TLS. `certificate` reads certificates, `acme` orders them, `client_certificate` verifies those of clients.
//! - `offers`: clients that received `alt-svc`. `fallback`: clients that fell back to TCP, with the evidence.
//! - `profile`: transport settings. `policy`: transport settings for some of the clients, such as those of a `network`.
//! - `gateway`: takes a request of a `peer`, in all versions of HTTP. `forwarded` reads the client that a trusted proxy names.
//! - `path`: normalizes the path. `route` finds the route. `guard` checks `rate`s, `password`s and certificates.
//! - `site`: redirections, header fields, compression and error pages of a route.
//! - `upstream`: back ends, with `resolve` for their names and `trust` for TLS. `files`: static files, with a cache.
//! - `fields`: header fields between two connections. `body`: content. `ending`: the cause of a request's end.
//! - `stream`: streams of other protocols, with `stream_halves`, `stream_target` and `tcp_back_end`. `qmux`: the same over TCP.
//! - `masque`: tunnels for UDP and TCP, with the tokens of `access`. `sessions`: WebTransport sessions. `activity` and `room`: idle times of
//!   both, and memory for their reads.
//! - [`keys`]: keys that several gateways share. `register`: the shared strike register. [`balance`]: the load balancer in front of several
//!   machines.
//! - `folder`: directories for their owner only. `capture`: captures of single connections.
//! - `observe`: access log and counts. [`metrics`]: the metrics. [`admin`]: the administration socket.
//!
//! A *generation* is one configuration at work. A reload builds the next generation beside the current one, and replaces it in one step if
//! all of it works. Requests and connections end under the generation under which they began.
//!
//! Linux only: the kernel opens files beneath their directory (`openat2`), and shards and drains sockets.
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
pub mod signer;
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
