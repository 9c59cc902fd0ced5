//! Who meets whom in which case, and the verdicts.

use std::{collections::BTreeMap, fmt, process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Child,
    time::timeout,
};

use crate::{contract::Figures, credentials::Credentials, peers::Installed, relay::Relay};

/// A case ends within this time, or it has failed.
pub const TIME_LIMIT: Duration = Duration::from_secs(90);
/// The size of the large file.
const FILE: u64 = 10 * 1024 * 1024;

/// What two peers do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// 10 MiB from server to client.
    Get,
    /// 10 MiB from client to server.
    Put,
    /// The server validates the client's address with a Retry packet, which must be seen on the wire.
    Retry,
    /// The client updates its keys in the middle of 10 MiB.
    KeyUpdate,
    /// 100 streams at once, 20 kB each way on each.
    Streams,
}

impl Case {
    /// Every case.
    pub const ALL: &[Self] = &[Self::Get, Self::Put, Self::Retry, Self::KeyUpdate, Self::Streams];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get 10 MiB",
            Self::Put => "put 10 MiB",
            Self::Retry => "retry",
            Self::KeyUpdate => "key update",
            Self::Streams => "100 streams",
        }
    }

    /// What the client is told.
    fn client_arguments(self) -> Vec<String> {
        let (get, put, streams) = match self {
            Self::Get => (FILE, 0, 1),
            Self::Put => (0, FILE, 1),
            Self::Retry => (10_000, 10_000, 1),
            Self::KeyUpdate => (FILE, 100_000, 1),
            Self::Streams => (20_000, 20_000, 100),
        };
        let mut arguments = vec![format!("--get={get}"), format!("--put={put}"), format!("--streams={streams}")];
        if self == Self::KeyUpdate {
            arguments.push("--key-update".into());
        }
        arguments
    }
}

/// One cell of the matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The client's stack.
    pub client: String,
    /// The server's stack.
    pub server: String,
    /// What they did.
    pub case: Case,
    /// Whether all was right.
    pub ok: bool,
    /// What was wrong.
    pub error: Option<String>,
    /// Seconds from connecting to the last answer.
    pub seconds: f64,
    /// Retry packets seen on the wire (case `retry`).
    pub retries: Option<u64>,
    /// Key updates that the client's and the server's stack tell of; `None` where it does not tell.
    pub key_updates: [Option<u64>; 2],
    /// Versions of the two.
    pub versions: [String; 2],
}

/// Runs one case between two peers.
pub async fn run(client: &Installed, server: &Installed, case: Case, credentials: &Credentials) -> Cell {
    let mut cell = Cell {
        client: client.peer.to_string(),
        server: server.peer.to_string(),
        case,
        ok: false,
        error: None,
        seconds: 0.0,
        retries: None,
        key_updates: [None; 2],
        versions: [String::new(), String::new()],
    };
    let result = match timeout(TIME_LIMIT, meet(client, server, credentials, &mut cell)).await {
        Ok(result) => result.and_then(|()| evidence(&cell)),
        Err(_) => Err(anyhow::anyhow!("not done after {} s", TIME_LIMIT.as_secs())),
    };
    cell.ok = result.is_ok();
    cell.error = result.err().map(|error| format!("{error:#}"));
    cell
}

