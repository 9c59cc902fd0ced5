//! Faults of a `[[stream]]`.

use super::{
    super::{
        Stream,
        address::host_port,
        read::{
            Fault,
            Step::{Key, Number},
        },
    },
    names,
};

pub(super) fn check(number: usize, stream: &Stream) -> Result<(), Fault> {
    let at = |key| [Key("stream"), Number(number), Key(key)];
    if stream.alpn.0.is_empty() {
        return Err(Fault::new(&[Key("stream"), Number(number)], "expected `alpn`"));
    }
    for alpn in &stream.alpn.0 {
        if alpn.is_empty() || alpn.len() > 255 {
            return Err(Fault::new(&at("alpn"), "expected a name of 1 to 255 bytes"));
        }
        if ["h3", "h2", "http/1.1"].contains(&alpn.as_str()) {
            return Err(Fault::new(&at("alpn"), format!("`{alpn}` is HTTP")).hint("HTTP goes to a [[route]]"));
        }
    }
    for alpn in &stream.qmux.0 {
        if alpn.is_empty() || alpn.len() > 255 {
            return Err(Fault::new(&at("qmux"), "expected a name of 1 to 255 bytes"));
        }
        // draft-ietf-quic-qmux §8.1 MUST: the names over QUIC and over TCP differ.
        if ["h3", "h2", "http/1.1"].contains(&alpn.as_str()) || stream.alpn.0.contains(alpn) {
            let message = format!("`{alpn}` has a meaning already");
            return Err(
                Fault::new(&at("qmux"), message).hint("over TCP a protocol needs another name, such as `name-qx`")
            );
        }
    }
    names(&stream.sni, &at("sni"))?;
    if stream.to.is_empty() && stream.datagrams_to.is_empty() {
        return Err(Fault::new(&[Key("stream"), Number(number)], "expected `to` or `datagrams-to`"));
    }
    if !stream.to.is_empty() && !stream.to.starts_with("unix:/") && host_port(&stream.to, "tcp://").is_none() {
        return Err(Fault::new(
            &at("to"),
            format!("expected `tcp://host:port` or `unix:/path`, found `{}`", stream.to),
        ));
    }
    if !stream.datagrams_to.is_empty() && host_port(&stream.datagrams_to, "udp://").is_none() {
        let message = format!("expected `udp://host:port`, found `{}`", stream.datagrams_to);
        return Err(Fault::new(&at("datagrams-to"), message));
    }
    Ok(())
}
