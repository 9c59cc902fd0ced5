//! `cargo run --release -p real -- [--short] [--json] [--pair CLIENT:SERVER]...`

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use clap::Parser;
use real_interop::{
    case::Case,
    credentials::Credentials,
    matrix::{Matrix, run},
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
    /// A case, for example zerortt. May be given again. Without it: all.
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// Number of pairs at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Write the tables as Markdown into this file, between the lines that mark their place.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
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
    let credentials =
        [Credentials::create(&folder.join("usual"), 0)?, Credentials::create(&folder.join("large"), 150)?];
    for name in &arguments.cases {
        anyhow::ensure!(Case::ALL.iter().any(|case| case.name() == *name), "no case is called `{name}`");
    }
    let credentials = Arc::new(credentials);
    let jobs = Arc::new(tokio::sync::Semaphore::new(arguments.jobs.max(1)));
    let mut tasks = vec![];
    for (client, server) in pairs {
        let (client, server) = (find(client)?.clone(), find(server)?.clone());
        let (jobs, credentials, cases) = (jobs.clone(), credentials.clone(), arguments.cases.clone());
        tasks.push(tokio::spawn(async move {
            let _job = jobs.acquire().await;
            play(&client, &server, &cases, &credentials).await
        }));
    }
    let mut cells = vec![];
    for task in tasks {
        cells.extend(task.await?);
    }
    std::fs::remove_dir_all(&folder)?;
    let matrix = Matrix { cells };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&matrix)?);
    } else {
        println!("{matrix}");
    }
    if let Some(file) = &arguments.write {
        write_tables(file, &matrix)?;
    }
    let (ran, right, defects) = matrix.score();
    Ok(ran == right + defects)
}

/// One pair in its cases, one after the other.
async fn play(
    client: &Installed,
    server: &Installed,
    names: &[String],
    credentials: &[Credentials; 2],
) -> Vec<real_interop::matrix::Cell> {
    let mut cells = vec![];
    for case in Case::ALL.iter().filter(|case| names.is_empty() || names.contains(&case.name())) {
        let cell = run(client, server, *case, credentials).await;
        let verdict = cell.error.as_deref().or(cell.lacks).unwrap_or("ok");
        eprintln!("{} -> {} {}: {verdict}", client.peer, server.peer, case.name());
        cells.push(cell);
    }
    cells
}

/// Puts the tables between the two lines of a document that mark their place. Lines before them of the form
/// `<!-- CLIENT SERVER CASE: text -->` are the analyses of failures.
fn write_tables(file: &std::path::Path, matrix: &Matrix) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let (before, rest) = text.split_once("<!-- begin -->\n").context("the document has no line <!-- begin -->")?;
    let (_, after) = rest.split_once("<!-- end -->").context("the document has no line <!-- end -->")?;
    let lines = before.lines().filter_map(|line| line.strip_prefix("<!-- ")?.strip_suffix(" -->"));
    let tables = matrix.markdown(&lines.collect::<Vec<_>>().join("\n"));
    std::fs::write(file, format!("{before}<!-- begin -->\n{tables}<!-- end -->{after}"))?;
    Ok(())
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
    let peers: Vec<Peer> = peers.iter().copied().filter(|peer| peer.is_built()).collect();
    // Ours with everyone, in both roles.
    let all = peers.iter().flat_map(|client| peers.iter().map(|server| (*client, *server)));
    Ok(all.filter(|(client, server)| [client, server].contains(&&Peer::Tiderace)).collect())
}
