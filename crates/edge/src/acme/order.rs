//! Order of a certificate: account, order, validation of the names, and the result.

use std::{
    fs, io,
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

use super::{
    Challenges,
    error::{OrderError, Step},
    store,
};
use crate::{certificate, config::Acme, trust::Trust};

/// Stored account.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    directory: String,
    credentials: AccountCredentials,
}

/// Orders a certificate and stores it. The stored one is kept unless all steps succeed.
pub(super) async fn order(config: &Acme, challenges: &Arc<Challenges>) -> Result<(), OrderError> {
    let account = account(config).await?;
    let names: Vec<Identifier> = config.names.0.iter().map(|name| Identifier::Dns(name.to_ascii_lowercase())).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(Step::Order.failed())?;
    let mut shown = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(Step::Authorization.failed())?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            other => return Err(OrderError::Authorization(other)),
        }
        let mut challenge = authorization.challenge(ChallengeType::TlsAlpn01).ok_or(OrderError::NoChallenge)?;
        let name = challenge.identifier().to_string();
        // Only the names of the order: an authority does not choose what is proved to whom.
        if !config.names.0.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
            return Err(OrderError::NotOrdered(name));
        }
        let proof = proof(&name, challenge.key_authorization().digest().as_ref())?;
        shown.push(challenges.show(&name, Arc::new(proof)));
        challenge.set_ready().await.map_err(Step::Challenge.failed())?;
    }
    let status = order.poll_ready(&RetryPolicy::default()).await.map_err(Step::Validation.failed())?;
    if status != OrderStatus::Ready {
        return Err(OrderError::NotReady { status, names: config.names.0.clone() });
    }
    drop(shown);
    let key = KeyPair::generate().map_err(OrderError::Request)?;
    let lower: Vec<String> = config.names.0.iter().map(|name| name.to_ascii_lowercase()).collect();
    let mut parameters = CertificateParams::new(lower).map_err(OrderError::Request)?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let request = parameters.serialize_request(&key).map_err(OrderError::Request)?;
    order.finalize_csr(request.der()).await.map_err(Step::Request.failed())?;
    let chain = order.poll_certificate(&RetryPolicy::default()).await.map_err(Step::Certificate.failed())?;
    keep(config, &chain, &key)
}

/// Checks a new certificate, and replaces the stored one.
fn keep(config: &Acme, chain: &str, key: &KeyPair) -> Result<(), OrderError> {
    let validity = store::validity_of(chain.as_bytes()).map_err(OrderError::NoCertificate)?;
    if !validity.is_for(&config.names.0) {
        return Err(OrderError::OtherNames(validity.names));
    }
    if validity.until <= SystemTime::now() {
        return Err(OrderError::Expired);
    }
    let file = store::file(config).ok_or(OrderError::NoName)?;
    let unwritable = |source: io::Error| OrderError::Unwritable { path: file.clone(), source };
    let text = format!("{}{chain}", key.serialize_pem());
    // Tried as it will be used, beside the one in use.
    let trial = file.with_extension("trial");
    store::write(&trial, text.as_bytes()).map_err(unwritable)?;
    let usable = certificate::read(&trial, &trial);
    let _ = fs::remove_file(&trial);
    usable.map_err(OrderError::Unusable)?;
    store::write(&file, text.as_bytes()).map_err(unwritable)
}

fn builder(config: &Acme) -> Result<AccountBuilder, OrderError> {
    let tls = Trust::read(&config.roots).and_then(|trust| trust.client())?;
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().enable_http2().build();
    let client: Client<_, BodyWrapper<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    Ok(Account::builder_with_http(Box::new(client)))
}

fn account_file(config: &Acme) -> PathBuf {
    Path::new(&config.folder).join("account.json")
}

/// The account that is kept for this authority, or a new one.
async fn account(config: &Acme) -> Result<Account, OrderError> {
    let file = account_file(config);
    let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<StoredAccount>(&text).ok());
    if let Some(kept) = kept.filter(|kept| kept.directory == config.directory) {
        return builder(config)?.from_credentials(kept.credentials).await.map_err(Step::Account.failed());
    }
    let contact: Vec<String> = config.contact.0.iter().map(|address| format!("mailto:{address}")).collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let wanted =
        NewAccount { contact: &contact, terms_of_service_agreed: config.terms_agreed, only_return_existing: false };
    let created = builder(config)?.create(&wanted, config.directory.clone(), None).await;
    let (account, credentials) = created.map_err(Step::Account.failed())?;
    let text = serde_json::to_vec(&StoredAccount { directory: config.directory.clone(), credentials });
    let text = text.map_err(OrderError::Account)?;
    store::write(&file, &text).map_err(|source| OrderError::Unwritable { path: file, source })?;
    Ok(account)
}

