//! WebTransport over HTTP/3 (draft-ietf-webtrans-http3): sessions with streams and datagrams, both sides.
//!
//! The modules, from the outside in:
//!
//! - [`server`] and [`Client`] establish a [`Session`]; [`SendStream`] and [`RecvStream`] are the halves of its streams.
//! - `drive` reads the capsules on the CONNECT stream, `outgoing` writes them; `flow` is the flow control of a session; `inner` is the
//!   shared state.
//! - `config`, `protocols`, `capsules` and `codes` convert between bytes and values.
//! - The crate `tiderace-h3` has HTTP/3, and the streams that wait for their session.
//!
//! The current draft needs a profile that accepts RESET_STREAM_AT (`streams.reset_stream_at`). The drafts of browsers (02 and 07) are
//! advertised too.
//!
//! ```no_run
//! # async fn example(connection: tiderace::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_webtransport::{Client, Config};
//!
//! let mut client = Client::begin(connection, Config::default()).await?;
//! let request = http::Request::get("https://www.example.org/game").body(())?;
//! let session = client.connect(request, &[]).await?;
//! session.send_datagram(b"position")?;
//! let mut events = session.accept_uni().await?;
//! println!("{:?}", events.read_chunk(1_000).await?);
//! session.close(0, "the game has ended");
//! # Ok(())
//! # }
//! ```

mod capsules;
pub mod client;
mod codes;
mod config;
mod drive;
mod error;
mod flow;
mod inner;
mod lock;
mod outgoing;
mod peer_stream;
mod protocols;
mod recv_stream;
mod send_stream;
pub mod server;
mod session;

pub use h3_quic as h3;

pub use client::Client;
pub use codes::{from_http3, to_http3};
pub use config::{Config, Draft, Limits, Origins};
pub use error::{ConnectError, ConnectionFault, DatagramError, ReadError, SessionEnd, WriteError};
pub use outgoing::{Aborted, SessionBody};
pub use recv_stream::RecvStream;
pub use send_stream::SendStream;
pub use session::Session;
