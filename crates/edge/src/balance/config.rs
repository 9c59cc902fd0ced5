//! Configuration of a load balancer.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tiderace::transport::quic_lb::{QuicLb, QuicLbError, QuicLbParameters, ServerId};

use crate::{
    config::{
        ConfigCause, ConfigError, Many, Span, address, nonce_len,
        read::{
            Fault,
            Step::{Key, Number},
            explain, locate, read_text,
        },
        schema::Described,
        section::section,
    },
    connection_id_key,
};

section! {
    /// The whole file. Clients come to `listen`; the load balancer sends each datagram, and the bytes of each connection of TCP, on to one
    /// of the machines.
    pub struct BalanceConfig {
        /// Addresses and ports that clients come to, over UDP and TCP. One or a list.
        listen: Many = Many(vec!["[::]:443".to_owned()]),
        /// Threads that forward. 0: one for each processor.
        workers: u8 = 0,
        /// Configurations of connection IDs (QUIC-LB). Several while one takes the place of another.
        connection_ids: Vec<ConnectionIds> = Vec::new(),
        /// Machines that serve.
        #[serde(rename = "machine")]
        machines: Vec<Machine> = Vec::new(),
        /// Part of a client's address that chooses the machine of what names none: `address-and-port`, or `address`, with which QUIC and TCP
        /// of one client meet at one machine, as do all clients behind one NAT. Equal at all load balancers.
        affinity: Affinity = Affinity::AddressAndPort,
        /// Connections of TCP.
        tcp: BalanceTcp = BalanceTcp::default(),
        /// Time that connections of TCP have when the load balancer is asked to end (SIGTERM). A second request ends it at once.
        drain: Span = Span::secs(60),
        /// Address and port that serve `/metrics` over plain HTTP, on a loopback or private address. Empty: none.
        metrics: String = String::new(),
        /// Health checks.
        health: BalanceHealth = BalanceHealth::default(),
    }
}

/// Part of a client's address that chooses a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// Address and port: connections of one client spread over the machines.
    AddressAndPort,
    /// The address alone: all connections of a client meet at one machine.
    Address,
}

impl Described for Affinity {
    fn schema() -> serde_json::Value {
        serde_json::json!({"enum": ["address-and-port", "address"]})
    }
}

section! {
    /// `[tcp]`: connections of TCP. They go to the address of the machine that QUIC of the same client would go to, behind a header with
    /// the client's address (PROXY protocol, version 2).
    pub struct BalanceTcp {
        /// Accept connections of TCP. `false`: UDP alone.
        enabled: bool = true,
        /// Connections at a time. More are reset.
        connections: usize = 65_536,
        /// Time in which a machine has to take a connection. Then the next machine is tried, three at most.
        connect_timeout: Span = Span::secs(2),
        /// A connection on which nothing moves for this time is reset.
        idle_timeout: Span = Span::secs(3_600),
    }
}

section! {
    /// `[[connection-ids]]`: how the machines make connection IDs: what their `[load-balancer]` says.
    pub struct ConnectionIds {
        /// Config rotation bits, 0 to 6.
        config_id: u8 = 0,
        /// Bytes of the nonce. 0: what fills one block of the cipher with the server ID.
        nonce_length: u8 = 0,
        /// A file with the key, which others may not read. Empty: connection IDs are in the clear, as some other servers make them.
        key: String = String::new(),
    }
}

section! {
    /// `[[machine]]`: a machine that serves.
    pub struct Machine {
        /// Server ID of the machine, in hexadecimal digits. All have as many bytes.
        server_id: String = String::new(),
        /// IP address and port that datagrams are sent to. Only from there answers are taken.
        address: String = String::new(),
        /// Drain the machine: no new connections; those that it has stay.
        drain: bool = false,
    }
}

section! {
    /// `[health]`: each machine is asked for its versions of QUIC (Version Negotiation). One that does not answer gets nothing any
    /// more, one that offers no version, as a gateway that is about to end, gets no new connections.
    pub struct BalanceHealth {
        /// Time between checks of a machine. 0 s: none are made.
        interval: Span = Span::secs(1),
        /// A machine is down when so many checks in a row have no answer.
        failures: u32 = 3,
    }
}

/// Configuration that was read and checked.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) workers: u8,
    pub(crate) codecs: Vec<QuicLbParameters>,
    pub(crate) machines: Vec<ResolvedMachine>,
    pub(crate) affinity: Affinity,
    pub(crate) tcp: TcpSettings,
    /// Connections of TCP are accepted.
    pub(crate) accepts_tcp: bool,
    pub(crate) drain: Duration,
    pub(crate) metrics: Option<SocketAddr>,
    /// Time between health checks; `None` for no checks.
    pub(crate) interval: Option<Duration>,
    pub(crate) failures: u32,
}

