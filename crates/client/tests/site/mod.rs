//! A gateway with one page, for the time of a test.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use edge::Process;
use http_body_util::BodyExt;
use tiderace_client::{Client, Fetched, Settings, Trust, Verdict};

/// Long enough for QUIC on a machine with much else to do: TCP wins where it has to, and not by chance.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// A client that gives QUIC so much of a head start.
pub(crate) fn client(trust: &Trust, head_start: Duration) -> Client {
    Client::with(&Settings { trust: trust.clone(), head_start, ..Settings::default() }).unwrap()
}

pub(crate) struct Site {
    directory: PathBuf,
    pub(crate) process: Arc<Process>,
    pub(crate) url: String,
    pub(crate) trust: Trust,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Site {
    /// With more settings; for 127.0.0.1 and `www.example.net`.
    pub(crate) fn new(name: &str, extra: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tiderace-client-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("www")).unwrap();
        std::fs::write(directory.join("www/index.html"), "hello").unwrap();
        let names = vec!["127.0.0.1".to_owned(), "www.example.net".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let top = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n";
        let file = directory.join("edge.toml");
        std::fs::write(&file, format!("{top}{extra}[[route]]\nfiles = \"www\"\n")).unwrap();
        let process = Process::start(&file).unwrap();
        let url = format!("https://{}/", process.addresses()[0]);
        Self { directory, process, url, trust: Trust::Pem(made.cert.pem().into_bytes()) }
    }

    /// Adds a file, of zeros.
    pub(crate) fn add(&self, name: &str, size: u64) {
        let file = std::fs::File::create(self.directory.join("www").join(name)).unwrap();
        file.set_len(size).unwrap();
    }

    pub(crate) fn port(&self) -> u16 {
        self.process.addresses()[0].port()
    }
}

/// The content, and the verdict if there is one.
pub(crate) async fn read(fetched: Fetched) -> (String, Option<Verdict>) {
    let content = fetched.response.into_body().collect().await.unwrap().to_bytes();
    let verdict = tokio::time::timeout(Duration::from_secs(60), fetched.verdict).await.unwrap().unwrap();
    (String::from_utf8(content.to_vec()).unwrap(), verdict)
}

/// The content and the verdict, which has to be there.
pub(crate) async fn content(fetched: Fetched) -> (String, Verdict) {
    let (content, verdict) = read(fetched).await;
    (content, verdict.unwrap())
}
