//! HTTP over QUIC raced against TCP, with memory and evidence for every fall-back.
//!
//! In the order in which a request meets them: `service` is the client as `tower` has it; [`fetch`] takes the request, and a
//! connection from the `pool` if one is open; [`resolve`] finds addresses, and what the HTTPS record says; [`memory`] says what is
//! known of the network and the origin; [`race`] decides what is tried when, and what is to be concluded, without input or output;
//! `dial` does it over real sockets; [`probe`] asks whether a UDP port answers at all; `link` sends the request over what came
//! of it, no longer than [`Patience`] says; [`alt_svc`] reads what servers say about HTTP/3, and `report` tells those that ask why this client fell back; `upkeep` keeps
//! an open connection from being forgotten on the way ([`keep_alive`] measures how soon that is), and moves it when this host's
//! address changes; `goodbye` tells servers when it is over. [`proxy`] does it for programs that cannot be changed, [`private`] for
//! protocols that are not HTTP.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_client::{Client, Trust};
//!
//! let client = Client::new(&Trust::Platform)?;
//! let fetched = client.get("https://www.example.org/", None, None).await?;
//! println!("{} over {}", fetched.response.status(), fetched.protocol);
//! client.close().await;
//! # Ok(())
//! # }
//! ```

pub mod alt_svc;
mod dial;
pub mod fetch;
mod goodbye;
pub mod keep_alive;
mod link;
pub mod memory;
mod patience;
mod pool;
pub mod private;
pub mod probe;
pub mod proxy;
pub mod race;
mod report;
pub mod resolve;
mod service;
mod tasks;
mod tls;
mod upkeep;

pub use fetch::{Client, FetchError, Fetched, Route, Settings, Trust};
pub use patience::{Pace, Patience, TooSlow};
pub use race::{Leg, Verdict};
pub use service::Evidence;
pub use upkeep::LocalAddress;
