//! TLS of our contenders: real (rustls), with fixed certificates and a fixed clock. Only keys differ from run to run, and no length depends
//! on them.

use core::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use rustls::KeyLog;
use transport::{
    ClientConfig, Endpoint, EndpointConfig, Event, Profile, RetryPolicy, ServerConfig,
    ring::KeyRing,
    tls::{
        ClientTls, MemoryTickets, ServerTls,
        rustls_backend::{ClientBuilder, ConfigError, FixedClock, Identity, RustlsClient, RustlsServer, ServerBuilder},
    },
};
use units::{Instant, Seed};

/// The application protocol of the workloads.
const ALPN: &str = "tiderace-lab";
/// The name in the server's certificate.
pub(crate) const SERVER_NAME: &str = "server.lab.tiderace.test";
/// Time of runs, at which the certificates are valid: 2027-01-15.
pub(crate) const CLOCK: FixedClock = FixedClock { unix_secs: 1_800_000_000 };
/// Secret for the tickets of servers that know their clients.
const RING_SECRET: [u8; 32] = [0x42; 32];

/// TLS for both ends of independent connections; an error when the fixtures cannot be used.
pub(crate) type Tls = (Arc<dyn ClientTls>, Arc<dyn ServerTls>);

pub(crate) static TLS: LazyLock<Result<Tls, String>> = LazyLock::new(|| {
    // A run must not find the sessions of the one before.
    let client = client_builder().without_resumption().build().map_err(|error| error.to_string())?;
    let server = server_builder().and_then(ServerBuilder::build).map_err(|error| error.to_string())?;
    Ok((Arc::new(client), Arc::new(server)))
});

/// Client of such a connection whose keys go into `log`.
pub(crate) fn client_with_keys(log: Arc<dyn KeyLog>) -> Result<Arc<dyn ClientTls>, String> {
    let client = client_builder().without_resumption().key_log(log).build();
    Ok(Arc::new(client.map_err(|error| error.to_string())?))
}

fn client_builder() -> ClientBuilder {
    let root = include_bytes!("../fixtures/root.der").to_vec();
    RustlsClient::builder().alpn(ALPN).clock(Arc::new(CLOCK)).roots([root])
}

fn server_builder() -> Result<ServerBuilder, ConfigError> {
    let chain =
        vec![include_bytes!("../fixtures/leaf.der").to_vec(), include_bytes!("../fixtures/intermediate.der").to_vec()];
    let certificates = Identity::from_der(chain, include_bytes!("../fixtures/leaf.key.der").to_vec())?;
    Ok(RustlsServer::builder().alpn(ALPN).clock(Arc::new(CLOCK)).identity(certificates))
}

/// Key ring for the tickets and tokens of servers with returning clients.
pub(crate) fn ring() -> KeyRing {
    KeyRing::single(RING_SECRET)
}

/// A server that takes early data of the clients that [`returning_client`] makes, of each once.
pub(crate) fn server_of_returning() -> Result<Arc<dyn ServerTls>, String> {
    let server = server_builder().and_then(|builder| builder.ring(ring()).early_data(true).build());
    Ok(Arc::new(server.map_err(|error| error.to_string())?))
}

/// A client at `address` that has been at a server with this profile before: it has a ticket and a token (RFC 9000 §8.1.3). The earlier connection was
/// over a path that takes no time, and at the run's beginning.
pub(crate) fn returning_client(
    profile: &Arc<Profile>,
    address: SocketAddr,
    seed: Seed,
    keys: Option<Arc<dyn KeyLog>>,
) -> Result<ClientConfig, String> {
    let tickets = Arc::new(MemoryTickets::default());
    let tls = client_builder().ticket_store(tickets.clone()).early_data(true);
    let tls = match keys {
        Some(keys) => tls.key_log(keys),
        None => tls,
    };
    let tls = tls.build();
    let tls = Arc::new(tls.map_err(|error| error.to_string())?);
    let config = ServerConfig::new(server_of_returning()?, profile.clone());
    let config = Arc::new(ServerConfig { retry: RetryPolicy::Never, ..config });
    let of_server = EndpointConfig { ring: ring(), ..EndpointConfig::from_seed(seed.child("server", 0)) };
    let mut server = Endpoint::new(of_server, Some(config));
    let mut client = Endpoint::new(EndpointConfig::from_seed(seed.child("client", 0)), None);
    let mut config = ClientConfig::new(tls, profile.clone());
    let (now, there) = (Instant::ZERO, ([192, 0, 2, 2], 443).into());
    client.connect(now, &config, there, SERVER_NAME).map_err(|error| error.to_string())?;
    let mut buffer = vec![0; 64 * 1024];
    // Two would do without a ClientHello in two datagrams, and without a choice of versions.
    for _ in 0..10 {
        pass(now, (&mut client, address), &mut server, &mut buffer);
        pass(now, (&mut server, there), &mut client, &mut buffer);
        while let Some((_, event)) = client.poll_event() {
            if let Event::TokenReceived(token) = event {
                config.token = token.to_vec();
            }
        }
    }
    let complete = tickets.count(SERVER_NAME) > 0 && !config.token.is_empty();
    complete.then_some(config).ok_or_else(|| "the server gave no ticket at the connection before the run".to_owned())
}

/// Hands everything that `from` sends to `to`.
fn pass(now: Instant, (from, address): (&mut Endpoint, SocketAddr), to: &mut Endpoint, buffer: &mut [u8]) {
    while let Some(transmit) = from.poll_transmit(now, buffer) {
        for payload in buffer[..transmit.len].chunks(transmit.segment_size.max(1)) {
            let datagram = transport::Datagram {
                remote: address,
                local: None,
                ecn: transmit.ecn,
                received_at: now,
                segment_size: payload.len(),
                payload: payload.into(),
            };
            to.handle_datagram(now, datagram);
        }
    }
}
