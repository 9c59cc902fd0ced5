//! HTTP over QUIC raced against TCP, with a verdict and its evidence for every fall-back.
//!
//! Modules, in the order in which a request meets them:
//!
//! - `service`: the client as a `tower` service;
//! - [`fetch`]: takes the request, and a connection from the `pool` if one is open;
//! - [`resolve`]: finds addresses, and reads the HTTPS record;
//! - [`memory`]: stores verdicts by network and origin;
//! - [`race`]: schedules the attempts and decides on the verdict, without input or output;
//! - `dial`: runs the race over real sockets;
//! - [`probe`]: tests whether a UDP port answers at all;
//! - `link`: sends the request over the connection, within [`Timeouts`];
//! - [`alt_svc`]: reads the field that advertises HTTP/3; `report` reports the cause of a fall-back to origins that ask for it;
//! - `upkeep`: sends NAT keep-alives ([`keep_alive`] measures their interval), and migrates when this host's address changes
//!   (`network_changes`: the system says so; `handover`: the server answers there) or when only another network leads to the server
//!   (`roaming`);
//! - `closing`: closes connections at the end of the program.
//!
//! [`proxy`] is an HTTP proxy for local programs, [`private`] is for protocols other than HTTP, [`masque`] opens tunnels through a proxy. `error` has the causes of
//! failures.
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
mod body;
mod closing;
mod dial;
mod error;
pub mod fetch;
mod handover;
pub mod keep_alive;
mod link;
mod local;
pub mod masque;
pub mod memory;
mod network_changes;
mod packets;
mod pool;
pub mod private;
pub mod probe;
pub mod proxy;
pub mod race;
mod report;
pub mod resolve;
mod roaming;
mod service;
mod settings;
mod setup_error;
mod tasks;
mod timeouts;
mod tls;
mod upkeep;

pub use error::{Cause, FetchError};
pub use fetch::{Client, Fetched, Route};
pub use local::LocalAddress;
pub use network_changes::NetworkChanges;
pub use packets::{PacketKeys, PacketTap};
pub use race::{Leg, Verdict};
pub use resolve::KnownAddresses;
pub use roaming::OtherNetworks;
pub use service::Evidence;
pub use settings::{Settings, TcpObserver, TcpVersions, Watch};
pub use setup_error::{TicketsError, TrustError, UrlError};
pub use timeouts::{Pace, Timeouts, TooSlow};
pub use tls::{ClientIdentity, Trust};
