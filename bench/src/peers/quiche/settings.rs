//! Configuration of quiche: the settings of all stacks, in its words.

use anyhow::Result;
use boring::{
    pkey::PKey,
    ssl::{SslContextBuilder, SslMethod, SslVerifyMode},
    x509::{X509, store::X509StoreBuilder},
};
use bytes::Bytes;
use quiche::Config;

use crate::{
    identity::{ALPN, ServerIdentity},
    stack::Settings,
};

/// Length of the connection IDs that endpoints choose.
pub(super) const ID_LEN: usize = 8;
/// Queues are bounded in datagrams: as many as others hold of 1,200 B in theirs.
const DATAGRAMS: usize = Settings::DATAGRAM_QUEUE as usize / 1_264;

/// Stream data and datagrams are handed over as they are, without a copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers;

impl quiche::BufFactory for Buffers {
    type Buf = Bytes;
    type DgramBuf = Bytes;

    fn buf_from_slice(slice: &[u8]) -> Bytes {
        Bytes::copy_from_slice(slice)
    }

    fn dgram_buf_from_slice(slice: &[u8]) -> Bytes {
        Bytes::copy_from_slice(slice)
    }
}

/// Of a server with this certificate and key.
pub(super) fn server(settings: Settings, identity: &ServerIdentity) -> Result<Config> {
    let mut tls = SslContextBuilder::new(SslMethod::tls())?;
    let leaf = X509::from_der(&identity.leaf)?;
    tls.set_certificate(&leaf)?;
    let key = PKey::private_key_from_der(identity.key.secret_der())?;
    tls.set_private_key(&key)?;
    config(settings, tls)
}

/// Of a client that trusts one authority.
pub(super) fn client(settings: Settings, trust: &[u8]) -> Result<Config> {
    let mut tls = SslContextBuilder::new(SslMethod::tls())?;
    let mut roots = X509StoreBuilder::new()?;
    let authority = X509::from_der(trust)?;
    roots.add_cert(&authority)?;
    tls.set_cert_store_builder(roots);
    tls.set_verify(SslVerifyMode::PEER);
    let mut config = config(settings, tls)?;
    config.verify_peer(true);
    Ok(config)
}

fn config(settings: Settings, mut tls: SslContextBuilder) -> Result<Config> {
    // Of the cipher suites BoringSSL takes AES-128-GCM by itself where the processor has AES.
    tls.set_curves_list("X25519")?;
    let mut config = Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls)?;
    config.set_application_protos(&[ALPN])?;
    if settings.resume {
        config.enable_early_data();
    }
    config.set_max_idle_timeout(u64::try_from(Settings::IDLE_TIMEOUT.as_millis())?);
    config.set_max_send_udp_payload_size(Settings::UDP_PAYLOAD.into());
    config.discover_pmtu(false);
    // It paces by telling when each packet may leave. Its own programs leave that to the kernel, whose loopback takes no notice.
    config.enable_pacing(false);
    config.set_initial_max_data(Settings::CONNECTION_WINDOW.into());
    config.set_max_connection_window(Settings::CONNECTION_WINDOW.into());
    config.set_initial_max_stream_data_bidi_local(Settings::STREAM_WINDOW.into());
    config.set_initial_max_stream_data_bidi_remote(Settings::STREAM_WINDOW.into());
    config.set_max_stream_window(Settings::STREAM_WINDOW.into());
    config.set_initial_max_streams_bidi(settings.streams.into());
    config.enable_dgram(true, DATAGRAMS, DATAGRAMS);
    Ok(config)
}
