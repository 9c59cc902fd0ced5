//! Order of a certificate: account, order, validation of the names, and the result.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use instant_acme::{
    Account, AccountBuilder, AccountCredentials, AuthorizationStatus, BodyWrapper, ChallengeType, Identifier,
    NewAccount, NewOrder, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use serde::{Deserialize, Serialize};

use super::{Challenges, store};
use crate::{certificate, config::Acme, trust::Trust};

/// Stored account.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    directory: String,
    credentials: AccountCredentials,
}

fn says(what: &str) -> impl Fn(instant_acme::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// Orders a certificate and stores it. The stored one is kept unless all steps succeed.
pub(super) async fn order(config: &Acme, challenges: &Arc<Challenges>) -> Result<(), String> {
    let account = account(config).await?;
    let names: Vec<Identifier> = config.names.0.iter().map(|name| Identifier::Dns(name.to_ascii_lowercase())).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(says("the order"))?;
    let mut shown = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(says("an authorization"))?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            other => return Err(format!("an authorization is {other:?}")),
        }
        let mut challenge = authorization
            .challenge(ChallengeType::TlsAlpn01)
            .ok_or("the authority does not offer to look by TLS-ALPN-01")?;
        let name = challenge.identifier().to_string();
        // Only the names of the order: an authority does not choose what is proved to whom.
        if !config.names.0.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
            return Err(format!("the authority asks for a proof for `{name}`, which was not ordered"));
        }
        let proof = proof(&name, challenge.key_authorization().digest().as_ref())?;
        shown.push(challenges.show(&name, Arc::new(proof)));
        challenge.set_ready().await.map_err(says("the challenge"))?;
    }
    let status = order.poll_ready(&RetryPolicy::default()).await.map_err(says("the authority has looked"))?;
    if status != OrderStatus::Ready {
        return Err(format!("the order is {status:?}: the authority has not found {} here", config.names.0.join(", ")));
    }
    drop(shown);
    let unusable = |error: rcgen::Error| format!("the request for the certificate: {error}");
    let key = KeyPair::generate().map_err(unusable)?;
    let lower: Vec<String> = config.names.0.iter().map(|name| name.to_ascii_lowercase()).collect();
    let mut parameters = CertificateParams::new(lower).map_err(unusable)?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let request = parameters.serialize_request(&key).map_err(unusable)?;
    order.finalize_csr(request.der()).await.map_err(says("the request"))?;
    let chain = order.poll_certificate(&RetryPolicy::default()).await.map_err(says("the certificate"))?;
    keep(config, &chain, &key)
}

/// Checks a new certificate, and replaces the stored one.
fn keep(config: &Acme, chain: &str, key: &KeyPair) -> Result<(), String> {
    let validity = store::validity_of(chain.as_bytes()).map_err(|why| format!("what came is no certificate: {why}"))?;
    if !validity.is_for(&config.names.0) {
        return Err(format!("what came is for {}", validity.names.join(", ")));
    }
    if validity.until <= SystemTime::now() {
        return Err("what came is no longer good".to_owned());
    }
    let file = store::file(config).ok_or("no name")?;
    let cannot = |error: std::io::Error| format!("cannot write {}: {error}", file.display());
    let text = format!("{}{chain}", key.serialize_pem());
    // Tried as it will be used, beside the one in use.
    let trial = file.with_extension("trial");
    store::write(&trial, text.as_bytes()).map_err(cannot)?;
    let usable = certificate::read(&trial, &trial);
    let _ = fs::remove_file(&trial);
    usable.map_err(|error| format!("what came cannot be used: {error}"))?;
    store::write(&file, text.as_bytes()).map_err(cannot)
}

fn builder(config: &Acme) -> Result<AccountBuilder, String> {
    let tls = Trust::read(&config.roots).and_then(|trust| trust.client()).map_err(|error| error.to_string())?;
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().enable_http2().build();
    let client: Client<_, BodyWrapper<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    Ok(Account::builder_with_http(Box::new(client)))
}

fn account_file(config: &Acme) -> PathBuf {
    Path::new(&config.folder).join("account.json")
}

/// The account that is kept for this authority, or a new one.
async fn account(config: &Acme) -> Result<Account, String> {
    let file = account_file(config);
    let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<StoredAccount>(&text).ok());
    if let Some(kept) = kept.filter(|kept| kept.directory == config.directory) {
        return builder(config)?.from_credentials(kept.credentials).await.map_err(says("the account"));
    }
    let contact: Vec<String> = config.contact.0.iter().map(|address| format!("mailto:{address}")).collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let wanted =
        NewAccount { contact: &contact, terms_of_service_agreed: config.terms_agreed, only_return_existing: false };
    let created = builder(config)?.create(&wanted, config.directory.clone(), None).await;
    let (account, credentials) = created.map_err(says("the account"))?;
    let text = serde_json::to_vec(&StoredAccount { directory: config.directory.clone(), credentials });
    let text = text.map_err(|error| format!("the account cannot be kept: {error}"))?;
    store::write(&file, &text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(account)
}

/// Certificate that proves to the authority that `name` leads here (RFC 8737 §3).
fn proof(name: &str, digest: &[u8]) -> Result<CertifiedKey, String> {
    let wrong = |error: rcgen::Error| format!("the answer to the challenge: {error}");
    if digest.len() != 32 {
        return Err("the challenge has no digest of 32 bytes".to_owned());
    }
    let key = KeyPair::generate().map_err(wrong)?;
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).map_err(wrong)?;
    parameters.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let certificate = parameters.self_signed(&key).map_err(wrong)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = certificate::provider().key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    // Not read again: its critical extension is one that nobody knows but who asks for it.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}
