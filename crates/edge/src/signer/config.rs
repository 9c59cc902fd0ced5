//! The configuration of a signer.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::token::{KeyName, Pkcs11Token, TokenConfig, TokenError};
use crate::config::{
    ConfigCause, ConfigError, Many, address,
    read::{
        Fault,
        Step::{self, Key, Number},
        explain, locate, read_text,
    },
    section::section,
};

section! {
    /// The whole file. Gateways come to `listen` with a certificate that `clients` vouches for, and have their handshakes signed.
    pub struct SignerConfig {
        /// Addresses and ports for gateways. One or a list.
        listen: Many = Many(vec!["[::]:7443".to_owned()]),
        /// Certificate chain of the signer (PEM). It is not one of the site's.
        certificate: String = String::new(),
        /// Private key of `certificate` (PEM).
        key: String = String::new(),
        /// Roots of the gateways' certificates (PEM). Whoever has such a certificate can have handshakes signed with every key here: use
        /// an authority of its own.
        clients: String = String::new(),
        /// Threads that sign. 0: one for each processor.
        workers: u8 = 0,
        /// Gateways at a time.
        connections: usize = 256,
        /// Signatures of one gateway that are under way at a time. What exceeds them waits at the gateway.
        waiting: usize = 1_024,
        /// Address and port that serve `/metrics` over plain HTTP. Empty: none.
        metrics: String = String::new(),
        /// Device with private keys (PKCS #11).
        pkcs11: Pkcs11Token = Pkcs11Token::default(),
        /// Certificates of the sites with their private keys.
        #[serde(rename = "identity")]
        identities: Vec<SignerIdentity> = Vec::new(),
    }
}

section! {
    /// `[[identity]]`: a private key that handshakes are signed with. Read again with SIGHUP.
    pub struct SignerIdentity {
        /// Certificate chain of the site (PEM), as the gateways have it.
        certificate: String = String::new(),
        /// Private key of `certificate` (PEM). The gateways have it not.
        key: String = String::new(),
        /// Label of the private key in the token of `[pkcs11]`, in place of `key`.
        key_label: String = String::new(),
        /// ID of the private key in the token, in hexadecimal digits, in place of `key` or beside `key-label`.
        key_id: String = String::new(),
    }
}

/// Configuration that was read and checked.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) clients: String,
    pub(super) workers: u8,
    pub(super) connections: usize,
    pub(super) waiting: usize,
    pub(super) token: Option<TokenConfig>,
    pub(super) identities: Vec<Identity>,
}

/// Certificate whose handshakes are signed.
#[derive(Debug)]
pub(super) struct Identity {
    /// File of the chain.
    pub(super) certificate: PathBuf,
    pub(super) key: KeyPlace,
}

/// Place of a private key.
#[derive(Debug)]
pub(super) enum KeyPlace {
    File(PathBuf),
    Token(KeyName),
}

const REFERENCE: &str = "`tiderace edge signer reference` prints every setting with its meaning";

/// Reads and checks a file. Paths in it are relative to its directory.
///
/// # Errors
/// When it cannot be read, or says something that cannot be.
pub(super) fn load(file: &Path) -> Result<Resolved, ConfigError> {
    let (name, text) = read_text(file, "give the path of a configuration: tiderace edge signer CONFIG")?;
    let config: SignerConfig = toml::from_str(&text).map_err(|error| {
        let mut error = explain(&text, &name, &error);
        error.hint = error.hint.map(|hint| hint.replace("tiderace edge reference", "tiderace edge signer reference"));
        error
    })?;
    let directory = file.parent().unwrap_or_else(|| Path::new("."));
    resolve(&config, directory).map_err(|fault| {
        let fault = if fault.hint.is_some() { fault } else { fault.hint(REFERENCE) };
        locate(&text, &name, fault)
    })
}

fn resolve(config: &SignerConfig, directory: &Path) -> Result<Resolved, Fault> {
    let addresses = |key: &'static str, texts: &[String]| -> Result<Vec<SocketAddr>, Fault> {
        let parse = |text: &String| address(text).map_err(|error| Fault::new(&[Key(key)], error.to_string()));
        texts.iter().map(parse).collect()
    };
    let listen = addresses("listen", &config.listen.0)?;
    if listen.is_empty() {
        return Err(Fault::new(&[Key("listen")], "expected an address with a port, found none"));
    }
    let metrics = Some(config.metrics.clone()).filter(|text| !text.is_empty());
    let metrics = addresses("metrics", metrics.as_slice())?.first().copied();
    for (key, value) in [("certificate", &config.certificate), ("key", &config.key), ("clients", &config.clients)] {
        if value.is_empty() {
            let message = format!("expected `{key}`: gateways and signer know each other by certificates");
            return Err(Fault::new(&[Key("listen")], message).hint(
                "certificate = \"signer.pem\", key = \"signer.key\" and clients = \"gateways.pem\", before the first [[identity]]",
            ));
        }
    }
    for (key, value) in [("connections", config.connections), ("waiting", config.waiting)] {
        if value == 0 {
            return Err(Fault::new(&[Key(key)], "a limit of 0 serves nobody; expected at least 1"));
        }
    }
    let path = |text: &str| directory.join(text);
    let (certificate, key) = (path(&config.certificate), path(&config.key));
    is_usable(&[], &certificate, &key)?;
    let clients = path(&config.clients).display().to_string();
    crate::trust::Trust::read(&clients).map_err(|error| {
        Fault::of(&[Key("clients")], error.to_string(), ConfigCause::Roots(Arc::new(error)))
            .hint("the file has to have the certificate of the authority that the gateways' certificates come from")
    })?;
    if config.identities.is_empty() {
        return Err(Fault::new(&[Key("listen")], "expected at least one [[identity]]: nothing would be signed")
            .hint("[[identity]]\n      certificate = \"cert.pem\"\n      key = \"key.pem\""));
    }
    let token = config.pkcs11.resolve(directory)?;
    let mut identities = Vec::new();
    for (number, section) in config.identities.iter().enumerate() {
        identities.push(identity(section, number, token.is_some(), directory)?);
    }
    let SignerConfig { workers, connections, waiting, .. } = *config;
    Ok(Resolved { listen, metrics, certificate, key, clients, workers, connections, waiting, token, identities })
}

