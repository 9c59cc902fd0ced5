//! `tiderace get` with the options that people know from other programs.

mod gateway;
mod pcapng;
mod scratch;

use std::{
    convert::Infallible,
    io::Write,
    net::SocketAddr,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use async_compression::tokio::write::{BrotliEncoder, DeflateEncoder, GzipEncoder, ZstdEncoder};
use bytes::Bytes;
use gateway::Gateway;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use scratch::Scratch;
use tiderace::{Endpoint, Identity, Profile, RustlsServer, ServerConfig};
use tokio::io::AsyncWriteExt;

const TEXT: &[u8] = b"the same words again and again and again and again and again\n";

/// A server over HTTP/3 alone, with its certificate in a folder.
struct Site {
    endpoint: SocketAddr,
    folder: Scratch,
}

impl Site {
    fn start(name: &str) -> Self {
        let folder = Scratch::new(&format!("get-options-{name}"));
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
        let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
        let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
        let profile = Profile { idle_timeout: Duration::from_secs(600), ..Profile::default() };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::server(any, ServerConfig::new(Arc::new(tls), Arc::new(profile))).unwrap();
        let address = endpoint.local_addr();
        tokio::spawn(async move {
            while let Some(connection) = endpoint.accept().await {
                let options = h3_quic::server::Options::default();
                tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), answer));
            }
        });
        Self { endpoint: address, folder }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.endpoint)
    }

    /// `get --http3` with these options, in the folder of the site.
    async fn get(&self, options: &[&str]) -> Output {
        let certificate = self.folder.0.join("cert.pem");
        let mut all = vec!["--http3", "--ca", certificate.to_str().unwrap()];
        all.extend(options);
        self.bare(&all).await
    }

    async fn bare(&self, options: &[&str]) -> Output {
        run(&self.folder.0, options, b"").await
    }
}

/// The program's `get`, with this on its standard input.
async fn run(folder: &Path, options: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.arg("get").args(options).current_dir(folder).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("SSLKEYLOGFILE", folder.join("keys.txt"));
    let input = input.to_vec();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        // A program that reads nothing may be gone already.
        let _ = child.stdin.take().unwrap().write_all(&input);
        child.wait_with_output().unwrap()
    });
    ended.await.unwrap()
}

async fn coded(coding: &str) -> Vec<u8> {
    macro_rules! all {
        ($encoder:ident) => {{
            let mut encoder = $encoder::new(Vec::new());
            encoder.write_all(TEXT).await.unwrap();
            encoder.shutdown().await.unwrap();
            encoder.into_inner()
        }};
    }
    match coding {
        "gzip" => all!(GzipEncoder),
        "deflate" => all!(DeflateEncoder),
        "br" => all!(BrotliEncoder),
        "zstd" => all!(ZstdEncoder),
        _ => TEXT.to_vec(),
    }
}

type Answer = Response<http_body_util::combinators::MapErr<Full<Bytes>, fn(Infallible) -> Infallible>>;

/// Redirects, coded content, and otherwise what was asked, in words.
async fn answer(request: Request<h3_quic::RequestBody>) -> Answer {
    let (head, body) = request.into_parts();
    let content = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let path = head.uri.path().to_owned();
    let response = Response::builder();
    let full =
        |content: Vec<u8>| Full::new(Bytes::from(content)).map_err((|never| never) as fn(Infallible) -> Infallible);
    let made = if let Some(status) = path.strip_prefix("/to-echo/") {
        response.status(status.parse::<u16>().unwrap()).header(header::LOCATION, "../echo").body(full(Vec::new()))
    } else if path == "/round" {
        response.status(302).header(header::LOCATION, "/round").body(full(Vec::new()))
    } else if path == "/plain" {
        response.status(302).header(header::LOCATION, "http://127.0.0.1:1/").body(full(Vec::new()))
    } else if let Some(coding) = path.strip_prefix("/coded/") {
        let asked =
            head.headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value.to_str().unwrap().contains(coding));
        let coding = if asked || coding == "odd" { coding } else { "identity" };
        response.header(header::CONTENT_ENCODING, coding).body(full(coded(coding).await))
    } else {
        let field = |name: &str| head.headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
        let said = format!(
            "{} {} type={} agent={} own={} {}\n",
            head.method,
            path,
            field("content-type"),
            field("user-agent"),
            field("x-own"),
            String::from_utf8_lossy(&content)
        );
        response.header("x-esc", "a").body(full(said.into_bytes()))
    };
    made.unwrap()
}

