//! A signer whose keys are in a device: SoftHSM, by way of PKCS #11. Without SoftHSM (`apt-get install softhsm2`) the tests do nothing.
#![cfg(target_os = "linux")]

mod gateway;
mod scratch;
mod signing;

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};
use rustls::HandshakeKind;
use serde_json::Value;

use gateway::Gateway;
use signing::{Client, Place, Signer, ask2, configure_signer};

const MODULES: [&str; 3] =
    ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so"];
const PIN: &str = "pin-7391";
/// Example of RFC 8410 §10.3. The tool of SoftHSM does not read keys with their public half, as `rcgen` writes them.
const ED25519: &str = "-----BEGIN PRIVATE KEY-----\n\
                       MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                       -----END PRIVATE KEY-----\n";

/// A token of SoftHSM in the folder of a test.
struct SoftHsm {
    place: Place,
    module: &'static str,
}

impl SoftHsm {
    /// A token with the label `site`; `None` without SoftHSM.
    fn new(name: &str) -> Option<Self> {
        let module = MODULES.into_iter().find(|module| Path::new(module).exists());
        let has_tool = Command::new("softhsm2-util").arg("--version").stdout(Stdio::null()).status().is_ok();
        let Some(module) = module.filter(|_| has_tool) else {
            println!("skipped: SoftHSM is not installed (apt-get install softhsm2)");
            return None;
        };
        let place = Place::new(name);
        let folder = &place.folder.0;
        std::fs::create_dir(folder.join("tokens")).unwrap();
        let config =
            format!("directories.tokendir = {}\nobjectstore.backend = file\n", folder.join("tokens").display());
        std::fs::write(folder.join("softhsm.conf"), config).unwrap();
        write_pin(folder, PIN);
        let this = Self { place, module };
        this.tool(&["--init-token", "--free", "--label", "site", "--pin", PIN, "--so-pin", "so-pin-1"]);
        // The key of the site is in the token and nowhere else.
        this.import("keys/key.pem", "site", "01");
        std::fs::remove_file(this.place.folder.0.join("keys/key.pem")).unwrap();
        Some(this)
    }

    fn tool(&self, arguments: &[&str]) {
        let mut command = Command::new("softhsm2-util");
        command.args(arguments).current_dir(&self.place.folder.0).env("SOFTHSM2_CONF", "softhsm.conf");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn import(&self, file: &str, label: &str, id: &str) {
        self.tool(&["--import", file, "--token", "site", "--label", label, "--id", id, "--pin", PIN]);
    }

    /// A certificate whose key is in the token under this label.
    fn issue(&self, algorithm: &'static SignatureAlgorithm, label: &str, id: &str) {
        self.issue_for(&KeyPair::generate_for(algorithm).unwrap().serialize_pem(), label, id);
    }

    fn issue_for(&self, key: &str, label: &str, id: &str) {
        let pair = KeyPair::from_pem(key).unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&pair).unwrap();
        let file = |end: &str| self.place.folder.0.join(format!("{label}.{end}"));
        std::fs::write(file("pem"), certificate.pem()).unwrap();
        std::fs::write(file("key"), key).unwrap();
        self.import(&format!("{label}.key"), label, id);
        std::fs::remove_file(file("key")).unwrap();
    }

    /// `[pkcs11]`, and identities of certificate and name of the key.
    fn settings(&self, identities: &[(&str, &str)]) -> String {
        let mut text =
            format!("[pkcs11]\nmodule = \"{}\"\ntoken = \"site\"\npin-file = \"pin\"\nsessions = 2\n", self.module);
        for (certificate, key) in identities {
            text += &format!("[[identity]]\ncertificate = \"{certificate}\"\n{key}\n");
        }
        text
    }

    fn command(&self, arguments: &[&str], settings: &str) -> Command {
        let file = configure_signer(&self.place.folder, "127.0.0.1:0", settings);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["edge", "signer"]).args(arguments).arg(file);
        command.env("SOFTHSM2_CONF", self.place.folder.0.join("softhsm.conf"));
        command
    }

    fn start(&self) -> Signer {
        Signer::started(self.command(&[], &self.settings(&[("keys/cert.pem", "key-label = \"site\"")])))
    }

    /// Code and output of `signer check`.
    fn check(&self, settings: &str) -> (Option<i32>, String) {
        let output = self.command(&["check"], settings).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains("pin-7") && !text.contains("wrong-pin"), "a PIN is shown: {text}");
        (output.status.code(), text)
    }
}

fn write_pin(folder: &Path, pin: &str) {
    std::fs::write(folder.join("pin"), format!("{pin}\n")).unwrap();
    std::fs::set_permissions(folder.join("pin"), std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_are_signed_by_a_key_in_a_token() {
    let Some(token) = SoftHsm::new("token") else { return };
    let place = &token.place;
    let mut signer = token.start();
    let gateway = Gateway::start(&place.configure(signer.address, "", ""));
    let client = place.client(&gateway);
    assert_eq!(client.both().await, HandshakeKind::Full);
    assert_eq!(signer.signed(), 2, "one over QUIC, one over TCP");
    let old = Client { tcp: place.tcp(&[&rustls::version::TLS12]), ..client.clone() };
    let (mut h2, _) = old.h2().await.unwrap();
    ask2(&mut h2).await;
    assert_eq!(signer.signed(), 3, "TLS 1.2 is signed, too");
    // More handshakes than sessions, at once.
    let strangers: Vec<_> = (0..12).map(|_| place.client(&gateway)).collect();
    let tasks: Vec<_> = strangers.into_iter().map(|client| tokio::spawn(async move { client.both().await })).collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), HandshakeKind::Full);
    }
    let status = signer.status();
    assert_eq!((&status["signatures"]["signed"], &status["signatures"]["failed"]), (&27.into(), &0.into()), "{status}");
    assert_eq!(status["token_logins"]["succeeded"], 1, "{status}");
    // A reload goes on with the sessions.
    signing::signal(signer.program.0.id(), "HUP");
    assert_eq!(place.client(&gateway).both().await, HandshakeKind::Full);
    let status = signer.status();
    assert_eq!(status["token_logins"]["succeeded"], 1, "{status}");
}

