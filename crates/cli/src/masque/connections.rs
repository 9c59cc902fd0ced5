//! Reports of connections to the proxy: the protocol, and why it is used.

use std::sync::{Arc, Mutex, PoisonError};

use client::masque::{ProxyClient, ProxyConnection};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};

use super::Tunnels;

/// Connections to the proxy that are to be reported.
pub(super) struct Connections(Mutex<Reports>);

enum Reports {
    /// The port is not announced yet.
    Waiting(mpsc::UnboundedReceiver<ProxyConnection>),
    Running(JoinHandle<()>),
    Ended,
}

impl Connections {
    /// Connections of this client.
    pub(super) fn of(proxy: ProxyClient) -> (ProxyClient, Self) {
        // A connection is judged after seconds, and the next one comes after its end: few can wait.
        let (sender, receiver) = mpsc::unbounded_channel();
        let proxy = proxy.observe(move |connection| {
            let _ = sender.send(connection);
        });
        (proxy, Self(Mutex::new(Reports::Waiting(receiver))))
    }

    fn replace(&self, reports: Reports) -> Reports {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), reports)
    }

    /// Ends the reports: the sum at the end of the command is the last line.
    pub(super) async fn end_reports(&self) {
        if let Reports::Running(task) = self.replace(Reports::Ended) {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Reports connections from now on, those before included.
pub(super) fn begin_reports(tunnels: &Arc<Tunnels>) {
    if let Reports::Waiting(mut connections) = tunnels.connections.replace(Reports::Ended) {
        let reporting = tunnels.clone();
        let task = tokio::spawn(async move {
            while let Some(connection) = connections.recv().await {
                report(&reporting, connection);
            }
        });
        drop(tunnels.connections.replace(Reports::Running(task)));
    }
}

fn report(tunnels: &Tunnels, ProxyConnection { protocol, verdict, .. }: ProxyConnection) {
    let verdict = verdict.map(|verdict| verdict.to_string());
    let event = json!({ "event": "connected", "protocol": protocol, "verdict": verdict });
    let name = if protocol == "h3" { "HTTP/3" } else { "HTTP/2" };
    let why = verdict.as_deref().unwrap_or("there is too little evidence for a reason");
    tunnels.report(&event, &format!("tunnels go over {name}: {why}"));
}