/// Limits of connections of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpSettings {
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
}

/// A machine of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedMachine {
    pub(crate) server_id: ServerId,
    pub(crate) address: SocketAddr,
    pub(crate) drains: bool,
}

/// Reads and checks a file. Paths in it are relative to its directory.
///
/// # Errors
/// When it cannot be read, or is not valid.
pub(crate) fn load(file: &Path) -> Result<Resolved, ConfigError> {
    let (name, text) = read_text(file, "give the path of a configuration: tiderace balance CONFIG")?;
    let config: BalanceConfig = toml::from_str(&text).map_err(|error| {
        let mut error = explain(&text, &name, &error);
        error.hint = error.hint.map(|hint| hint.replace("tiderace edge reference", "tiderace balance reference"));
        error
    })?;
    let directory = file.parent().unwrap_or_else(|| Path::new("."));
    resolve(&config, directory).map_err(|fault| {
        let fault = if fault.hint.is_some() { fault } else { fault.hint(REFERENCE) };
        locate(&text, &name, fault)
    })
}

const REFERENCE: &str = "`tiderace balance reference` prints every setting with its meaning";

fn resolve(config: &BalanceConfig, directory: &Path) -> Result<Resolved, Fault> {
    let listen = config.listen.0.iter().map(|text| {
        address(text).map_err(|error| {
            Fault::new(&[Key("listen")], error.to_string())
                .hint("`[::]:443` is every address of this machine, IPv4 included")
        })
    });
    let listen: Vec<SocketAddr> = listen.collect::<Result<_, _>>()?;
    let is_twice = |(number, at): (usize, &SocketAddr)| at.port() != 0 && listen[..number].contains(at);
    if listen.is_empty() || listen.iter().enumerate().any(is_twice) {
        return Err(Fault::new(&[Key("listen")], "expected addresses with a port, each once"));
    }
    let machines = machines(&config.machines)?;
    let server_id_len = machines[0].server_id.as_slice().len();
    let codecs = codecs(&config.connection_ids, server_id_len, directory)?;
    if config.health.failures == 0 {
        return Err(Fault::new(&[Key("health"), Key("failures")], "expected at least 1"));
    }
    let interval = Some(config.health.interval.0).filter(|interval| !interval.is_zero());
    if interval.is_some_and(|interval| interval < Duration::from_millis(20)) {
        return Err(Fault::new(&[Key("health"), Key("interval")], "expected at least 20 ms, or 0 s for no checks"));
    }
    Ok(Resolved {
        listen,
        workers: config.workers,
        codecs,
        machines,
        affinity: config.affinity,
        tcp: tcp(&config.tcp)?,
        accepts_tcp: config.tcp.enabled,
        drain: config.drain.0,
        metrics: metrics(&config.metrics)?,
        interval,
        failures: config.health.failures,
    })
}

fn tcp(given: &BalanceTcp) -> Result<TcpSettings, Fault> {
    if given.connections == 0 {
        let message = "a limit of 0 serves nobody; expected at least 1";
        return Err(Fault::new(&[Key("tcp"), Key("connections")], message).hint("enabled = false leaves TCP alone"));
    }
    for (key, span) in [("connect-timeout", given.connect_timeout), ("idle-timeout", given.idle_timeout)] {
        if span.0 < Duration::from_millis(10) {
            return Err(Fault::new(&[Key("tcp"), Key(key)], "expected at least 10 ms"));
        }
    }
    Ok(TcpSettings {
        connections: given.connections,
        connect_timeout: given.connect_timeout.0,
        idle_timeout: given.idle_timeout.0,
    })
}

fn metrics(given: &str) -> Result<Option<SocketAddr>, Fault> {
    if given.is_empty() {
        return Ok(None);
    }
    let at = address(given).map_err(|error| Fault::new(&[Key("metrics")], error.to_string()))?;
    let is_private = match at.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    if !is_private {
        let message =
            format!("expected a loopback or private address, found `{given}`: everybody could read the metrics");
        return Err(Fault::new(&[Key("metrics")], message).hint("metrics = \"127.0.0.1:9465\""));
    }
    Ok(Some(at))
}

