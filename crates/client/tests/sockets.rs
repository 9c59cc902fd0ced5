//! The race over real sockets, with a gateway at the other end.

use std::{path::PathBuf, time::Duration};

use edge::Process;
use http_body_util::BodyExt;
use tiderace_client::{Client, FetchError, Fetched, Leg, Trust, Verdict, race::Avoided};

struct Site {
    directory: PathBuf,
    process: std::sync::Arc<Process>,
    url: String,
    trust: Trust,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn site(name: &str, extra: &str) -> Site {
    let directory = std::env::temp_dir().join(format!("tiderace-client-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("www")).unwrap();
    std::fs::write(directory.join("www/index.html"), "hello").unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let top = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n";
    let file = directory.join("edge.toml");
    std::fs::write(&file, format!("{top}{extra}[[route]]\nfiles = \"www\"\n")).unwrap();
    let process = Process::start(&file).unwrap();
    let url = format!("https://{}/", process.addresses()[0]);
    Site { directory, process, url, trust: Trust::Pem(made.cert.pem().into_bytes()) }
}

async fn content(fetched: Fetched) -> (String, Verdict) {
    let content = fetched.response.into_body().collect().await.unwrap().to_bytes();
    let verdict = tokio::time::timeout(Duration::from_secs(10), fetched.verdict).await.unwrap().unwrap().unwrap();
    (String::from_utf8(content.to_vec()).unwrap(), verdict)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_used_where_it_works() {
    let site = site("works", "");
    let client = Client::new(&site.trust).unwrap();
    let fetched = client.get(&site.url, None, None).await.unwrap();
    assert_eq!((fetched.protocol, fetched.response.status().as_u16()), ("h3", 200));
    assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
    let fetched = client.get(&site.url, Some(Leg::Tcp), None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(fetched.alternative.as_ref().unwrap().port, site.process.addresses()[0].port());
    assert_eq!(content(fetched).await.1, Verdict::NotTried(Avoided::Unwanted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sheds_is_told_from_a_network_that_blocks() {
    let shedding = site("sheds", "[http3]\nshed = true\n");
    let client = Client::new(&shedding.trust).unwrap();
    let fetched = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(content(fetched).await.1, Verdict::Refused);
    let again = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(content(again).await.1, Verdict::NotTried(Avoided::RefusedBefore));

    let site = site("blocked", "");
    let client = Client::new(&site.trust).unwrap();
    // Takes everything and says nothing.
    let hole = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let udp = Some(hole.local_addr().unwrap());
    let fetched = client.get(&site.url, None, udp).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert!(fetched.first_byte >= Duration::from_millis(200), "QUIC has its head start: {:?}", fetched.first_byte);
    let verdict = content(fetched).await.1;
    assert!(matches!(verdict, Verdict::Blocked { questions: 12, .. }), "{verdict}");
    let again = client.get(&site.url, None, udp).await.unwrap();
    assert_eq!(content(again).await.1, Verdict::NotTried(Avoided::BlockedBefore));
    let error = client.get("https://127.0.0.1:1/", Some(Leg::Tcp), None).await.err().unwrap();
    assert!(!matches!(error, FetchError::Url(_)), "{error}");
}
