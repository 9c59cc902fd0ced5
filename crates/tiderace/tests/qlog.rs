//! Files in a directory: one for each end of each connection, whole, and named by what both ends know.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use tiderace::{ClientConfig, Endpoint, Identity, Profile, QlogDir, RustlsClient, RustlsServer, ServerConfig};
use transport::observe::ObserverFactory;

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tiderace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn files(&self) -> Vec<(String, String)> {
        let mut files: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(&path).unwrap())
            })
            .collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn configs(observe: Arc<dyn ObserverFactory>) -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let profile = Arc::new(Profile::default());
    let mut server = ServerConfig::new(Arc::new(server), profile.clone());
    let mut client = ClientConfig::new(Arc::new(client), profile);
    server.observe = Some(observe.clone());
    client.observe = Some(observe);
    (server, client)
}

async fn connect_and_close(dir: &Arc<QlogDir>) {
    let (server_config, client_config) = configs(dir.clone());
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), server_config).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
    let (accepted, connected) = tokio::join!(server.accept(), connecting);
    let (accepted, connected) = (accepted.unwrap(), connected.unwrap());
    connected.close(3, b"enough");
    accepted.closed().await;
}

#[tokio::test]
async fn both_ends_have_a_file() {
    let scratch = Scratch::new("qlog-files");
    let dir = Arc::new(QlogDir::new(&scratch.0).unwrap().with_title("a test"));
    connect_and_close(&dir).await;
    assert!(dir.take_error().is_none());
    let files = scratch.files();
    let (client, server) = match &files[..] {
        [client, server] => (client, server),
        other => panic!("{} files", other.len()),
    };
    let name = client.0.strip_suffix("_client.sqlog").unwrap();
    assert_eq!(server.0.strip_suffix("_server.sqlog").unwrap(), name);
    assert!(name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
    for (file, vantage) in [(&client.1, "client"), (&server.1, "server")] {
        let first = file.lines().next().unwrap();
        for part in [r#""title":"a test""#, &format!(r#""type":"{vantage}""#), &format!(r#""group_id":"{name}""#)] {
            assert!(first.contains(part), "{part} is not in {first}");
        }
        assert!(first.contains(r#""wall_clock_time":"20"#), "{first}");
        assert!(file.contains(r#""name":"quic:connection_started""#) && file.ends_with('\n'));
        assert!(file.contains(r#""name":"quic:connection_closed""#), "written when the connection is closed");
    }
}

#[tokio::test]
async fn the_limit_holds_and_connections_go_on() {
    let scratch = Scratch::new("qlog-limit");
    let dir = Arc::new(QlogDir::new(&scratch.0).unwrap().with_limit(1));
    connect_and_close(&dir).await;
    assert_eq!((scratch.files().len(), dir.skipped()), (1, 1));
}

#[tokio::test]
async fn a_directory_that_vanished_is_reported() {
    let scratch = Scratch::new("qlog-gone");
    let dir = Arc::new(QlogDir::new(&scratch.0).unwrap());
    fs::remove_dir_all(&scratch.0).unwrap();
    connect_and_close(&dir).await;
    let error = dir.take_error().unwrap();
    assert!(error.to_string().contains(scratch.0.to_str().unwrap()), "{error}");
    assert_eq!(dir.skipped(), 2);
}

#[test]
fn a_file_in_the_way_is_an_error() {
    let scratch = Scratch::new("qlog-file");
    fs::write(&scratch.0, "").unwrap();
    assert!(QlogDir::new(&scratch.0).is_err());
    assert!(QlogDir::new(Path::new(&scratch.0).join("below")).is_err());
    fs::remove_file(&scratch.0).unwrap();
}