fn machines(given: &[Machine]) -> Result<Vec<ResolvedMachine>, Fault> {
    let mut all: Vec<ResolvedMachine> = Vec::new();
    for (number, machine) in given.iter().enumerate() {
        let at = |key| [Key("machine"), Number(number), Key(key)];
        let server_id: ServerId = machine.server_id.parse().map_err(|error| with_hint(&at("server-id"), error))?;
        let address = machine.address.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
        // One address may be written in two ways.
        let address = address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
        let Some(address) = address else {
            let message =
                format!("expected an IP address with a port as in `10.0.0.1:443`, found `{}`", machine.address);
            return Err(Fault::new(&at("address"), message)
                .hint("names are not looked up: their answers differ between load balancers"));
        };
        let first = all.first().map(|first| first.server_id.as_slice().len());
        if let Some(len) = first.filter(|len| *len != server_id.as_slice().len()) {
            let message = format!("expected {len} bytes as at the first machine, found `{server_id}`");
            return Err(Fault::new(&at("server-id"), message).hint("all machines have server IDs of one length"));
        }
        if let Some(other) = all.iter().position(|other| other.server_id == server_id) {
            let message = format!("machine {} has the same server ID", other + 1);
            return Err(Fault::new(&at("server-id"), message).hint("connections of one would end at the other"));
        }
        if let Some(other) = all.iter().position(|other| other.address == address) {
            return Err(Fault::new(&at("address"), format!("machine {} has the same address", other + 1)).hint(
                "list a machine once; to give it another server ID, drain and restart it, or give its new process another address",
            ));
        }
        all.push(ResolvedMachine { server_id, address, drains: machine.drain });
    }
    if all.is_empty() {
        return Err(Fault::new(&[Key("listen")], "expected at least one [[machine]]: nobody would serve")
            .hint("[[machine]]\n      server-id = \"0a01\"\n      address = \"10.0.0.1:443\""));
    }
    Ok(all)
}

fn codecs(given: &[ConnectionIds], server_id_len: usize, directory: &Path) -> Result<Vec<QuicLbParameters>, Fault> {
    if given.is_empty() {
        return Err(Fault::new(
            &[Key("listen")],
            "expected [[connection-ids]]: no connection would survive another address",
        )
        .hint("[[connection-ids]]\n      key = \"lb.key\""));
    }
    let mut all: Vec<QuicLbParameters> = Vec::new();
    for (number, ids) in given.iter().enumerate() {
        let at = |key| [Key("connection-ids"), Number(number), Key(key)];
        let key = match ids.key.as_str() {
            "" => None,
            file => Some(connection_id_key::read(&directory.join(file)).map_err(|error| {
                let hint = error.hint();
                Fault::of(&at("key"), error.to_string(), ConfigCause::ConnectionIdKey(Arc::new(error))).hint(hint)
            })?),
        };
        let nonce_len = nonce_len(server_id_len, ids.nonce_length);
        let parameters =
            QuicLbParameters { config_id: ids.config_id, server_id_len, nonce_len, key, encodes_len: false };
        QuicLb::new(&parameters).map_err(|error| {
            let key = if matches!(error, QuicLbError::ConfigId(_)) { "config-id" } else { "nonce-length" };
            with_hint(&at(key), error)
        })?;
        if all.iter().any(|other| other.config_id == ids.config_id) {
            let message = format!("another configuration has the ID {}", ids.config_id);
            return Err(
                Fault::new(&at("config-id"), message).hint("0 to 6 are free to use, each for one key at a time")
            );
        }
        // §9.7: attacks on the cipher take pairs of clear and encrypted server IDs
        if all.iter().any(|other| other.key.is_none() != key.is_none()) {
            let message = "connection IDs in the clear would tell the server IDs of encrypted ones";
            return Err(Fault::new(&at("key"), message).hint("give each configuration a key, or none"));
        }
        all.push(parameters);
    }
    Ok(all)
}

/// A fault of an error whose text has the advice on its second line.
fn with_hint(at: &[crate::config::read::Step], error: impl std::fmt::Display) -> Fault {
    let text = error.to_string();
    let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, REFERENCE));
    Fault::new(at, message).hint(hint)
}