/// Certificate that proves to the authority that `name` leads here (RFC 8737 §3).
fn proof(name: &str, digest: &[u8]) -> Result<CertifiedKey, OrderError> {
    if digest.len() != 32 {
        return Err(OrderError::Digest(digest.len()));
    }
    let key = KeyPair::generate().map_err(OrderError::Proof)?;
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).map_err(OrderError::Proof)?;
    parameters.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let certificate = parameters.self_signed(&key).map_err(OrderError::Proof)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = certificate::provider().key_provider.load_private_key(key).map_err(OrderError::ProofKey)?;
    // Not read again: its critical extension is one that nobody knows but who asks for it.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use super::{super::error::ValidityError, *};
    use crate::{certificate::CertificateError, config::Many, trust::RootsError};

    fn config(folder: &Path) -> Acme {
        Acme {
            folder: folder.join("acme").to_string_lossy().into_owned(),
            names: Many(vec!["a.example".to_owned()]),
            directory: "https://127.0.0.1:1/".to_owned(),
            ..Acme::default()
        }
    }

    /// Certificate for `name` with its key, which ends in this year.
    fn made(name: &str, until: i32) -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
        (parameters.self_signed(&key).unwrap().pem(), key)
    }

    #[test]
    fn each_fault_of_a_result_has_its_variant_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let (good, key) = made("a.example", 2999);
        keep(&config, &good, &key).unwrap();
        let kept = fs::read(store::file(&config).unwrap()).unwrap();
        type Expected = fn(&OrderError) -> bool;
        let cases: [(String, Expected); 5] = [
            ("nothing".to_owned(), |error| matches!(error, OrderError::NoCertificate(ValidityError::Pem(_)))),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(), |error| {
                matches!(error, OrderError::NoCertificate(ValidityError::Malformed(_)))
            }),
            (
                made("b.example", 2999).0,
                |error| matches!(error, OrderError::OtherNames(names) if *names == ["b.example"]),
            ),
            (made("a.example", 2001).0, |error| matches!(error, OrderError::Expired)),
            (made("a.example", 2999).0, |error| {
                matches!(error, OrderError::Unusable(CertificateError::Mismatch { .. }))
            }),
        ];
        for (chain, is_expected) in cases {
            let error = keep(&config, &chain, &key).unwrap_err();
            assert!(is_expected(&error), "{error:?}");
        }
        assert_eq!(fs::read(store::file(&config).unwrap()).unwrap(), kept);
        let nameless = keep(&Acme { names: Many::default(), ..config.clone() }, &good, &key).unwrap_err();
        assert!(matches!(nameless, OrderError::NoName), "{nameless:?}");
        // A file in the place of the folder.
        let file = store::file(&config).unwrap().to_string_lossy().into_owned();
        let unwritable = keep(&Acme { folder: file, ..config }, &good, &key).unwrap_err();
        assert!(matches!(unwritable, OrderError::Unwritable { .. }), "{unwritable:?}");
    }

    #[tokio::test]
    async fn each_fault_before_the_order_has_its_variant() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let roots = folder.path().join("roots.pem");
        let from = Acme { roots: roots.to_string_lossy().into_owned(), ..config };
        let unreadable = order(&from, &Arc::default()).await.unwrap_err();
        assert!(matches!(unreadable, OrderError::Roots(RootsError::Unreadable { .. })), "{unreadable:?}");
        fs::write(&roots, made("authority.example", 2999).0).unwrap();
        // Nobody serves at port 1.
        let unreachable = order(&from, &Arc::default()).await.unwrap_err();
        assert!(matches!(unreachable, OrderError::Exchange { step: Step::Account, .. }), "{unreachable:?}");
    }

    #[test]
    fn a_challenge_has_a_digest_of_32_bytes() {
        assert!(proof("a.example", &[7; 32]).is_ok());
        let error = proof("a.example", &[7; 31]).unwrap_err();
        assert!(matches!(error, OrderError::Digest(31)), "{error:?}");
    }
}
