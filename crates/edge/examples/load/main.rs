//! Load for a server of HTTP/3 or HTTP/2, one line of JSON for each result.
//!
//! ```sh
//! cargo run --profile dist -p tiderace-edge --example load -- MODE PROTOCOL ADDRESS ROOT PATH ...
//!
//! load closed     h3 127.0.0.1:8443 root.pem /small CONNECTIONS PARALLEL REQUESTS
//! load open       h3 127.0.0.1:8443 root.pem /small CONNECTIONS RATE SECONDS SEED
//! load handshakes h3 127.0.0.1:8443 root.pem /small PARALLEL CONNECTIONS full|resumed
//! load rest       h3 127.0.0.1:8443 root.pem /small CONNECTIONS SECONDS PARALLEL REQUESTS
//! ```
//!
//! - `closed`: so many requests, over connections that each have `PARALLEL` in progress: the next one is sent when one has ended.
//! - `open`: requests begin at times of their own, `RATE` per second on average (a Poisson process from the seed), whatever the server does.
//!   Latency counts from the time at which a request was due, so that one that had to wait for others does not hide it. `late_ms` is how
//!   late this program itself began a request: its own error.
//! - `handshakes`: connections that each carry one request, `PARALLEL` at a time.
//! - `rest`: connections that each carry one request and stay open; nothing is sent for some seconds; then requests over all of them in
//!   turn. A line at each step.
//!
//! The server has to have a certificate for `localhost`, TLS_AES_128_GCM_SHA256 and X25519: nothing else is offered, so that servers with other
//! preferences do the same work. A request that fails ends the program, but for `open`, which counts it.

mod client;
mod closed;
mod handshakes;
mod latency;
mod open;
mod rest;

use std::{net::SocketAddr, sync::Arc};

use client::Client;

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "expected: closed|open|handshakes|rest h3|h2 ADDRESS ROOT PATH, and then, by the mode: CONNECTIONS PARALLEL REQUESTS | \
                     CONNECTIONS RATE SECONDS SEED | PARALLEL CONNECTIONS full|resumed | CONNECTIONS SECONDS PARALLEL REQUESTS";

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [mode, protocol, address, root, path, rest @ ..] = &words[..] else { return Err(USAGE.into()) };
    let address: SocketAddr = address.parse()?;
    let root = std::fs::read(root)?;
    let client = |resume| Ok::<_, Error>(Arc::new(Client::new(protocol, address, &root, path, resume)?));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match (*mode, rest) {
            ("closed", [connections, parallel, requests]) => {
                closed::run(client(false)?, connections.parse()?, parallel.parse()?, requests.parse()?).await
            }
            ("open", [connections, rate, seconds, seed]) => {
                let arrivals = open::arrivals(rate.parse()?, seconds.parse()?, seed.parse()?)?;
                open::run(client(false)?, connections.parse()?, arrivals).await
            }
            ("handshakes", [parallel, connections, kind @ ("full" | "resumed")]) => {
                handshakes::run(client(*kind == "resumed")?, parallel.parse()?, connections.parse()?).await
            }
            ("rest", [connections, seconds, parallel, requests]) => {
                let plan =
                    rest::Plan { seconds: seconds.parse()?, parallel: parallel.parse()?, requests: requests.parse()? };
                rest::run(client(false)?, connections.parse()?, plan).await
            }
            _ => Err(USAGE.into()),
        }
    })
}
