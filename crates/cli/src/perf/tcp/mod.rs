//! `perf --tcp`: the same measurement over the kernel's TCP with TLS 1.3.
//!
//! [`client`] and [`server`] are the two ends, [`connect`] the client's connections, [`io`] their protocol, [`tls`] their certificates,
//! [`watch`] the kernel's statistics of a connection (`TCP_INFO`).

mod client;
mod connect;
mod io;
mod report;
mod server;
mod tls;
mod watch;

use socket2::{Domain, Socket, Type};

pub(super) use self::{
    client::run,
    report::Direction,
    server::{Beside, run as serve},
};
use crate::{address, failure::Failure};

/// Makes sure that the kernel offers this congestion control to the program.
fn check_congestion(name: &str) -> Result<(), Failure> {
    let tried = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|socket| set_congestion(&socket, name));
    let Err(error) = tried else { return Ok(()) };
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let names: Vec<&str> = known.split_whitespace().collect();
    let list = names.join(", ");
    Err(match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("this kernel lets only root use the congestion control `{name}`"))
                .hint("run as root, or allow it: `sysctl net.ipv4.tcp_allowed_congestion_control`")
        }
        std::io::ErrorKind::NotFound => {
            let failure = Failure::new(format_args!("this kernel has no congestion control `{name}`"));
            match ::lab::scenario::nearest(name, names.iter().copied()) {
                Some(meant) => failure.hint(format_args!("did you mean `{meant}`? there are {list}")),
                None => failure
                    .hint(format_args!("there are {list}; others are modules that root loads: `modprobe tcp_NAME`")),
            }
        }
        _ => Failure::new(format_args!("cannot use the congestion control `{name}`: {}", address::plain(&error)))
            .hint(format_args!("there are {list}")),
    })
}

/// Chooses the congestion control of a socket.
#[cfg(target_os = "linux")]
fn set_congestion(socket: &Socket, name: &str) -> std::io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes())
}

/// Chooses the congestion control of a socket.
#[cfg(not(target_os = "linux"))]
fn set_congestion(_: &Socket, _: &str) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
