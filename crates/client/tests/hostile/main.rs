//! A hostile server against the client: it lies, is slow, and sends without end what is cheap to send. Each test says what the client holds
//! at most, or how the request ends.

mod causes;
#[path = "../dns/mod.rs"]
mod dns;
mod http2;
mod http3;
mod names;
mod paths;
mod private;
mod proxy;
mod servers;
mod slow;
mod tcp;
mod tunnels;
mod tunnels_over_h2;
