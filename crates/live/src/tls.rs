//! TLS of the kernel's TCP: the library of our QUIC, with a certificate for each run.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};

use crate::recipe::Recipe;

/// Name of the server in certificates and requests.
pub(crate) const SERVER_NAME: &str = "server.lab.tiderace.test";

/// Configurations of both ends.
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) name: ServerName<'static>,
}

impl Tls {
    /// Configurations for the protocols of a recipe.
    pub(crate) fn new(recipe: Recipe) -> Result<Self, String> {
        let fault = |error: &dyn std::fmt::Display| format!("cannot set up TLS: {error}");
        let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).map_err(|error| fault(&error))?;
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(|error| fault(&error))?;
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if recipe.x25519 {
            provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
        }
        let provider = Arc::new(provider);
        let only = [if recipe.tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 }];
        let alpn = vec![if recipe.http1 { b"http/1.1".to_vec() } else { b"h2".to_vec() }];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&only)
            .map_err(|error| fault(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols.clone_from(&alpn);
        // Connections of a run are those of different clients, as with our stack.
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&only)
            .map_err(|error| fault(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(|error| fault(&error))?;
        server.alpn_protocols = alpn;
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| fault(&error))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name })
    }
}
