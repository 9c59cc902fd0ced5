//! A local UDP port with a tunnel for each source address.

use std::{collections::HashMap, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{net::UdpSocket, sync::Semaphore};

use super::{
    Tunnels, UdpArgs,
    flow::{self, Counts, Flow, MAX_PAYLOAD, MAX_WAITING, Queue},
    refused,
};
use crate::{address, failure::Failure, interrupt::Interrupt, stdout::write_json_line};

/// Runs until it is interrupted.
pub(super) async fn run(args: &UdpArgs, tunnels: &Arc<Tunnels>, mut interrupt: Interrupt) -> Result<ExitCode, Failure> {
    let listen = args.common.listen;
    let local = UdpSocket::bind(listen).await.map_err(|error| address::cannot_listen(listen, &error))?;
    let local = Arc::new(local);
    let target = args.common.target()?;
    let mut first = match tunnels.proxy.open_udp(&target.host, target.port).await {
        Ok(tunnel) => Some(tunnel),
        Err(error) => return Ok(refused(&error)),
    };
    let bound = local.local_addr().map_err(|error| address::cannot_listen(listen, &error))?;
    args.common.announce(bound, tunnels)?;
    let total = Arc::new(Counts::default());
    let mut peers: HashMap<SocketAddr, Queue> = HashMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    let mut ignored = 0_u64;
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let received = tokio::select! {
            received = local.recv_from(&mut buffer) => received,
            Some(_) = tasks.join_next() => {
                peers.retain(|_, queue| !queue.is_closed());
                continue;
            }
            () = interrupt.wait() => break,
        };
        // An error is a report about what was sent before; the port stays open.
        let Ok((length, peer)) = received else { continue };
        let queue = match peers.get(&peer).filter(|queue| !queue.is_closed()) {
            Some(queue) => queue,
            None if peers.len() >= args.max_peers => {
                ignored += 1;
                continue;
            }
            None => {
                let (queue, waiting) = flow::queue(&Arc::new(Semaphore::new(MAX_WAITING)));
                let flow = Flow {
                    peer,
                    target: target.clone(),
                    header: Vec::new(),
                    local: local.clone(),
                    tunnels: tunnels.clone(),
                    total: total.clone(),
                    idle: Duration::from_secs(args.idle),
                };
                tasks.spawn(flow.run(first.take(), waiting));
                peers.insert(peer, queue);
                &peers[&peer]
            }
        };
        if !queue.push(&buffer[..length]) {
            total.on_dropped();
        }
    }
    // Each ends its tunnel, and says what it has carried.
    drop(peers);
    while tasks.join_next().await.is_some() {}
    tunnels.connections.end_reports().await;
    if tunnels.json {
        write_json_line(&json!({ "event": "total", "counts": total.json(), "ignored": ignored }))?;
    } else {
        eprintln!(
            "{}{}",
            total.text(),
            if ignored > 0 { format!(", {ignored} of further programs") } else { String::new() }
        );
    }
    Ok(ExitCode::SUCCESS)
}