/// Starts the server, lets the client do its work, stops the server and reads what both say.
async fn meet(client: &Installed, server: &Installed, credentials: &Credentials, cell: &mut Cell) -> Result<()> {
    let mut command = server.command();
    command.args(["server", "--listen", "127.0.0.1:0", "--cert"]).arg(&credentials.cert);
    command.arg("--key").arg(&credentials.key);
    if cell.case == Case::Retry {
        command.arg("--retry");
    }
    let mut process = command.spawn().context("start the server")?;
    let mut lines = BufReader::new(process.stdout.take().context("the server's output")?).lines();
    let Some(first) = lines.next_line().await? else {
        return Err(complaint(process).await.context("the server did not start"));
    };
    let ready: serde_json::Value = serde_json::from_str(&first).with_context(|| format!("the server said {first}"))?;
    let address = ready["address"].as_str().with_context(|| format!("the server said {first}"))?.parse()?;

    let relay = if cell.case == Case::Retry { Some(Relay::start(address).await?) } else { None };
    let mut command = client.command();
    command.arg("client").arg("--connect").arg(relay.as_ref().map_or(address, |relay| relay.address).to_string());
    command.arg("--ca").arg(&credentials.ca).args(cell.case.client_arguments());
    let output = command.output().await.context("start the client")?;
    cell.retries = relay.map(|relay| relay.retries());
    let got = read_figures(&output);

    // The end of its input tells the server to stop.
    drop(process.stdin.take());
    let mut last = None;
    while let Some(line) = lines.next_line().await? {
        last = Some(line);
    }
    let mut errors = String::new();
    if let Some(mut stderr) = process.stderr.take() {
        stderr.read_to_string(&mut errors).await?;
    }
    let figures = got.with_context(|| format!("the client; the server complained: `{}`", errors.trim()))?;
    (cell.seconds, cell.key_updates[0], cell.versions[0]) = (figures.seconds, figures.key_updates, figures.version);
    let last = last.context("the server said nothing at its end")?;
    let figures: Figures = serde_json::from_str(&last).with_context(|| format!("the server said {last}"))?;
    (cell.key_updates[1], cell.versions[1]) = (figures.key_updates, figures.version);
    match (figures.ok, figures.error) {
        (true, _) => Ok(()),
        (false, error) => Err(anyhow::anyhow!("the server: {}", error.unwrap_or_default())),
    }
}

/// A client's last line.
fn read_figures(output: &Output) -> Result<Figures> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().with_context(|| {
        format!("it said nothing ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let figures: Figures = serde_json::from_str(line).with_context(|| format!("it said {line}"))?;
    if let Some(error) = &figures.error {
        anyhow::bail!("{error} {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    ensure!(output.status.success(), "{}", output.status);
    Ok(figures)
}

/// What a process that ended early complained about.
async fn complaint(process: Child) -> anyhow::Error {
    match process.wait_with_output().await {
        Ok(output) => anyhow::anyhow!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => error.into(),
    }
}

/// Whether what the case is about has really happened.
fn evidence(cell: &Cell) -> Result<()> {
    match cell.case {
        Case::Retry => {
            ensure!(cell.retries.is_some_and(|count| count > 0), "no Retry packet was seen on the wire");
        }
        Case::KeyUpdate => {
            let told: Vec<_> = cell.key_updates.iter().flatten().collect();
            ensure!(told.iter().all(|count| **count > 0), "no key update took place: {:?}", cell.key_updates);
        }
        Case::Get | Case::Put | Case::Streams => {}
    }
    Ok(())
}

/// All cells, printed as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Matrix {
    /// One per pair and case.
    pub cells: Vec<Cell>,
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<20}", "client -> server")?;
        for case in Case::ALL {
            write!(f, " {:>12}", case.name())?;
        }
        writeln!(f)?;
        let mut rows: BTreeMap<(&str, &str), BTreeMap<Case, &Cell>> = BTreeMap::new();
        for cell in &self.cells {
            rows.entry((&cell.client, &cell.server)).or_default().insert(cell.case, cell);
        }
        let mut unproven = false;
        for ((client, server), row) in &rows {
            write!(f, "{:<20}", format!("{client} -> {server}"))?;
            for case in Case::ALL {
                let text = match row.get(case) {
                    None => "–".into(),
                    Some(cell) if !cell.ok => "FAILED".into(),
                    Some(cell) if *case == Case::KeyUpdate && cell.key_updates == [None; 2] => {
                        unproven = true;
                        format!("{:.2} s *", cell.seconds)
                    }
                    Some(cell) => format!("{:.2} s", cell.seconds),
                };
                write!(f, " {text:>12}")?;
            }
            writeln!(f)?;
        }
        if unproven {
            writeln!(f, "* asked for; neither stack tells whether the keys changed")?;
        }
        for cell in self.cells.iter().filter(|cell| !cell.ok) {
            let error = cell.error.as_deref().unwrap_or_default();
            writeln!(f, "FAILED {} -> {} {}: {error}", cell.client, cell.server, cell.case.name())?;
        }
        let versions: std::collections::BTreeSet<_> =
            self.cells.iter().flat_map(|cell| &cell.versions).filter(|text| !text.is_empty()).collect();
        write!(f, "{}", versions.into_iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    }
}