fn text(output: &Output) -> (i32, String, String) {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), words(&output.stdout), words(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_fields_and_content_are_sent() {
    let site = Site::start("request");
    let url = site.url("/echo");
    let (code, said, wrong) = text(&site.get(&["-H", "X-Own: yes", &url]).await);
    let agent = concat!("agent=tiderace/", env!("CARGO_PKG_VERSION"));
    assert_eq!((code, said.as_str()), (0, &*format!("GET /echo type=- {agent} own=yes \n")), "{wrong}");
    let form = "application/x-www-form-urlencoded";
    let (_, said, wrong) = text(&site.get(&["-d", "a=1", "-d", "b=2", &url]).await);
    assert_eq!(said, format!("POST /echo type={form} {agent} own=- a=1&b=2\n"), "{wrong}");
    let json = ["-X", "PUT", "-H", "content-type: application/json", "-H", "user-agent: me", "-d", "{}", &url];
    let (_, said, wrong) = text(&site.get(&json).await);
    assert_eq!(said, "PUT /echo type=application/json agent=me own=- {}\n", "{wrong}");
    std::fs::write(site.folder.0.join("content"), "from a file").unwrap();
    let (_, said, wrong) = text(&site.get(&["-d", "@content", &url]).await);
    assert!(said.ends_with("own=- from a file\n"), "{said} {wrong}");
    let certificate = site.folder.0.join("cert.pem");
    let piped = ["--http3", "--ca", certificate.to_str().unwrap(), "-d", "@-", &url];
    let (_, said, wrong) = text(&run(&site.folder.0, &piped, b"from the input").await);
    assert!(said.ends_with("own=- from the input\n"), "{said} {wrong}");
    let (code, _, wrong) = text(&site.get(&["-d", "@nothing", &url]).await);
    assert!(code == 2 && wrong.contains("cannot read nothing") && wrong.contains("hint:"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_are_followed_when_asked_for() {
    let site = Site::start("redirects");
    let (code, said, wrong) = text(&site.get(&["-L", "-d", "x", &site.url("/to-echo/302")]).await);
    assert!(code == 0 && said.starts_with("GET /echo type=- "), "{said} {wrong}");
    let (code, said, wrong) = text(&site.get(&["-L", "-d", "x", &site.url("/to-echo/307")]).await);
    assert!(code == 0 && said.starts_with("POST /echo ") && said.ends_with(" x\n"), "{said} {wrong}");
    let form = "%{http_code} %{num_redirects} %{url_effective} %{http_version}\\n";
    let (_, said, _) = text(&site.get(&["-s", "-L", "-o", "out", "-w", form, &site.url("/to-echo/301")]).await);
    assert_eq!(said, format!("200 1 {} 3\n", site.url("/echo")));
    let (code, said, wrong) = text(&site.get(&[&site.url("/to-echo/302")]).await);
    assert!(code == 0 && said.is_empty() && wrong.contains("302 Found"), "{said} {wrong}");
    let (code, _, wrong) = text(&site.get(&["-L", "--max-redirs", "3", &site.url("/round")]).await);
    assert!(code == 1 && wrong.contains("more than 3 redirects"), "{wrong}");
    let (code, _, wrong) = text(&site.get(&["-L", &site.url("/plain")]).await);
    assert!(code == 1 && wrong.contains("leaves https"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_decompressed() {
    let site = Site::start("coded");
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let url = site.url(&format!("/coded/{coding}"));
        let output = site.get(&["--compressed", &url]).await;
        assert_eq!(output.stdout, TEXT, "{coding}: {:?}", text(&output));
        // Nothing is asked for, and nothing decompressed, without the option.
        assert_eq!(site.get(&[&url]).await.stdout, TEXT, "{coding}");
    }
    let (code, _, wrong) = text(&site.get(&["--compressed", &site.url("/coded/odd")]).await);
    assert!(code == 1 && wrong.contains("coded as `odd`"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_recorded() {
    let site = Site::start("recorded");
    let records = ["--qlog", "logs", "--qlog-format", "0.3", "--pcapng", "packets.pcapng"];
    let (code, content, error) = text(&site.get(&[&records[..], &[&site.url("/page")]].concat()).await);
    assert_eq!(code, 0, "{content}{error}");
    assert!(error.contains("packets are in packets.pcapng"), "{error}");
    let logs: Vec<_> = std::fs::read_dir(site.folder.0.join("logs")).unwrap().collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    for entry in logs {
        let path = entry.unwrap().path();
        let counts = lab::qlog::schema::check(std::io::BufReader::new(std::fs::File::open(&path).unwrap()));
        let counts = counts.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(counts.contains_key("connectivity:connection_closed"), "{counts:?}");
    }
    let packets = site.folder.0.join("packets.pcapng");
    let (_, count) = pcapng::read(&packets);
    assert!(count >= 4, "{count} packets");
    let file = std::fs::read(&packets).unwrap();
    for label in pcapng::ALL {
        assert!(file.windows(label.len()).any(|window| window == label.as_bytes()), "{label}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_go_into_files() {
    let site = Site::start("files");
    let (code, said, wrong) = text(&site.get(&["-o", "one", "-o", "-", &site.url("/a"), &site.url("/b")]).await);
    assert!(code == 0 && said.starts_with("GET /b "), "{said} {wrong}");
    assert!(std::fs::read_to_string(site.folder.0.join("one")).unwrap().starts_with("GET /a "));
    let (code, said, wrong) = text(&site.get(&["-O", &site.url("/deep/name.txt?q")]).await);
    assert!(code == 0 && said.is_empty(), "{wrong}");
    assert!(std::fs::read_to_string(site.folder.0.join("name.txt")).unwrap().starts_with("GET /deep/name.txt "));
    let (code, _, wrong) = text(&site.get(&["-O", &site.url("/")]).await);
    assert!(code == 2 && wrong.contains("does not end with the name of a file") && wrong.contains("hint:"), "{wrong}");
    let (code, _, wrong) = text(&site.get(&["-o", "no/such/folder", &site.url("/")]).await);
    assert!(code == 2 && wrong.contains("cannot write no/such/folder"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_printed() {
    let site = Site::start("headers");
    let (code, said, wrong) = text(&site.get(&["-I", &site.url("/x")]).await);
    assert!(
        code == 0 && said.starts_with("HTTP/3 200\n") && said.contains("\nx-esc: a\n") && said.ends_with("\n\n"),
        "{said} {wrong}"
    );
    let (_, said, _) = text(&site.get(&["-i", &site.url("/x")]).await);
    assert!(said.starts_with("HTTP/3 200\n") && said.contains("\n\nGET /x "), "{said}");
    let (_, said, wrong) = text(&site.get(&["-v", &site.url("/x")]).await);
    assert!(said.starts_with("GET /x "), "{said}");
    assert!(
        wrong.contains("> GET https://") && wrong.contains("> user-agent: ") && wrong.contains("< HTTP/3 200"),
        "{wrong}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_certificate_and_any_address_on_request() {
    let site = Site::start("insecure");
    let port = site.endpoint.port();
    let url = format!("https://name.test:{port}/x");
    let resolve = format!("name.test:{port}:127.0.0.1");
    let (code, said, wrong) = text(&site.bare(&["--http3", "-k", "--resolve", &resolve, &url]).await);
    assert!(code == 0 && said.starts_with("GET /x ") && wrong.contains("WARNING: --insecure"), "{said} {wrong}");
    let (code, _, nothing) = text(&site.bare(&["--http3", "-k", "-s", "--resolve", &resolve, &url]).await);
    assert!(code == 0 && nothing.is_empty(), "{nothing}");
    // The certificate is for another name.
    let (code, _, wrong) = text(&site.get(&["--resolve", &resolve, &url]).await);
    assert!(code == 1 && wrong.contains("not valid for name"), "{wrong}");
    let keys = std::fs::read_to_string(site.folder.0.join("keys.txt")).unwrap();
    assert!(keys.contains("SERVER_TRAFFIC_SECRET_0 "), "{keys}");
    let (code, _, wrong) = text(&site.bare(&["--resolve", "name.test", &url]).await);
    assert!(code == 2 && wrong.contains("example.org:443:192.0.2.1"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_of_http_on_request() {
    let folder = Scratch::new("get-options-versions");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.0.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::create_dir(folder.0.join("site")).unwrap();
    std::fs::write(folder.0.join("site/file.txt"), TEXT).unwrap();
    let config = folder.0.join("edge.toml");
    let text_of_config = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = {:?}\nkey = {:?}\n[[route]]\nfiles = {:?}\n",
        folder.0.join("cert.pem"),
        folder.0.join("key.pem"),
        folder.0.join("site"),
    );
    std::fs::write(&config, text_of_config).unwrap();
    let gateway = Gateway::start(&config);
    let url = format!("https://{}/file.txt", gateway.address);
    let form = "%{http_version} %{protocol} %{size_download} %{content_type}\\n";
    for (option, version) in [("--http1.1", "1.1 http/1.1"), ("--http2", "2 h2"), ("--http3", "3 h3")] {
        let options = ["-s", option, "--ca", "cert.pem", "-o", "out", "-w", form, &url];
        let (code, said, wrong) = text(&run(&folder.0, &options, b"").await);
        assert_eq!(code, 0, "{wrong}");
        assert_eq!(said, format!("{version} {} text/plain; charset=utf-8\n", TEXT.len()), "{wrong}");
        assert_eq!(std::fs::read(folder.0.join("out")).unwrap(), TEXT);
    }
    let (code, _, wrong) = text(&run(&folder.0, &["--http2", "--http3", &url], b"").await);
    assert!(code == 2 && wrong.contains("cannot be used with"), "{wrong}");
}

#[test]
fn the_least_rate_has_a_unit_that_is_understood() {
    for (text, expected) in [("20 MB/s", "a size has no time"), ("fast", "cannot read `fast` as a size")] {
        let arguments = ["get", "--slowest", text, "https://127.0.0.1:9/"];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace")).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
    }
}

#[test]
fn a_filter_of_the_log_that_cannot_be_read_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    let output = command.arg("version").env("RUST_LOG", "warn,tiderace_edge=loud").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{text}");
    assert!(text.starts_with("error: RUST_LOG: `tiderace_edge=loud`: ") && text.contains("\nhint: "), "{text}");
}
