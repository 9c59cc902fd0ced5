//! Connections of a private protocol, to an echo back end, over QUIC and over TCP (QMux).

use client::{
    KnownAddresses, Leg, Route, Settings, Timeouts, Trust,
    private::{Channel, PrivateClient, Receiver, Sender},
};

use crate::{clients::Site, fleet::LIMIT, sessions::echo_tcp};

/// Name of the protocol over QUIC.
pub(crate) const QUIC: &str = "echo";
/// Name of the protocol over TCP.
const QMUX: &str = "echo-qx";

/// Section of a configuration that passes streams to an echo back end.
pub(crate) async fn section() -> String {
    format!("[[stream]]\nalpn = \"{QUIC}\"\nqmux = \"{QMUX}\"\nto = \"tcp://{}\"\n", echo_tcp().await)
}

/// A connection over TCP, by a client whose network blocks UDP.
pub(crate) async fn over_tcp(site: &Site) -> Result<Channel, String> {
    let (host, port) = ("localhost".to_owned(), site.address.port());
    let settings = Settings {
        // Clients of the other kinds check the certificate.
        trust: Trust::Anyone,
        addresses: vec![KnownAddresses { host: host.clone(), port, addresses: vec![site.address.ip()] }],
        timeouts: Timeouts { connect: LIMIT, ..Timeouts::default() },
        ..Settings::default()
    };
    let client = PrivateClient::new(&settings, QUIC.as_bytes(), QMUX.as_bytes()).map_err(|error| error.to_string())?;
    let route = Route { only: Some(Leg::Tcp), ..Route::default() };
    let connected = client.connect(&host, port, &route).await.map_err(|error| error.to_string())?;
    Ok(connected.channel)
}

/// Reason why a connection has ended, if it has.
pub(crate) fn close_reason(channel: &Channel) -> Option<String> {
    match channel {
        Channel::Quic(_, connection, _) => connection.close_reason().map(|reason| reason.to_string()),
        Channel::Qmux(connection) => connection.close_reason().map(|reason| reason.to_string()),
    }
}

/// Sends a number over a stream that stays open, and awaits it.
pub(crate) async fn echo(send: &mut Sender, recv: &mut Receiver, number: u64) -> Result<(), String> {
    let sent = number.to_be_bytes();
    send.write_chunk(sent.to_vec().into()).await.map_err(|error| error.to_string())?;
    let mut heard = Vec::new();
    while heard.len() < sent.len() {
        let part = recv.read_chunk(sent.len() - heard.len()).await.map_err(|error| error.to_string())?;
        heard.extend(part.ok_or("the stream has ended")?);
    }
    if heard == sent { Ok(()) } else { Err(format!("{heard:?} came back")) }
}

/// Sends a number over a stream of its own, and awaits it and the end of the stream.
pub(crate) async fn echo_apart(channel: &Channel, number: u64) -> Result<(), String> {
    let (mut send, mut recv) = channel.open_bi().await.map_err(|error| error.to_string())?;
    echo(&mut send, &mut recv, number).await?;
    send.finish().map_err(|error| error.to_string())?;
    match recv.read_chunk(1).await.map_err(|error| error.to_string())? {
        None => Ok(()),
        Some(more) => Err(format!("{more:?} came after the number")),
    }
}
