//! `[signer]`: private keys on another machine.

use std::{path::Path, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;

use super::{
    Config, Many, Span,
    read::{
        ConfigCause, Fault,
        Step::{self, Key, Number},
    },
    section::section,
};
use crate::{
    certificate::{self, CertificateError},
    remote_signer::{self, KeyId, LinkConfig, SignerError, SignerLinkError},
};

/// Least time that a signer may be given.
const MIN_TIME_LIMIT: Duration = Duration::from_millis(10);

section! {
    /// `[signer]`: another machine has the private keys, and signs handshakes (`tiderace edge signer`). Certificates without a `key` are
    /// signed for there. Both sides show certificates, which have nothing to do with those of the site.
    pub struct Signer {
        /// Host and port of the signer, as in `signer.internal:7443`. One or a list, of which the next is asked when one fails.
        address: Many = Many::default(),
        /// Name in the signer's certificate. Empty: the host of the address.
        name: String = String::new(),
        /// Roots of the signer's certificate (PEM).
        roots: String = String::new(),
        /// Certificate chain of this gateway for the signer (PEM).
        certificate: String = String::new(),
        /// Private key of `certificate` (PEM).
        key: String = String::new(),
        /// Time limit for a signature. Then the handshake fails, or is signed here.
        time_limit: Span = Span::secs(2),
        /// Signatures under way at a time. Handshakes beyond it fail, or are signed here.
        waiting: usize = 256,
        /// Certificates that have a `key` here ask the signer, too, and sign here when it does not answer. `false`: they sign here.
        fall_back: bool = false,
    }
}

/// Host of `host:port`.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    Some(host.trim_start_matches('[').trim_end_matches(']')).filter(|host| is_port && !host.is_empty())
}

impl Signer {
    /// Name in the certificate of the signer at an address.
    ///
    /// # Errors
    /// When it is neither a name nor an address.
    fn name_of(&self, address: &str) -> Result<ServerName<'static>, SignerLinkError> {
        let name = if self.name.is_empty() { host(address).unwrap_or_default() } else { &self.name };
        ServerName::try_from(name.to_owned()).map_err(|source| SignerLinkError::Name { name: name.to_owned(), source })
    }

    /// Configuration of the link to the signer.
    ///
    /// # Errors
    /// When a signer has no name.
    pub(crate) fn link(&self) -> Result<LinkConfig<'_>, SignerLinkError> {
        let signer = |address| Ok((address, self.name_of(address)?));
        let signers = self.address.0.iter().map(String::as_str).map(signer).collect::<Result<_, SignerLinkError>>();
        Ok(LinkConfig {
            signers: signers?,
            roots: &self.roots,
            certificate: self.certificate.as_ref(),
            key: self.key.as_ref(),
            time_limit: self.time_limit.0,
            waiting: self.waiting,
        })
    }
}

impl Config {
    /// Certificates that are signed for by the signer: where they stand, their chain, and the key that they have here.
    fn signed_elsewhere(&self) -> impl Iterator<Item = (Vec<Step>, &str, &str)> {
        let own = (Vec::new(), self.certificate.as_str(), self.key.as_str());
        let others = self.certificates.iter().enumerate().map(|(number, certificate)| {
            let at = vec![Key("certificate-for"), Number(number)];
            (at, certificate.certificate.as_str(), certificate.key.as_str())
        });
        let fall_back = self.signer.as_ref().is_some_and(|signer| signer.fall_back);
        let all = std::iter::once(own).chain(others);
        all.filter(move |(_, chain, key)| !chain.is_empty() && (key.is_empty() || fall_back))
    }
}

/// Checks what needs no file.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let Some(section) = &config.signer else { return Ok(()) };
    let at = |key| [Key("signer"), Key(key)];
    if section.address.0.is_empty() {
        return Err(Fault::new(&[Key("signer")], "expected `address`").hint("address = \"signer.internal:7443\""));
    }
    for address in &section.address.0 {
        if host(address).is_none() {
            let message = format!("expected host and port as in `signer.internal:7443`, found `{address}`");
            return Err(Fault::new(&at("address"), message).hint("`tiderace edge signer` prints where it listens"));
        }
        let named = if section.name.is_empty() { "address" } else { "name" };
        section.name_of(address).map_err(|error| Fault::new(&at(named), error.to_string()))?;
    }
    for (key, value) in [("roots", &section.roots), ("certificate", &section.certificate), ("key", &section.key)] {
        if value.is_empty() {
            let message = format!("expected `{key}`: gateway and signer know each other by certificates");
            return Err(Fault::new(&[Key("signer")], message)
                .hint("roots = \"signer-ca.pem\", certificate = \"gateway.pem\" and key = \"gateway.key\""));
        }
    }
    if section.time_limit.0 < MIN_TIME_LIMIT {
        return Err(Fault::new(&at("time-limit"), "expected at least 10 ms"));
    }
    if section.waiting == 0 {
        return Err(Fault::new(&at("waiting"), "a limit of 0 serves nobody; expected at least 1"));
    }
    Ok(())
}