/// Checks an identity. Keys in a token are looked for when it is open.
fn identity(section: &SignerIdentity, number: usize, has_token: bool, directory: &Path) -> Result<Identity, Fault> {
    let at = [Key("identity"), Number(number)];
    let at_key = |key| [Key("identity"), Number(number), Key(key)];
    if section.certificate.is_empty() {
        return Err(Fault::new(&at, "expected `certificate`"));
    }
    let certificate = directory.join(&section.certificate);
    let name = KeyName::parse(&section.key_label, &section.key_id);
    let name = name.map_err(|message| Fault::new(&at_key("key-id"), message))?;
    let key = match (name, section.key.is_empty()) {
        (None, true) => return Err(Fault::new(&at, "expected `key`, or `key-label` with [pkcs11]")),
        (Some(_), false) => {
            return Err(Fault::new(&at_key("key"), "expected a key in a file or in a token, found both"));
        }
        (Some(name), true) if !has_token => {
            let error = TokenError::NoDevice(name.to_string());
            return Err(Fault::new(&at, error.to_string()).hint(error.hint()));
        }
        (Some(name), true) => KeyPlace::Token(name),
        (None, false) => {
            let key = directory.join(&section.key);
            is_usable(&at, &certificate, &key)?;
            KeyPlace::File(key)
        }
    };
    Ok(Identity { certificate, key })
}

/// Checks that a chain and a key belong together.
fn is_usable(at: &[Step], chain: &Path, key: &Path) -> Result<(), Fault> {
    crate::certificate::read(chain, key).map(drop).map_err(|error| {
        let mut path = at.to_vec();
        path.push(Key(if error.is_key() { "key" } else { "certificate" }));
        let hint = error.hint();
        let fault = Fault::of(&path, error.to_string(), ConfigCause::Certificate(Arc::new(error)));
        match hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Result<Resolved, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["signer", "site"] {
            let made = rcgen::generate_simple_self_signed(vec![format!("{name}.test")]).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), made.cert.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
        }
        let file = folder.path().join("signer.toml");
        std::fs::write(&file, text).unwrap();
        load(&file)
    }

    const GOOD: &str = "listen = \"127.0.0.1:0\"\ncertificate = \"signer.pem\"\nkey = \"signer.key\"\nclients = \"signer.pem\"\n\
                        [[identity]]\ncertificate = \"site.pem\"\nkey = \"site.key\"\n";

    #[test]
    fn seven_lines_are_a_signer() {
        let config = loaded(GOOD).unwrap();
        assert_eq!((config.identities.len(), config.connections, config.metrics), (1, 256, None));
    }

    #[test]
    fn faults_have_a_place_and_advice() {
        for (text, line, part) in [
            (GOOD.replace("127.0.0.1:0", "127.0.0.1"), Some(1), "port"),
            (GOOD.replace("clients = \"signer.pem\"\n", ""), Some(1), "expected `clients`"),
            (GOOD.replace("clients = \"signer.pem\"", "clients = \"gone.pem\""), Some(4), "cannot read"),
            (GOOD.replace("key = \"signer.key\"", "key = \"site.key\""), Some(3), "does not belong"),
            (GOOD.replace("key = \"site.key\"", "key = \"signer.key\""), Some(7), "does not belong"),
            (GOOD.replace("key = \"site.key\"\n", ""), Some(5), "expected `key`"),
            (GOOD.split("[[").next().unwrap().to_owned(), Some(1), "[[identity]]"),
            (format!("waiting = 0\n{GOOD}"), Some(1), "at least 1"),
            (format!("metrics = \"x\"\n{GOOD}"), Some(1), "port"),
            (GOOD.replace("key = \"site.key\"", "key-label = \"site\""), Some(5), "no [pkcs11]"),
            (GOOD.replace("key = \"site.key\"", "key = \"site.key\"\nkey-id = \"01\""), Some(7), "found both"),
            (GOOD.replace("key = \"site.key\"", "key-id = \"xy\""), Some(7), "hexadecimal"),
            (format!("pkcs11.token = \"a\"\n{GOOD}"), Some(1), "expected `module`"),
            (format!("pkcs11.module = \"a.so\"\n{GOOD}"), Some(1), "expected `token`"),
            (GOOD.replace("[[identity]]", "[[identities]]"), Some(5), "unknown field"),
        ] {
            let error = loaded(&text).unwrap_err();
            assert_eq!(error.line, line, "{text}{error}");
            assert!(error.to_string().contains(part), "{text}{error}");
            assert!(error.hint.is_some(), "{error:?}");
        }
    }
}
