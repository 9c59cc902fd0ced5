//! HTTP/3 over tiderace: requests and responses with streamed bodies, both sides.
//!
//! The modules, from the outside in:
//!
//! - [`server`] serves a connection with a function from request to response; [`client`] sends requests.
//! - [`RequestBody`] and [`ResponseBody`] are received content, as it arrives.
//! - `stream` reads and writes one request; `driver` has the control and QPACK streams; `shared` is the state of a connection.
//! - `fields` (messages), `settings`, `frame` and [`capsule`] convert between bytes and values. The crate `qpack` compresses fields.
//!
//! An extended CONNECT (RFC 9220) turns a stream into a tunnel. The bodies of request and response are its two directions, with
//! [`Datagrams`] beside them (RFC 9297). [`connect_udp`] and [`connect_ip`] have the parts of UDP proxying (RFC 9298) and IP proxying
//! (RFC 9484) that both ends share.
//!
//! For WebTransport, `opening` and `driver` find the streams of a session, and `sessions` holds them until [`SessionStreams`] takes them.
//! The rest is the crate `tiderace-webtransport`.
//!
//! ```no_run
//! # async fn example(connection: tiderace::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use bytes::Bytes;
//! use http_body_util::{BodyExt, Empty};
//!
//! // A connection whose application protocol is `tiderace_h3::ALPN`.
//! let mut requests = tiderace_h3::client::begin(connection).await?;
//! let request = http::Request::get("https://www.example.org/").body(Empty::<Bytes>::new())?;
//! let response = requests.send(request).await?;
//! println!("{}", response.status());
//! let content = response.into_body().collect().await?.to_bytes();
//! # Ok(())
//! # }
//! ```

mod body;
pub mod capsule;
pub mod client;
mod compression;
pub mod connect_ip;
pub mod connect_udp;
mod critical_stream;
mod datagram;
mod driver;
mod error;
mod fields;
mod flows;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod garbage;
mod interim;
mod opening;
pub mod priority;
mod priority_changes;
mod priority_update;
pub mod server;
mod session_handle;
mod sessions;
mod settings;
mod shared;
mod stream;
mod uri_template;

pub use body::{RequestBody, ResponseBody};
pub use compression::{Compression, Volume};
pub use datagram::Datagrams;
pub use error::{Awaited, BodyError, Code, Error, RequestFault, ResetWith};
pub use fields::Protocol;
pub use interim::{InterimResponses, NotSent, OnInterim};
pub use priority_changes::{ChangePriority, PriorityChanges};
pub use session_handle::{SessionOffer, SessionStreams};
pub use sessions::{RefusedStreams, SessionStream, SessionSupport};
pub use settings::PeerSettings;

/// The application protocol in TLS (RFC 9114 §3.1).
pub const ALPN: &[u8] = b"h3";
