//! Connection IDs of another form beside an upgrade: of another length, with another server ID and another key. The newer process finds the
//! connections of the older ones by the config rotation bits.

use std::{path::Path, process::Stdio};

use tiderace::{CloseReason, Connection, Endpoint};

use crate::{
    clients::{Nat, Site, content, get},
    fleet::{Fleet, signal},
    gateway,
    scratch::Scratch,
};

/// Form of connection IDs.
struct Form {
    config_id: u8,
    server_id: &'static str,
    nonce_len: usize,
}

const FORMS: [Form; 3] = [
    Form { config_id: 0, server_id: "0a01", nonce_len: 14 },
    Form { config_id: 1, server_id: "0b0c0d", nonce_len: 9 },
    Form { config_id: 6, server_id: "07", nonce_len: 17 },
];

impl Form {
    fn section(&self, keys: &Path) -> String {
        let Self { config_id, server_id, nonce_len } = self;
        let key = keys.join(config_id.to_string());
        format!(
            "[load-balancer]\nserver-id = \"{server_id}\"\nconfig-id = {config_id}\nnonce-length = {nonce_len}\nkey = \"{}\"\n\
             [keys]\nfile = \"{}\"\n",
            key.display(),
            keys.join("ring").display()
        )
    }
}

/// Replaces the form in the configuration of the next process.
fn configure(fleet: &Fleet, section: &str) {
    let text = std::fs::read_to_string(&fleet.file).unwrap();
    let (before, _) = text.split_once("[load-balancer]").unwrap();
    std::fs::write(&fleet.file, format!("{before}{section}")).unwrap();
}

/// A client whose packets are found by their connection IDs alone: its address changes after each request.
struct Client {
    nat: Nat,
    connection: Connection,
    h3: h3_quic::client::SendRequest,
    _endpoint: Endpoint,
}

impl Client {
    async fn new(fleet: &Fleet) -> Self {
        let nat = Nat::before(fleet.address).await;
        let (endpoint, connection) = Site::of(fleet).at(nat.address).quic().await;
        let h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        let mut this = Self { nat, connection, h3, _endpoint: endpoint };
        this.ask().await;
        this
    }

    async fn ask(&mut self) {
        for _ in 0..3 {
            assert_eq!(content(self.h3.send(get("small")).await.unwrap()).await, "small");
            self.nat.rebind.send(()).await.unwrap();
        }
        assert!(self.connection.close_reason().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_outlive_upgrades_to_ids_of_another_form() {
    let keys = Scratch::new("upgrade-forms-keys");
    for form in &FORMS {
        let file = keys.0.join(form.config_id.to_string());
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"));
        assert!(command.args(["balance", "key"]).arg(file).stdout(Stdio::null()).status().unwrap().success());
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"));
    assert!(command.args(["edge", "keys", "--file"]).arg(keys.0.join("ring")).status().unwrap().success());
    let mut fleet = Fleet::with("forms", "", &FORMS[0].section(&keys.0));
    let mut clients = vec![Client::new(&fleet).await];
    for form in &FORMS[1..] {
        // The bits of the form in use would not tell the two apart, and a reload has connections of its own.
        let current = &FORMS[clients.len() - 1];
        let untold = Form { config_id: current.config_id, ..Form { ..*form } };
        configure(&fleet, &untold.section(&keys.0));
        assert!(fleet.refused(&[]).contains("config-id"));
        configure(&fleet, &form.section(&keys.0));
        let output = gateway::edge("reload", &fleet.file).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        fleet.upgrade();
        clients.push(Client::new(&fleet).await);
        for client in &mut clients {
            client.ask().await;
        }
    }
    let status = fleet.status();
    let of_each: Vec<u64> =
        status["processes"].as_array().unwrap().iter().map(|one| one["connections"].as_u64().unwrap()).collect();
    assert_eq!(of_each, [1, 1, 1], "each client is where it was: {status}");
    let steering = &status["kernel_steering"];
    assert_eq!(steering["reason"], "connection IDs do not show the process in the clear", "{status}");
    assert!(steering["forwarded"].as_u64().unwrap() > 0, "encrypted IDs are read in user space: {status}");
    // The newest process resets connections of the oldest one, whose IDs it reads.
    signal(fleet.first_id(), "KILL");
    fleet.wait_for_end(fleet.first_id());
    let mut first = clients.remove(0);
    let lost = loop {
        let asked = tokio::time::timeout(std::time::Duration::from_millis(200), first.h3.send(get("small"))).await;
        match first.connection.close_reason() {
            Some(reason) => break reason,
            None => assert!(!matches!(asked, Ok(Ok(_))), "nobody has this connection"),
        }
    };
    assert!(matches!(lost, CloseReason::Reset), "{lost:?}");
    for client in &mut clients {
        client.ask().await;
    }
}
