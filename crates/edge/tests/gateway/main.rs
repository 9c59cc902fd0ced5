//! The gateway over real sockets, in one binary: each file a module, so that `cargo test -p tiderace-edge --test gateway routing::` runs one.

mod abuse;
mod access;
mod balancing;
mod books;
mod capture;
mod client_certificates;
mod everyday;
mod fallbacks;
mod given_up;
mod hostile;
mod http;
mod masque;
mod paths;
mod policies;
mod quic_back_ends;
mod refused;
mod routing;
mod security;
#[path = "../site/mod.rs"]
mod site;
mod streams;
mod tls_back_ends;
mod trials;
mod tunnels;
mod webtransport;
