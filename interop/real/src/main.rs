//! `cargo run --release -p real -- [--short] [--json] [--pair CLIENT:SERVER]...`

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use real_interop::{
    credentials::Credentials,
    matrix::{Case, Matrix, run},
    peers::{Installed, Peer},
};

/// Run the interoperability matrix over real UDP sockets.
///
/// Installs the peers it needs from crates.io, the Go module proxy and PyPI; downloads are kept in interop/target.
#[derive(Parser)]
struct Arguments {
    /// Only peers that this workspace builds itself.
    #[arg(long)]
    short: bool,
    /// A pair, client first, for example quinn:quic-go. May be given again. Without it: all that matter.
    #[arg(long = "pair", value_name = "CLIENT:SERVER")]
    pairs: Vec<String>,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match matrix(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Installs, runs and prints; whether all was right.
async fn matrix(arguments: Arguments) -> Result<bool> {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let cache = sources.join("../target/peers");
    let pairs = pairs(&arguments)?;
    let mut installed: Vec<Installed> = vec![];
    for peer in Peer::ALL.iter().filter(|peer| pairs.iter().any(|(client, server)| client == *peer || server == *peer))
    {
        eprintln!("preparing {peer}");
        installed.push(peer.install(&sources, &cache).await.with_context(|| format!("install {peer}"))?);
    }
    let find = |peer: Peer| installed.iter().find(|installed| installed.peer == peer).context("installed above");

    let folder = cache.join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let credentials = Credentials::create(&folder)?;
    let mut cells = vec![];
    for (client, server) in pairs {
        for case in Case::ALL {
            let cell = run(find(client)?, find(server)?, *case, &credentials).await;
            eprintln!("{client} -> {server} {}: {}", case.name(), cell.error.as_deref().unwrap_or("ok"));
            cells.push(cell);
        }
    }
    std::fs::remove_dir_all(&folder)?;
    let matrix = Matrix { cells };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&matrix)?);
    } else {
        println!("{matrix}");
    }
    Ok(matrix.cells.iter().all(|cell| cell.ok))
}

/// The pairs asked for, or all that matter.
fn pairs(arguments: &Arguments) -> Result<Vec<(Peer, Peer)>> {
    if !arguments.pairs.is_empty() {
        let read = |text: &String| {
            let (client, server) = text
                .split_once(':')
                .with_context(|| format!("`{text}` is no pair\nhint: write --pair quinn:quic-go"))?;
            anyhow::Ok((client.parse()?, server.parse()?))
        };
        return arguments.pairs.iter().map(read).collect();
    }
    let peers = if arguments.short { Peer::SHORT } else { Peer::ALL };
    // Ours with everyone, in both roles.
    let all = peers.iter().flat_map(|client| peers.iter().map(|server| (*client, *server)));
    Ok(all.filter(|(client, server)| [client, server].contains(&&Peer::Tiderace)).collect())
}
