//! Client certificates (mutual TLS): verification, and the fields for back ends.
//!
//! TLS verifies a certificate in a full handshake. A resumed session has the certificate of an earlier handshake, which is verified again
//! here, because it may have expired.

use std::{
    fmt::Write,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::digest::{Context, SHA256, digest};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::{
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tiderace::KeyRing;
use x509_parser::{
    objects::{oid_registry, oid2abbrev},
    prelude::{FromDer, GeneralName, X509Certificate},
};

use crate::{
    certificate::provider,
    keys::{self, KeysError},
    trust::{self, RootsError, Trust},
};

/// Subject of the client's certificate (RFC 4514).
const SUBJECT: HeaderName = HeaderName::from_static("x-client-cert-subject");
/// SHA-256 of the client's certificate, in hexadecimal digits.
const FINGERPRINT: HeaderName = HeaderName::from_static("x-client-cert-fingerprint");
/// Bytes of a subject that back ends get, at most.
const SUBJECT_MAX: usize = 2_048;
/// Names of a certificate that are kept, and the bytes of each, at most.
const NAMES_MAX: usize = 16;
const NAME_MAX: usize = 255;

/// The certificate that a client has shown, and that was verified.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// SHA-256 in hexadecimal digits.
    pub(crate) fingerprint: String,
    /// Distinguished name, in the form of RFC 4514; none that is too long.
    pub(crate) subject: Option<String>,
    /// Names of `subjectAltName`, as `dns:…` (in small letters), `email:…`, `uri:…` and `ip:…`.
    pub(crate) names: Vec<String>,
}

/// Reason for the refusal of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A certificate is required, and there is none.
    Missing,
    /// The certificate is not good any more.
    Invalid,
}

impl Refused {
    /// The result in metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
        }
    }
}

/// Configured verification of clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientVerification {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) roots: Vec<Vec<u8>>,
    pub(crate) is_required: bool,
    /// Names the roots and the requirement: sessions that began under others are not resumed.
    context: [u8; 32],
}

impl ClientVerification {
    /// Reads the roots in a file.
    ///
    /// # Errors
    /// When they cannot be used.
    pub(crate) fn load(roots: &str, required: bool) -> Result<Self, RootsError> {
        let Trust::Roots(pem) = Trust::read(roots)? else {
            return Err(RootsError::Empty { file: roots.to_owned() });
        };
        let store = Arc::new(trust::store(&pem).map_err(|fault| fault.within(roots))?);
        let builder = WebPkiClientVerifier::builder_with_provider(store, provider().clone());
        let builder = if required { builder } else { builder.allow_unauthenticated() };
        let verifier = builder.build().map_err(|source| RootsError::NoVerifier { file: roots.to_owned(), source })?;
        let ders = CertificateDer::pem_slice_iter(&pem).filter_map(|root| Some(root.ok()?.to_vec())).collect();
        let mut context = Context::new(&SHA256);
        context.update(&[required.into()]);
        context.update(&pem);
        let context = context.finish().as_ref().try_into().unwrap_or_default();
        Ok(Self { verifier, roots: ders, is_required: required, context })
    }

    /// Checks the certificates of a connection.
    ///
    /// # Errors
    /// When they do not let the client in.
    pub(crate) fn check(&self, chain: &[&[u8]]) -> Result<Option<Arc<ClientCertificate>>, Refused> {
        let Some((own, others)) = chain.split_first() else {
            return if self.is_required { Err(Refused::Missing) } else { Ok(None) };
        };
        let others: Vec<CertificateDer<'_>> = others.iter().map(|other| CertificateDer::from(*other)).collect();
        let verified = self.verifier.verify_client_cert(&CertificateDer::from(*own), &others, UnixTime::now());
        verified.map_err(|_| Refused::Invalid)?;
        Ok(Some(Arc::new(ClientCertificate::new(own))))
    }
}

impl ClientCertificate {
    fn new(der: &[u8]) -> Self {
        let fingerprint = digest(&SHA256, der).as_ref().iter().fold(String::new(), |mut text, byte| {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        let subject = subject(der).filter(|subject| subject.len() <= SUBJECT_MAX);
        Self { fingerprint, subject, names: names(der).unwrap_or_default() }
    }

    /// Sets the fields about the certificate for a back end.
    pub(crate) fn introduce(&self, fields: &mut HeaderMap) {
        let value = |text: &str| HeaderValue::from_str(text).ok();
        fields.extend(value(&self.fingerprint).map(|value| (FINGERPRINT, value)));
        fields.extend(self.subject.as_deref().and_then(value).map(|value| (SUBJECT, value)));
    }
}

/// The names of a certificate (RFC 5280 §4.2.1.6), without those that are no plain text.
fn names(der: &[u8]) -> Option<Vec<String>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let names = &certificate.subject_alternative_name().ok()??.value.general_names;
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(format!("dns:{}", name.to_ascii_lowercase())),
        GeneralName::RFC822Name(address) => Some(format!("email:{address}")),
        GeneralName::URI(uri) => Some(format!("uri:{uri}")),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok()?;
            Some(format!("ip:{address}"))
        }
        _ => None,
    };
    let is_plain = |name: &String| name.len() <= NAME_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    Some(names.iter().filter_map(name).filter(is_plain).take(NAMES_MAX).collect())
}

