//! `tiderace proxy` as programs use it: a real curl, where there is one.

mod gateway;
mod program;
mod scratch;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use gateway::Gateway;
use program::{Service, refused};
use scratch::Scratch;

/// Longest wait until QUIC has won once.
const LIMIT: Duration = Duration::from_secs(120);

/// A gateway with a page.
fn site(name: &str) -> (Scratch, Gateway) {
    let folder = Scratch::new(&format!("proxy-{name}"));
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    std::fs::write(folder.0.join("www/page"), "hello").unwrap();
    folder.certificate("127.0.0.1");
    let file = folder.0.join("edge.toml");
    let text = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\nfiles = \"www\"\n";
    std::fs::write(&file, text).unwrap();
    let gateway = Gateway::start(&file);
    (folder, gateway)
}

fn proxy(certificate: &Path, https: &str) -> Service {
    let certificate = certificate.to_str().unwrap();
    Service::start(&["proxy", "--listen", "127.0.0.1:0", "--json", "--https", https, "--ca", certificate])
}

/// Output of curl, and then protocol and status; `None` where there is no curl.
fn curl(proxy: &Service, certificate: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "", "--write-out", "|%{http_code}"]);
    command.arg("--cacert").arg(certificate).arg("--proxy").arg(format!("http://{}", proxy.address()));
    match command.args(arguments).output() {
        Ok(output) => {
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(_) => None,
    }
}

#[test]
fn curl_gets_what_it_asks_for_over_http3_and_through_tunnels() {
    let (folder, gateway) = site("curl");
    let address = gateway.address;
    let certificate = folder.0.join("cert.pem");
    let plain = format!("http://{address}/page");
    let begun = Instant::now();
    // On a busy machine TCP may win the race; then another proxy, which has not seen that, tries again.
    let served = loop {
        let served = proxy(&certificate, "always");
        let Some(first) = curl(&served, &certificate, &["--include", &plain]) else {
            println!("there is no curl: nothing is shown");
            return;
        };
        assert!(first.ends_with("hello|200"), "{first}");
        let fields = first.to_ascii_lowercase();
        let over = |protocol: &str, version: u8| {
            fields.contains(&format!("proxy-status: tiderace; next-protocol=\"{protocol}\""))
                && fields.contains(&format!("via: {version} tiderace"))
        };
        assert!(!fields.contains("alt-svc"), "{first}");
        if over("h3", 3) {
            break served;
        }
        assert!(over("h2", 2) && begun.elapsed() < LIMIT, "{first}");
    };
    // An absolute URI of https, which is rare and allowed.
    let whole = format!("https://{address}/page");
    assert_eq!(curl(&served, &certificate, &["--request-target", &whole, &plain]).unwrap(), "hello|200");
    // https the usual way: a tunnel, in which curl speaks with the origin itself.
    assert_eq!(curl(&served, &certificate, &[&whole]).unwrap(), "hello|200");
    let missing = format!("http://{address}/nothing");
    assert!(curl(&served, &certificate, &[&missing]).unwrap().ends_with("|404"));
    let (code, lines) = served.interrupt();
    assert_eq!(code, Some(0));
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            (line["method"].as_str().unwrap(), line["status"].as_u64().unwrap(), line["protocol"].as_str().unwrap())
        })
        .collect();
    assert_eq!(seen, [("GET", 200, "h3"), ("GET", 200, "h3"), ("CONNECT", 200, "tcp"), ("GET", 404, "h3")]);
}

#[test]
fn what_cannot_be_had_is_said() {
    let (folder, gateway) = site("wrong");
    let address = gateway.address;
    let certificate = folder.0.join("cert.pem");
    let served = proxy(&certificate, "never");
    // No TLS is spoken: the gateway cannot answer, and the proxy has to.
    let Some(said) = curl(&served, &certificate, &[&format!("http://{address}/page")]) else { return };
    assert!(said.starts_with("tiderace proxy: ") && said.ends_with("|502"), "{said}");
    let said = curl(&served, &certificate, &["http://127.0.0.1:1/"]).unwrap();
    assert!(said.starts_with("tiderace proxy: ") && said.ends_with("|502"), "{said}");
    // Asked as if it were the origin.
    let mut command = Command::new("curl");
    command.args(["--silent", "--write-out", "|%{http_code}", "--noproxy", "*"]);
    let output = command.arg(format!("http://{}/", served.address())).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("|400"));
    let (error, _) = refused(&["proxy", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("no address of this machine alone"), "{error}");
}