/// Checks the files.
pub(super) fn check_files(config: &Config) -> Result<(), Fault> {
    let Some(section) = &config.signer else { return Ok(()) };
    let fault = |path: &[Step], error: CertificateError| {
        let mut path = path.to_vec();
        path.push(Key(if error.is_key() { "key" } else { "certificate" }));
        let hint = error.hint();
        Fault { hint, ..Fault::of(&path, error.to_string(), ConfigCause::Certificate(Arc::new(error))) }
    };
    crate::trust::Trust::read(&section.roots).map_err(|error| {
        Fault::of(&[Key("signer"), Key("roots")], error.to_string(), ConfigCause::Roots(Arc::new(error)))
    })?;
    certificate::read(Path::new(&section.certificate), Path::new(&section.key))
        .map_err(|error| fault(&[Key("signer")], error))?;
    for (at, chain, _) in config.signed_elsewhere() {
        let chain = certificate::read_chain(Path::new(chain)).map_err(|error| fault(&at, error))?;
        if !remote_signer::is_usable(&chain[0]) {
            return Err(fault(&at, CertificateError::UnknownKey));
        }
    }
    Ok(())
}

/// Signers that do not answer, are not believed, or lack a key. The gateway starts all the same: sessions are resumed without them.
pub(super) async fn examine(config: &Config, patience: Duration) -> Vec<Fault> {
    let Some(section) = &config.signer else { return Vec::new() };
    // Files were checked before.
    let Ok(link) = section.link() else { return Vec::new() };
    let Ok(probed) = remote_signer::probe(&link, patience).await else { return Vec::new() };
    let needed: Vec<(Vec<Step>, KeyId)> = config
        .signed_elsewhere()
        .filter_map(|(at, chain, _)| {
            let chain = certificate::read_chain(Path::new(chain)).ok()?;
            Some((at, remote_signer::key_id(&chain[0])?))
        })
        .collect();
    let mut warnings = Vec::new();
    for (address, keys) in probed {
        match keys {
            Err(error) => {
                warnings.push(Fault::new(&[Key("signer"), Key("address")], error.to_string()).hint(error.hint()))
            }
            Ok(keys) => {
                for (at, _) in needed.iter().filter(|(_, key)| !keys.contains(key)) {
                    let at = [&at[..], &[Key("certificate")]].concat();
                    let message = format!("the signer at {address} has no key for this certificate");
                    warnings.push(Fault::new(&at, message).hint(SignerError::UnknownKey.hint()));
                }
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    #[test]
    fn what_contradicts_has_a_place_and_advice() {
        let top = "certificate = \"c\"\n[[route]]\nto = \"http://a:1\"\n";
        let files = "roots = \"r\"\ncertificate = \"c\"\nkey = \"k\"\n";
        let parsed = |section: &str| parse(&format!("{top}[signer]\n{section}"), "edge.toml");
        for (section, line, field, message) in [
            (files.to_owned(), 4, "signer", "expected `address`"),
            (format!("address = \"a\"\n{files}"), 5, "signer.address", "host and port"),
            (format!("address = \"a:0\"\n{files}"), 5, "signer.address", "host and port"),
            (format!("address = \"a:1\"\nname = \"-\"\n{files}"), 6, "signer.name", "expected a name"),
            ("address = \"a:1\"\n".to_owned(), 4, "signer", "expected `roots`"),
            (format!("address = \"a:1\"\n{}", files.replace("key = \"k\"", "")), 4, "signer", "expected `key`"),
            (format!("address = \"a:1\"\ntime-limit = \"1 ms\"\n{files}"), 6, "signer.time-limit", "at least 10 ms"),
            (format!("address = \"a:1\"\nwaiting = 0\n{files}"), 6, "signer.waiting", "at least 1"),
        ] {
            let error = parsed(&section).unwrap_err();
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(field)), "{section}{error}");
            assert!(error.message.contains(message), "{error}");
        }
        let good = format!("address = [\"a:1\", \"[::1]:2\"]\n{files}");
        parsed(&good).unwrap();
        let without = parse(top, "edge.toml").unwrap_err();
        assert!(without.message.contains("expected `key`"), "{without}");
    }
}
