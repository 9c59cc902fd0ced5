//! Discovery of HTTP/3: HTTPS record, `alt-svc`, or the same port.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use client::{
    Cause, FetchError, KnownAddresses,
    alt_svc::{self, Alternative},
    probe::Prober,
    resolve::Resolver,
};
use http::{HeaderMap, HeaderValue, Method, header};
use tiderace::units::DataSize;

use super::{
    Args,
    evidence::{Discovery, Evidence, Exchange, Fault, Transport},
    exchange::Target,
    report,
};
use crate::{
    failure::Failure,
    get::{UNKNOWN_HOST, request::https},
};

/// Time for which an answer of the UDP port is waited for.
const ANSWERS: Duration = Duration::from_secs(1);

/// Findings before the first round.
pub(super) struct Found {
    pub(super) discovery: Discovery,
    /// Bytes of the object, where the server says so.
    pub(super) length: Option<u64>,
}

/// Finds addresses, asks over TCP, and decides where HTTP/3 is tried.
///
/// # Errors
/// When the host has no address, or does not answer over TCP.
pub(super) async fn find(args: &Args, watch: client::Watch) -> Result<(Target, Found), Failure> {
    let url = https(&args.url)?;
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let port = url.port_or_known_default().unwrap_or(443);
    let known: Vec<KnownAddresses> = args.resolve.iter().map(|one| one.0.clone()).collect();
    let is_named = host.parse::<IpAddr>().is_err();
    let asked = is_named && !known.iter().any(|known| known.host == host && known.port == port);
    let resolver = Resolver::system().with_addresses(known);
    let looked = resolver
        .resolve(&host, port)
        .await
        .map_err(|why| Failure::new(FetchError::Resolve { host: host.clone(), why }).hint(UNKNOWN_HOST))?;
    let offers = looked.offer.as_ref().is_some_and(client::resolve::Offer::has_http3);
    let tcp = reachable(&looked.tcp, args.connect_timeout).await.ok_or_else(|| {
        Failure::new(format_args!("nothing answers over TCP at {host}, port {port}"))
            .hint("the comparison needs HTTP/2 on TCP; check host and port")
    })?;
    let same = SocketAddr::new(tcp.ip(), port);
    let mut target = Target {
        url: plain(&url),
        host,
        port,
        fields: fields(args),
        trust: args.trust()?,
        tcp,
        quic: same,
        receive_window: args.receive_window.map(DataSize::as_bytes),
        connect: args.connect_timeout,
        qlog: watch.observe,
        packets: watch.packets,
    };
    let answer = target.ask(Transport::H2, Method::HEAD).await.map_err(|error| refused(&error))?;
    let protocol = answer.extensions().get::<&'static str>().copied().unwrap_or_default();
    if protocol != "h2" {
        return Err(Failure::new(format_args!("the server speaks {protocol} over TCP, and not HTTP/2"))
            .hint("the comparison is with HTTP/2; a server behind a proxy of this network may hide it"));
    }
    let announced = answer.headers().get(header::ALT_SVC).and_then(|value| value.to_str().ok());
    let alternative = announced.and_then(alt_svc::http3);
    let of_record = looked.quic.iter().find(|address| address.ip() == tcp.ip()).or(looked.quic.first());
    target.quic = match (args.udp, offers, &alternative) {
        (Some(udp), ..) => udp,
        (None, true, _) => of_record.copied().unwrap_or(same),
        (None, false, Some(alternative)) => at(alternative, &resolver, same).await,
        (None, false, None) => same,
    };
    let length = answer.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let discovery = Discovery {
        record: asked.then_some(offers),
        alt_svc: alternative.and(announced).map(str::to_owned),
        address: Some(target.quic),
    };
    Ok((target, Found { discovery, length: length.filter(|length| *length > 0) }))
}

/// The URL without a fragment and a user.
fn plain(url: &url::Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

fn fields(args: &Args) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(header::USER_AGENT, HeaderValue::from_static(concat!("tiderace/", env!("CARGO_PKG_VERSION"))));
    for field in &args.fields {
        if field.name == header::USER_AGENT {
            fields.insert(&field.name, field.value.clone());
        } else {
            fields.append(&field.name, field.value.clone());
        }
    }
    fields
}

/// The first address that takes a connection: all rounds go there.
async fn reachable(addresses: &[SocketAddr], within: Duration) -> Option<SocketAddr> {
    for address in addresses {
        let connected = tokio::time::timeout(within, tokio::net::TcpStream::connect(address)).await;
        if matches!(connected, Ok(Ok(_))) {
            return Some(*address);
        }
    }
    None
}

