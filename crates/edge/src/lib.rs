//! The gateway: HTTP/3, HTTP/2, HTTP/1.1 and private protocols over QUIC, to back ends.
//!
//! The modules, in the order in which a request meets them. No two use each other, directly or through others:
//!
//! - [`config`]: the configuration file. `generation`: the state of one configuration at work. `setup`: errors of a start.
//! - [`process`]: runs, reloads and drains the gateway. [`upgrade`]: what passes between the processes of an upgrade.
//! - [`activation`]: listening sockets that the service manager has opened.
//! - `worker`: a thread with its runtime. `port`: the test that no other process serves an address. `memory` limits what clients can make
//!   the gateway hold.
//! - `listen`: accepts connections and gives them their `context`. `admission` counts them.
//! - `tls`: the server's side of TLS. `certificate` reads certificates, `acme` orders them, `client_certificate` verifies those of clients.
//!   `remote_signer`: private keys on another machine, which runs a [`signer`].
//! - `offers`: clients that received `alt-svc`. `fallback`: clients that fell back to TCP, with the evidence.
//! - `profile`: transport settings. `policy`: transport settings for some of the clients, such as those of a `network`.
//! - [`trial`]: clients from which a policy withholds HTTP/3, and those with which they are compared.
//! - `gateway`: takes a request of a `peer`, in all versions of HTTP. `forwarded` reads the client that a trusted proxy names.
//! - `host`: names and addresses of requests. `path`: normalizes the path. `route` finds the route.
//! - `guard`: checks `rate`s, certificates and `password`s, which a `password_file` has.
//! - `site`: redirections, header fields, compression and error pages of a route. `content_coding` negotiates the compression, `answer` has
//!   the gateway's own answers.
//! - `upstream`: back ends, with `resolve` for their names and `trust` for TLS. `files`: static files, with a cache.
//! - `fields`: header fields between two connections. `body`: content. `ending`: the cause of a request's end.
//!   `delivery`: the time at which a client has all of a response.
//! - `stream`: streams of other protocols, with `stream_halves`, `stream_target` and `tcp_back_end`. `qmux`: the same over TCP.
//! - `masque`: tunnels for UDP, TCP and IP packets, with the tokens of `access`, and certificates by each `certificate_rule`. `sessions`: WebTransport sessions of a `session_route`. `activity` and
//!   `room`: idle times of both, and memory for their reads.
//! - [`keys`]: keys that several gateways share. `register`: the shared strike register. [`balance`]: the load balancer in front of several
//!   machines. `machines`: forwards to the machine that holds a connection. `connection_id_key`: the key that all of these share.
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
pub mod activation;
mod activity;
pub mod admin;
mod admission;
mod answer;
pub mod balance;
mod body;
mod capture;
mod certificate;
mod certificate_rule;
mod client_certificate;
pub mod config;
mod connection_id_key;
mod content_coding;
mod context;
mod delivery;
mod ending;
mod fallback;
mod fields;
mod files;
mod folder;
mod forwarded;
mod gateway;
mod generation;
mod guard;
mod host;
mod id_rotation;
pub mod keys;
mod listen;
mod machines;
mod masque;
mod memory;
pub mod metrics;
mod network;
mod observe;
mod offers;
mod password;
mod password_file;
mod path;
mod peer;
#[cfg(debug_assertions)]
mod planted;
mod policy;
mod port;
pub mod process;
mod profile;
mod qmux;
mod rate;
mod register;
mod remote_signer;
mod resolve;
mod room;
mod route;
mod session_route;
mod sessions;
mod setup;
mod setup_time;
pub mod signer;
mod site;
mod stream;
mod stream_halves;
mod stream_target;
mod tcp_back_end;
mod tls;
pub mod trial;
mod trust;
pub mod upgrade;
mod upstream;
mod worker;
mod worker_panics;

pub use access::{TokenFault, TokensError};
pub use activation::{ActivationError, ActivationSockets};
pub use certificate::CertificateError;
pub use config::{Config, ConfigCause, ConfigError};
pub use password_file::{PasswordFault, PasswordsError};
pub use process::{Process, ProcessError};
pub use setup::SetupError;
pub use trust::RootsError;
pub use upgrade::{RefusalCause, UpgradeError};