#[test]
fn keys_of_all_kinds_are_found_and_sign() {
    let Some(token) = SoftHsm::new("kinds") else { return };
    token.issue(&rcgen::PKCS_ECDSA_P384_SHA384, "p384", "02");
    token.issue(&rcgen::PKCS_ECDSA_P521_SHA512, "p521", "03");
    token.issue(&rcgen::PKCS_RSA_SHA256, "rsa", "04");
    token.issue_for(ED25519, "ed25519", "05");
    // Each key is asked for signatures in all schemes of its kind, which are verified.
    let (code, said) = token.check(&token.settings(&[
        ("keys/cert.pem", "key-id = \"01\""),
        ("p384.pem", "key-label = \"p384\""),
        ("p521.pem", "key-label = \"p521\"\nkey-id = \"03\""),
        ("rsa.pem", "key-label = \"rsa\""),
        ("ed25519.pem", "key-label = \"ed25519\""),
    ]));
    assert!(code == Some(0) && said.contains("5 keys, nothing is wrong"), "{said}");
}

#[test]
fn what_is_wrong_with_a_token_is_said_at_the_start() {
    let Some(token) = SoftHsm::new("token-faults") else { return };
    let folder = &token.place.folder.0;
    let site = &[("keys/cert.pem", "key-label = \"site\"")][..];
    let good = token.settings(site);
    let refused = |settings: &str, says: &str, hint: &str| {
        let (code, said) = token.check(settings);
        assert!(code != Some(0) && said.contains(says) && said.contains(hint), "{says}: {code:?} {said}");
    };
    assert_eq!(token.check(&good).0, Some(0));
    refused(&good.replace(token.module, "/no/such.so"), "cannot load the PKCS #11 module", "`module`");
    // A library that is no module.
    let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
    if let Some(libc) = libc.into_iter().find(|path| Path::new(path).exists()) {
        refused(&good.replace(token.module, libc), "cannot load the PKCS #11 module", "`module`");
    }
    refused(
        &good.replace("token = \"site\"", "token = \"other\""),
        "no token with the label `other`",
        "`site` in slot",
    );
    refused(
        &good.replace("key-label = \"site\"", "key-label = \"no\""),
        "no private key with the label `no`",
        "pkcs11-tool",
    );
    refused(&good.replace("pin-file = \"pin\"\n", ""), "asks for a PIN", "pin-file");
    token.issue(&rcgen::PKCS_ECDSA_P256_SHA256, "other", "02");
    let mismatch = token.settings(&[("keys/cert.pem", "key-label = \"other\"")]);
    refused(&mismatch, "does not belong to the certificate", "public half");
    token.issue(&rcgen::PKCS_RSA_SHA256, "rsa", "03");
    refused(&mismatch.replace("\"other\"", "\"rsa\""), "does not belong to the certificate", "public half");
    token.issue(&rcgen::PKCS_ECDSA_P256_SHA256, "twice", "04");
    token.issue(&rcgen::PKCS_ECDSA_P256_SHA256, "twice", "05");
    refused(&mismatch.replace("\"other\"", "\"twice\""), "several private keys", "key-id");
    std::fs::set_permissions(folder.join("pin"), std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&good, "others may read the PIN", "chmod");
    write_pin(folder, "wrong-pin");
    refused(&good, "does not accept the PIN: PinIncorrect", "lock");
    let mut command = token.command(&[], &good.replace("pin-file = \"pin\"", "pin-variable = \"TIDERACE_TEST_PIN\""));
    let signer = Signer::started({
        command.env("TIDERACE_TEST_PIN", PIN);
        command
    });
    drop(signer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_gone_is_counted_and_found_again() {
    let Some(token) = SoftHsm::new("token-gone") else { return };
    let place = &token.place;
    let mut signer = token.start();
    let gateway = Gateway::start(&place.configure(signer.address, "", ""));
    place.client(&gateway).both().await;
    let (tokens, away) = (place.folder.0.join("tokens"), place.folder.0.join("away"));
    std::fs::rename(&tokens, &away).unwrap();
    let failures = |status: &Value| status["signatures"]["failed"].as_u64().unwrap();
    assert!(place.client(&gateway).h2().await.is_err());
    let status = signer.status();
    assert_eq!(failures(&status), 1, "{status}");
    assert_eq!(place.metric("tiderace_edge_signatures_total{reason=\"failed\",by=\"nobody\"}"), 1.0);
    std::fs::rename(&away, &tokens).unwrap();
    let begun = std::time::Instant::now();
    while place.client(&gateway).h2().await.is_err() {
        assert!(begun.elapsed() < signing::LIMIT, "{}", signer.status());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let status = signer.status();
    assert!(status["token_logins"]["succeeded"].as_u64().unwrap() > 1, "{status}");
}
