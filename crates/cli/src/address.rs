//! Addresses on the command line, and hints for unusable ones.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
};

use crate::failure::Failure;

/// A server that was named on the command line.
#[derive(Debug)]
pub(crate) struct Target {
    /// As it was written, without the port: the name that a certificate has to be for.
    pub(crate) host: String,
    /// Address of the server.
    pub(crate) address: SocketAddr,
}

/// Splits `HOST:PORT`; an IPv6 address as HOST is in brackets.
pub(crate) fn split(target: &str) -> Result<(String, u16), Failure> {
    let form =
        || Failure::new(format_args!("`{target}` is no HOST:PORT")).hint("write it like localhost:4433 or [::1]:4433");
    let (host, port) = target.rsplit_once(':').ok_or_else(form)?;
    let port: u16 = port.parse().map_err(|_| form())?;
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if port == 0 || host.is_empty() || (bare.is_none() && host.contains(':')) {
        return Err(form());
    }
    let host = bare.unwrap_or(host);
    if bare.is_some() && host.parse::<Ipv6Addr>().is_err() {
        return Err(form());
    }
    Ok((host.to_owned(), port))
}

/// Finds the address of `HOST:PORT`: the first one that this machine has a route to.
pub(crate) fn resolve(target: &str) -> Result<Target, Failure> {
    let (host, port) = split(target)?;
    let found: Vec<SocketAddr> = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| {
            Failure::new(format_args!("cannot find the host `{host}`: {}", plain(&error)))
                .hint("check the spelling, or give an IP address")
        })?
        .collect();
    let mut refused = None;
    for address in found {
        match route(address) {
            Ok(()) => return Ok(Target { host, address }),
            Err(error) => refused = refused.or(Some((address, error))),
        }
    }
    Err(match refused {
        Some((address, error)) => Failure::new(format_args!("cannot send to {address}: {}", plain(&error)))
            .hint("this machine has no route to the address"),
        None => Failure::new(format_args!("the host `{host}` has no address")).hint("give an IP address"),
    })
}

/// Checks that the system has a route to the address. Sends nothing.
fn route(address: SocketAddr) -> io::Result<()> {
    UdpSocket::bind(any_for(address))?.connect(address)
}

/// Any local address and port from which `remote` can be reached.
pub(crate) fn any_for(remote: SocketAddr) -> SocketAddr {
    let any = if remote.is_ipv4() { IpAddr::from([0, 0, 0, 0]) } else { Ipv6Addr::UNSPECIFIED.into() };
    (any, 0).into()
}

/// The address to listen on cannot be had.
pub(crate) fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let failure = Failure::new(format_args!("cannot listen on {address}: {}", plain(error)));
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.hint("another program has this port; choose another one, or port 0 for any")
        }
        io::ErrorKind::AddrNotAvailable => failure.hint("no network interface of this machine has this address"),
        io::ErrorKind::PermissionDenied => failure.hint("ports below 1024 are reserved; choose a higher one"),
        _ => failure,
    }
}

/// An error of the system without its number.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.strip_prefix("failed to lookup address information: ").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (text, host, address) in
            [("127.0.0.1:4433", "127.0.0.1", "127.0.0.1:4433"), ("localhost:1", "localhost", "")]
        {
            let target = resolve(text).unwrap();
            assert_eq!(target.host, host);
            assert!(address.is_empty() || target.address.to_string() == address, "{target:?}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["localhost", "localhost:", "localhost:http", ":4433", "::1:4433", "[::1", "[host]:1", "a:0", "a:70000"]
        {
            assert!(resolve(text).is_err(), "{text}");
        }
    }

    #[test]
    fn system_errors_lose_their_number() {
        let error = io::Error::from_raw_os_error(98);
        assert!(!plain(&error).contains("os error"), "{}", plain(&error));
    }
}
