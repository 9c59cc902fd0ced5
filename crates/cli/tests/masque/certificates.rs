//! Clients that a proxy knows by their certificate.

use std::net::UdpSocket;

use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType};

use super::*;

/// A gateway whose proxy has no tokens.
struct Site {
    gateway: Gateway,
    folder: Scratch,
}

impl Site {
    /// With certificates for two clients of one authority, and for one of another that has the same names.
    fn start(name: &str, more: &str) -> Self {
        let folder = Scratch::new(&format!("masque-certificates-{name}"));
        folder.certificate("127.0.0.1");
        let mut roots = Vec::new();
        for (authority, clients) in [("ours", &["alice", "bob"][..]), ("theirs", &["mallory"])] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, authority);
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            roots.push(params.self_signed(&key).unwrap().pem());
            let issuer = Issuer::new(params, key);
            for client in clients {
                let domain = if *client == "bob" { "others.example" } else { "clients.example" };
                let mut params = CertificateParams::default();
                params.distinguished_name = rcgen::DistinguishedName::new();
                params.distinguished_name.push(DnType::CommonName, *client);
                params.subject_alt_names = vec![SanType::DnsName(format!("{client}.{domain}").try_into().unwrap())];
                let key = KeyPair::generate().unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap().pem();
                std::fs::write(folder.0.join(format!("{client}.pem")), certificate).unwrap();
                private(&folder.0.join(format!("{client}.key")), &key.serialize_pem());
            }
        }
        std::fs::write(folder.0.join("ca.pem"), &roots[0]).unwrap();
        let config = format!(
            "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n\
             client-certificates = {{ roots = \"ca.pem\", required = false }}\n[log]\naccess = \"access.log\"\n\
             [admin]\nsocket = \"admin.sock\"\n[[route]]\npath = \"/.well-known/masque/udp\"\n\
             [route.proxy]\ntcp = true\nallow = \"127.0.0.1\"\n{more}\n"
        );
        let file = folder.0.join("edge.toml");
        std::fs::write(&file, config).unwrap();
        Self { gateway: Gateway::start(&file), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.0.join(name).to_str().unwrap().to_owned()
    }

    /// Arguments for a client with this certificate, if it has one.
    fn arguments(&self, kind: &str, client: Option<&str>, more: &[&str]) -> Vec<String> {
        let (proxy, ca) = (self.gateway.address.to_string(), self.path("cert.pem"));
        let mut arguments: Vec<String> =
            ["masque", kind, "--listen", "127.0.0.1:0", "--json", "--proxy", &proxy, "--ca", &ca]
                .map(str::to_owned)
                .into();
        if let Some(client) = client {
            let files = [("--cert", "pem"), ("--key", "key")];
            let files = files
                .into_iter()
                .flat_map(|(option, kind)| [option.to_owned(), self.path(&format!("{client}.{kind}"))]);
            arguments.extend(files);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        arguments
    }

    /// The error and the advice of a client that is refused.
    fn refused(&self, client: Option<&str>, more: &[&str]) -> String {
        let output = run(&borrowed(&self.arguments("udp", client, more)));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }
}

const VERSIONS: [&str; 2] = ["--http3", "--http2"];

#[test]
fn a_certificate_opens_tunnels_over_both_versions() {
    let site = Site::start("udp", "client-certificates = [\"subject:CN=nobody\", \"dns:*.clients.example\"]");
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(LIMIT)).unwrap();
    let to = target.local_addr().unwrap().to_string();
    let mut buffer = [0; 2_000];
    for version in VERSIONS {
        let service = Service::start(&borrowed(&site.arguments("udp", Some("alice"), &[version, &to])));
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.connect(service.address()).unwrap();
        program.send(b"question").unwrap();
        let (length, source) = target.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"question");
        target.send_to(b"answer", source).unwrap();
        program.set_read_timeout(Some(LIMIT)).unwrap();
        let length = program.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"answer");
        assert_eq!(service.interrupt().0, Some(0));
        let to = capitals().to_string();
        let service = Service::start(&borrowed(&site.arguments("tcp", Some("alice"), &[version, &to])));
        let mut stream = TcpStream::connect(service.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"abc").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"ABC");
        assert_eq!(service.interrupt().0, Some(0));
    }
    // The owner in the log is the part of the certificate by which it is permitted.
    let begun = std::time::Instant::now();
    loop {
        let log = std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
        if log.matches("\"user\":\"dns:alice.clients.example\"").count() >= 4 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn other_certificates_and_none_open_no_tunnel() {
    let site = Site::start("refused", "client-certificates = \"dns:*.clients.example\"");
    for version in VERSIONS {
        for client in [None, Some("bob")] {
            let said = site.refused(client, &[version, "127.0.0.1:53"]);
            assert!(said.contains("403") && said.contains("without a certificate"), "{client:?}: {said}");
        }
        // Of another authority: TLS refuses it, whatever its names are.
        let said = site.refused(Some("mallory"), &[version, "127.0.0.1:53"]);
        assert!(!said.contains("403"), "{said}");
    }
    let without = ["masque", "udp", "--proxy", "127.0.0.1", "--listen", "127.0.0.1:0", "--cert", "x", "127.0.0.1:53"];
    let output = run(&without);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("--key"), "a certificate has its key: {said}");
}