#[cfg(test)]
impl Resolved {
    /// A configuration of these machines without connection IDs and health checks.
    pub(crate) fn of(machines: Vec<ResolvedMachine>) -> Self {
        let second = Duration::from_secs(1);
        Self {
            listen: Vec::new(),
            workers: 1,
            codecs: Vec::new(),
            machines,
            affinity: Affinity::AddressAndPort,
            tcp: TcpSettings { connections: 100, connect_timeout: second, idle_timeout: 60 * second },
            accepts_tcp: true,
            drain: second,
            metrics: None,
            interval: None,
            failures: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Result<Resolved, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        connection_id_key::make(&folder.path().join("lb.key")).unwrap();
        let file = folder.path().join("balance.toml");
        std::fs::write(&file, text).unwrap();
        load(&file)
    }

    const GOOD: &str = "listen = \"127.0.0.1:0\"\n[[connection-ids]]\nkey = \"lb.key\"\n\
                        [[machine]]\nserver-id = \"0a01\"\naddress = \"10.0.0.1:443\"\n";

    #[test]
    fn six_lines_are_a_load_balancer() {
        let config = loaded(GOOD).unwrap();
        assert_eq!((config.machines.len(), config.codecs.len(), config.codecs[0].nonce_len), (1, 1, 14));
        assert_eq!((config.interval, config.failures), (Some(Duration::from_secs(1)), 3));
        assert_eq!((config.accepts_tcp, config.affinity, config.metrics), (true, Affinity::AddressAndPort, None));
        assert!(config.codecs[0].key.is_some());
    }

    #[test]
    fn faults_have_a_place_and_advice() {
        let machine = |id: &str, address: &str| format!("[[machine]]\nserver-id = \"{id}\"\naddress = \"{address}\"\n");
        for (text, line, part) in [
            ("listen = \"127.0.0.1:0\"\n[[connection-ids]]\nkey = \"lb.key\"\n".to_owned(), Some(1), "[[machine]]"),
            (format!("listen = \"127.0.0.1:0\"\n{}", machine("01", "10.0.0.1:1")), Some(1), "[[connection-ids]]"),
            (GOOD.replace("lb.key", "other.key"), Some(3), "cannot use"),
            (GOOD.replace("0a01", "0a0"), Some(5), "hexadecimal"),
            (GOOD.replace("10.0.0.1:443", "10.0.0.1"), Some(6), "IP address with a port"),
            (GOOD.replace("10.0.0.1:443", "host:443"), Some(6), "IP address with a port"),
            (GOOD.to_owned() + &machine("0a", "10.0.0.2:443"), Some(8), "expected 2 bytes"),
            (GOOD.to_owned() + &machine("0A01", "10.0.0.2:443"), Some(8), "machine 1 has the same server ID"),
            (GOOD.to_owned() + &machine("0a02", "10.0.0.1:443"), Some(9), "machine 1 has the same address"),
            (GOOD.to_owned() + &machine("0a02", "[::ffff:10.0.0.1]:443"), Some(9), "machine 1 has the same address"),
            (GOOD.to_owned() + "[[connection-ids]]\nkey = \"lb.key\"\n", Some(7), "another configuration has the ID 0"),
            (GOOD.to_owned() + "[[connection-ids]]\nconfig-id = 1\n", Some(7), "in the clear"),
            (GOOD.to_owned() + "[[connection-ids]]\nconfig-id = 7\nkey = \"lb.key\"\n", Some(8), "expected 0 to 6"),
            (GOOD.replace("key =", "nonce-length = 18\nkey ="), Some(3), "at most 19"),
            (GOOD.to_owned() + "[health]\nfailures = 0\n", Some(8), "at least 1"),
            (GOOD.to_owned() + "[health]\ninterval = \"1 ms\"\n", Some(8), "at least 20 ms"),
            (GOOD.replace("[[machine]]", "[[machines]]"), Some(4), "unknown field"),
            (GOOD.replace("127.0.0.1:0", "127.0.0.1"), Some(1), "port"),
            (GOOD.to_owned() + "[tcp]\nconnections = 0\n", Some(8), "at least 1"),
            (GOOD.to_owned() + "[tcp]\nidle-timeout = \"1 ms\"\n", Some(8), "at least 10 ms"),
            (GOOD.to_owned() + "[tcp]\nconnect-timeout = \"0 s\"\n", Some(8), "at least 10 ms"),
            (format!("affinity = \"port\"\n{GOOD}"), Some(1), "address-and-port"),
            (format!("metrics = \"0.0.0.0:9465\"\n{GOOD}"), Some(1), "loopback or private"),
            (format!("metrics = \"198.51.100.1:9465\"\n{GOOD}"), Some(1), "loopback or private"),
            (format!("metrics = \"here\"\n{GOOD}"), Some(1), "port"),
        ] {
            let error = loaded(&text).unwrap_err();
            assert_eq!(error.line, line, "{text}{error}");
            assert!(error.to_string().contains(part), "{text}{error}");
            assert!(error.hint.is_some() && !error.message.contains("hint:"), "{error:?}");
        }
    }
}
