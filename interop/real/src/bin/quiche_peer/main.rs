//! The peer on quiche, with BoringSSL. See `contract` for what it does.
//!
//! quiche has neither sockets nor an asynchronous interface: one task waits for datagrams, timers and the end of standard
//! input, and asks the connections what they have to send.

mod client;
mod server;
mod wires;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use real_interop::contract::{ALPN, Command, Role, conclude};

/// Length of the connection IDs that this program chooses.
const ID_LEN: usize = 16;
/// Bytes read from a stream, or written to it, at a time.
const PIECE: usize = 64 * 1024;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.context("start").and_then(|runtime| {
        runtime.block_on(async {
            match Command::parse().role {
                Role::Server(arguments) => server::serve(arguments).await,
                Role::Client(arguments) => client::request(arguments).await,
            }
        })
    });
    conclude(result, "quiche 0.30")
}

/// Configuration of both ends.
fn config(early: bool) -> Result<quiche::Config> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.set_application_protos(&[ALPN])?;
    config.set_max_idle_timeout(60_000);
    config.set_max_recv_udp_payload_size(1_500);
    config.set_max_send_udp_payload_size(1_350);
    config.set_initial_max_data(16 << 20);
    config.set_initial_max_stream_data_bidi_local(4 << 20);
    config.set_initial_max_stream_data_bidi_remote(4 << 20);
    config.set_initial_max_streams_bidi(200);
    config.set_active_connection_id_limit(4);
    // It says when each packet may leave, and nobody here would wait.
    config.enable_pacing(false);
    if early {
        config.enable_early_data();
    }
    Ok(config)
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Random bytes.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// A new connection ID.
fn new_id() -> quiche::ConnectionId<'static> {
    quiche::ConnectionId::from_vec(random::<ID_LEN>().to_vec())
}

/// Gives the other end as many spare connection IDs as it takes; `tell` hears of each.
fn give_ids(quic: &mut quiche::Connection, mut tell: impl FnMut(&quiche::ConnectionId<'static>)) -> Result<()> {
    while quic.scids_left() > 0 {
        let id = new_id();
        quic.new_scid(&id, u128::from_be_bytes(random()), false)?;
        tell(&id);
    }
    Ok(())
}
