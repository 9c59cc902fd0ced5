//! A client of one process leaves its tickets in a file, and a client of another asks with the first packets it sends.
//!
//! `cargo test -p tiderace --features boringssl --test tickets_in_a_file`

use std::{net::SocketAddr, path::Path, process::Command, sync::Arc};

use tiderace::{
    BoringClient, BoringServer, ClientConfig, EarlyData, Endpoint, FileTickets, Identity, Profile, ServerConfig,
};

/// Variable that tells the child process its server.
const SERVER: &str = "TICKETS_SERVER";
const FOLDER: &str = "TICKETS_FOLDER";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Asks the server once; what became of early data, or `None` when there was nothing to resume.
async fn ask(server: SocketAddr, folder: &Path) -> Option<EarlyData> {
    let tickets = Arc::new(FileTickets::open(folder.join("tickets")).unwrap());
    let root = std::fs::read(folder.join("root.der")).unwrap();
    let tls = BoringClient::builder().roots([root]).alpn("test").early_data(true).ticket_store(tickets);
    let config = ClientConfig::new(Arc::new(tls.build().unwrap()), Arc::new(Profile::default()));
    let endpoint = Endpoint::client_for(server).unwrap();
    let (connection, early) = match endpoint.connect(&config, server, "localhost").unwrap().into_early() {
        Ok(connection) => (connection, true),
        Err(connecting) => (connecting.await.unwrap(), false),
    };
    let (mut send, mut recv) = connection.open_bi_early().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
    connection.established().await.unwrap();
    let became = early.then(|| connection.early_data());
    // The tickets come before the answer to this.
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
    connection.close(0, b"");
    endpoint.wait_idle().await;
    became
}

/// Answers until the process that asks is gone.
async fn serve(endpoint: &Endpoint) {
    while let Some(connection) = endpoint.accept_early().await {
        while let Ok((mut send, mut recv)) = connection.accept_bi().await {
            let question = recv.read_to_end(100).await.unwrap();
            send.write_all(&question).await.unwrap();
            send.finish().unwrap();
        }
    }
}

#[test]
fn another_process_resumes_with_early_data() {
    if let (Ok(server), Some(folder)) = (std::env::var(SERVER), std::env::var_os(FOLDER)) {
        let became = runtime().block_on(ask(server.parse().unwrap(), Path::new(&folder)));
        println!("early data: {became:?}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("tiderace-tickets-in-a-file-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.der().to_vec();
    std::fs::write(folder.join("root.der"), &certificate).unwrap();
    let identity = Identity::from_der(vec![certificate], certified.signing_key.serialize_der()).unwrap();
    let tls = BoringServer::builder().identity(identity).alpn("test").early_data(true).build().unwrap();
    let stats = tls.clone();
    let runtime = runtime();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let endpoint = runtime.block_on(async {
        Endpoint::server(any, ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()))).unwrap()
    });
    let address = endpoint.local_addr().to_string();
    let mut became = Vec::new();
    for _ in 0..3 {
        let asking = {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "another_process_resumes_with_early_data", "--nocapture"]);
            command.env(SERVER, &address).env(FOLDER, &folder);
            runtime.spawn_blocking(move || command.output().unwrap())
        };
        let serving = serve(&endpoint);
        let output = runtime.block_on(async {
            tokio::select! {
                output = asking => output.unwrap(),
                () = serving => panic!("the server stopped"),
            }
        });
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        became.extend(said.split("early data: ").nth(1).and_then(|rest| rest.lines().next()).map(str::to_owned));
    }
    assert_eq!(became, ["None", "Some(Accepted)", "Some(Accepted)"]);
    assert_eq!(stats.ticket_stats().early_accepted, 2);
    std::fs::remove_dir_all(&folder).unwrap();
}
