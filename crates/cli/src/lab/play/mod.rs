//! `tiderace lab play`: a page on this machine with sliders for a path, and what contenders do on it.
//!
//! [`request`] turns what the page asks into a scenario within limits, [`outcome`] runs it and says what happened, [`serve`] answers
//! browsers on loopback. The page itself is in `page.html`, `page.css` and `page.js`.

mod outcome;
mod request;
mod serve;

use std::{net::SocketAddr, process::ExitCode};

use clap::Parser;

use crate::{failure::Failure, interrupt::Interrupt, runtime, stdout::write_out};

/// Serve a page on this machine with sliders for a path, and plot what contenders do on it.
///
/// Each change of a slider runs the contenders of the page in this process, in virtual time, with one seed, and plots throughput, queue,
/// window and RTT. The address of the page holds its settings. "Copy as scenario" gives the file for `tiderace lab run`, which decides with many
/// seeds who wins.
///
/// Only browsers of this machine are answered, and only pages of this server may ask. One page runs at a time; a run is bounded in size
/// (2 Gbit for each contender, 50 connections, 4 contenders) and in time (20 s).
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab play
  tiderace lab play --listen 127.0.0.1:0
  ssh -L 8137:127.0.0.1:8137 machine tiderace lab play     # from another machine")]
pub(super) struct PlayArgs {
    /// Address and port of this machine's loopback; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8137")]
    listen: SocketAddr,
}

/// Serves until Ctrl-C.
pub(super) fn play(args: &PlayArgs) -> Result<ExitCode, Failure> {
    if !args.listen.ip().is_loopback() {
        return Err(Failure::new(format_args!(
            "{} is no loopback address, and whoever reaches the page uses this machine",
            args.listen
        ))
        .hint("ssh -L 8137:127.0.0.1:8137 MACHINE brings the page to another machine"));
    }
    runtime::start()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let listener = tokio::net::TcpListener::bind(args.listen).await.map_err(|error| {
            Failure::new(format_args!("cannot listen at {}: {error}", args.listen))
                .hint("choose another port with --listen")
        })?;
        let address = listener.local_addr().map_err(|error| Failure::new(format_args!("cannot listen: {error}")))?;
        write_out(&format!("Open http://{address}/ in a browser. Ctrl-C ends it.\n"))?;
        tokio::select! {
            () = serve::serve(listener, address.port()) => {}
            () = interrupt.wait() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