async fn at(alternative: &Alternative, resolver: &Resolver, same: SocketAddr) -> SocketAddr {
    let here = SocketAddr::new(same.ip(), alternative.port);
    let Some(host) = &alternative.host else { return here };
    let found = resolver.addresses(host, alternative.port).await;
    found.ok().and_then(|found| found.first().copied()).unwrap_or(here)
}

fn refused(error: &FetchError) -> Failure {
    let failure = Failure::new(error);
    match error.cause() {
        Some(Cause::Certificate { .. }) => {
            failure.hint("`--ca FILE` trusts a certificate of your own; `-k` checks none")
        }
        _ if error.is_timeout() => failure
            .hint("the server takes a connection and does not answer a HEAD; `--connect-timeout` gives it more time"),
        _ => failure.hint("the comparison needs HTTP/2 on TCP; try `tiderace get --http2` with this URL"),
    }
}

/// The failure where the server does not speak one of the two, or the object is none. `None`: there is something to compare.
pub(super) async fn missing(evidence: &Evidence, target: &Target) -> Option<Failure> {
    if evidence.exchanges.is_empty() {
        let why = evidence.ended_early.as_deref().unwrap_or("no round was made");
        return Some(Failure::new(format_args!("nothing was measured: {why}")).hint("let it run for a round at least"));
    }
    let came = |transport| evidence.of(transport).any(|exchange| exchange.bytes > 0);
    let (over_h3, over_h2) = (came(Transport::H3), came(Transport::H2));
    for transport in Transport::BOTH {
        if !came(transport) && evidence.of(transport).any(Exchange::is_empty) {
            let name = transport.name();
            return Some(
                Failure::new(format_args!("the answer over {name} has no content"))
                    .hint("there is nothing to compare: give the URL of an object of some megabytes"),
            );
        }
    }
    if !over_h2 && let Some(error) = first_error(evidence, Transport::H2) {
        return Some(
            Failure::new(format_args!("nothing comes over HTTP/2: {error}"))
                .hint("the URL has to lead to an object without redirects; `-H` sends fields"),
        );
    }
    if !over_h2 && !over_h3 {
        return Some(
            Failure::new("over neither transport any content came in time")
                .hint("the server is silent; `--time` gives it more time"),
        );
    }
    if over_h3 { None } else { without_h3(evidence, target).await }
}

fn first_error(evidence: &Evidence, transport: Transport) -> Option<String> {
    evidence.of(transport).find_map(|exchange| exchange.error.clone())
}

/// The failure where nothing came over HTTP/3, unless that is to be explained.
async fn without_h3(evidence: &Evidence, target: &Target) -> Option<Failure> {
    let error = first_error(evidence, Transport::H3)?;
    let faults = || evidence.of(Transport::H3).filter_map(|exchange| exchange.fault);
    if faults().all(|fault| fault == Fault::Status) {
        return Some(
            Failure::new(format_args!("over HTTP/3 {error}"))
                .hint("over HTTP/2 there is another answer: compare with `tiderace get -v`"),
        );
    }
    let quic = || evidence.of(Transport::H3).filter_map(|exchange| exchange.quic.as_ref());
    let is_there = evidence.discovery.is_announced() || quic().any(|quic| quic.connected);
    // The path carries a refusal. What is silent is to be explained.
    if is_there && !faults().any(|fault| fault == Fault::Silence) {
        return Some(
            Failure::new(format_args!("nothing comes over HTTP/3: {error}"))
                .hint("the server, or a device before it, answers and refuses: `tiderace get --http3 -v` shows how"),
        );
    }
    if is_there {
        return None;
    }
    let answers = if answers(target.quic).await { "answers as a QUIC server" } else { "is silent" };
    Some(
        Failure::new(format_args!(
            "no HTTP/3 was found: {}; tried directly: {error}; the UDP port {answers}",
            report::found(&evidence.discovery)
        ))
        .hint("`--udp ADDRESS:PORT` tries another address; `tiderace get --http3` shows the handshake"),
    )
}

async fn answers(remote: SocketAddr) -> bool {
    let Ok(prober) = Prober::new(remote).await else { return false };
    prober.ask().await;
    tokio::time::timeout(ANSWERS, prober.answered()).await.is_ok()
}
