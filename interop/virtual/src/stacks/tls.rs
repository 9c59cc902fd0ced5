//! rustls for the stacks that use it: fixed time, one ALPN, groups as the run asks, nothing remembered between runs.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use rustls::{
    RootCertStore,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime},
    time_provider::TimeProvider,
};

use crate::peer::{ALPN, Settings, Side};

/// A clock for certificates that stands still in the middle of their validity, 2030-01-01.
#[derive(Debug)]
struct FixedTime;

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(1_893_456_000)))
    }
}

fn provider(settings: &Settings) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if !settings.post_quantum {
        provider.kx_groups = vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1];
    }
    Arc::new(provider)
}

/// The client's side: trusts the run's root only.
pub fn client(settings: &Settings) -> Result<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(settings.identity.root.clone())).context("root certificate")?;
    let mut config = rustls::ClientConfig::builder_with_details(provider(settings), Arc::new(FixedTime))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    match settings.memory {
        Some(_) => config.enable_early_data = true,
        None => config.resumption = Resumption::disabled(),
    }
    Ok(config)
}

/// The server's side: presents the run's chain.
pub fn server(settings: &Settings) -> Result<rustls::ServerConfig> {
    let chain = settings.identity.chain.iter().cloned().map(CertificateDer::from).collect();
    let key = PrivatePkcs8KeyDer::from(settings.identity.key.clone()).into();
    let mut config = rustls::ServerConfig::builder_with_details(provider(settings), Arc::new(FixedTime))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("server certificate")?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    if settings.memory.is_some() {
        config.max_early_data_size = u32::MAX;
    }
    Ok(config)
}

/// As [`client`], or the one of the connection before.
pub fn kept_client(settings: &Settings) -> Result<rustls::ClientConfig> {
    match &settings.memory {
        Some(memory) => Ok((*memory.keep(Side::Client, || client(settings))?).clone()),
        None => client(settings),
    }
}

/// As [`server`], or the one of the connection before.
pub fn kept_server(settings: &Settings) -> Result<rustls::ServerConfig> {
    match &settings.memory {
        Some(memory) => Ok((*memory.keep(Side::Server, || server(settings))?).clone()),
        None => server(settings),
    }
}