/// The subject of a certificate, as RFC 4514 §2 writes it: the last part first, and no value can be taken for several.
fn subject(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let sets: Vec<_> = certificate.subject().iter_rdn().collect();
    let mut text = String::new();
    for (number, set) in sets.iter().rev().enumerate() {
        if number > 0 {
            text.push(',');
        }
        for (number, part) in set.iter().enumerate() {
            if number > 0 {
                text.push('+');
            }
            match oid2abbrev(part.attr_type(), oid_registry()) {
                Ok(name) => text.push_str(name),
                Err(_) => text.push_str(&part.attr_type().to_id_string()),
            }
            text.push('=');
            escape(&mut text, part.as_str().ok()?);
        }
    }
    Some(text)
}

/// RFC 4514 §2.4. Bytes beyond ASCII are escaped, too, so that a field can have them.
fn escape(text: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' | b'=' => {
                text.push('\\');
                text.push(byte.into());
            }
            b' ' if at == 0 || at == last => text.push_str("\\ "),
            b'#' if at == 0 => text.push_str("\\#"),
            b' '..=b'~' => text.push(byte.into()),
            // Writing into a string does not fail.
            byte => drop(write!(text, "\\{byte:02X}")),
        }
    }
}

/// Keys for the tickets of clients with certificates: of this process alone, and others when the roots are.
#[derive(Default)]
pub(crate) struct ClientRing(Mutex<Option<([u8; 32], KeyRing)>>);

impl ClientRing {
    /// The ring for a verification.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn of(&self, verification: &ClientVerification) -> Result<KeyRing, KeysError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((context, ring)) if *context == verification.context => Ok(ring.clone()),
            _ => {
                let ring = keys::own_ring()?;
                *known = Some((verification.context, ring.clone()));
                Ok(ring)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType};

    use super::*;

    fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    }

    fn client(issuer: &Issuer<'_, KeyPair>, parts: &[(DnType, &str)], is_over: bool) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        if is_over {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        }
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().to_vec()
    }

    fn verification(pem: &str, required: bool) -> ClientVerification {
        let folder = tempfile::tempdir().unwrap();
        let roots = folder.path().join("ca.pem");
        std::fs::write(&roots, pem).unwrap();
        let roots = roots.to_string_lossy().into_owned();
        ClientVerification::load(&roots, required).unwrap()
    }

    #[test]
    fn only_certificates_under_a_root_and_in_their_time_are_good() {
        let ((pem, issuer), (_, other)) = (authority("ours"), authority("theirs"));
        let parts = [(DnType::CommonName, "alice")];
        let good = client(&issuer, &parts, false);
        for required in [true, false] {
            let verification = verification(&pem, required);
            assert!(verification.check(&[&good]).unwrap().is_some());
            for bad in [client(&other, &parts, false), client(&issuer, &parts, true), b"no certificate".to_vec()] {
                assert_eq!(verification.check(&[&bad]), Err(Refused::Invalid));
            }
            let missing = if required { Err(Refused::Missing) } else { Ok(None) };
            assert_eq!(verification.check(&[]), missing);
        }
    }

    #[test]
    fn a_subject_says_nothing_beside_its_parts() {
        let (_, issuer) = authority("ours");
        for (parts, expected) in [
            (&[(DnType::OrganizationName, "Ours"), (DnType::CommonName, "alice")][..], "CN=alice,O=Ours"),
            (&[(DnType::CommonName, "alice,O=Admins")], "CN=alice\\,O\\=Admins"),
            (&[(DnType::CommonName, " a+b;\"c\\d ")], "CN=\\ a\\+b\\;\\\"c\\\\d\\ "),
            (&[(DnType::CommonName, "#\u{e9}\r\n")], "CN=\\#\\C3\\A9\\0D\\0A"),
            (&[], ""),
        ] {
            assert_eq!(subject(&client(&issuer, parts, false)).as_deref(), Some(expected));
        }
        let long = ClientCertificate::new(&client(&issuer, &[(DnType::CommonName, &"x".repeat(5_000))], false));
        assert_eq!((long.subject, long.fingerprint.len()), (None, 64));
    }

    #[test]
    fn names_are_plain_text_and_bounded() {
        let (_, issuer) = authority("ours");
        let of = |names: Vec<SanType>| {
            let mut params = CertificateParams::default();
            params.subject_alt_names = names;
            let der = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().to_vec();
            ClientCertificate::new(&der).names
        };
        let text = |text: &str| text.try_into().unwrap();
        let all = of(vec![
            SanType::DnsName(text("Alice.example.org")),
            SanType::Rfc822Name(text("alice@example.org")),
            SanType::URI(text("spiffe://ours/alice")),
            SanType::URI(text("uri with spaces\n")),
            SanType::IpAddress([192, 0, 2, 1].into()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
        ]);
        let expected = [
            "dns:alice.example.org",
            "email:alice@example.org",
            "uri:spiffe://ours/alice",
            "ip:192.0.2.1",
            "ip:2001:db8::1",
        ];
        assert_eq!(all, expected);
        assert_eq!(of(Vec::new()), Vec::<String>::new());
        let many = (0..100).map(|number| SanType::DnsName(text(&format!("host-{number}")))).collect();
        assert_eq!(of(many).len(), NAMES_MAX);
        assert_eq!(of(vec![SanType::DnsName(text(&"x".repeat(300)))]), Vec::<String>::new());
    }

    #[test]
    fn sessions_are_resumed_under_the_same_roots_only() {
        let ((one, _), (two, _)) = (authority("one"), authority("two"));
        let rings = ClientRing::default();
        let secret = |pem: &str, required| rings.of(&verification(pem, required)).unwrap().keys()[0].secret;
        let first = secret(&one, true);
        assert!(secret(&one, true) == first);
        assert!(secret(&one, false) != first && secret(&two, true) != first);
        assert!(secret(&one, true) != first, "the old ring is forgotten");
    }
}
