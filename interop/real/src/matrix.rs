//! Matrix of pairs and cases, and the verdicts.

use std::{collections::BTreeMap, fmt, process::Output};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Child,
    time::timeout,
};

use emu::{Relay, RelayConfig};
use netem::DropReason;
use units::Seed;

use crate::{
    case::Case,
    contract::Figures,
    credentials::Credentials,
    peers::{Installed, Peer},
    tap::{Seen, Tap},
};

/// One cell of the matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The client's stack.
    pub client: String,
    /// The server's stack.
    pub server: String,
    /// Case that they played.
    pub case: Case,
    /// Result: `true` without a fault.
    pub ok: bool,
    /// Fault, if any.
    pub error: Option<String>,
    /// Known defect of the peer that explains the fault, which then does not count.
    pub defect: Option<&'static str>,
    /// Seconds from connecting to the last answer.
    pub seconds: f64,
    /// Reason why the two cannot do it, if so; then nothing ran.
    pub lacks: Option<&'static str>,
    /// Counts on the wire.
    pub seen: Seen,
    /// Packets that the link between them lost or had no room for.
    pub link_dropped: u64,
    /// Part of them that came while it was dead.
    pub link_outage: u64,
    /// Packets in which it flipped bits.
    pub link_corrupted: u64,
    /// Acknowledgements that counted the marks of client and server as they must; `None` where the stack does not tell.
    pub ecn_confirmed: [Option<u64>; 2],
    /// Key updates that the client's and the server's stack tell of; `None` where it does not tell.
    pub key_updates: [Option<u64>; 2],
    /// Versions of the two.
    pub versions: [String; 2],
}

/// Runs one case between two peers.
pub async fn run(client: &Installed, server: &Installed, case: Case, credentials: &[Credentials; 2]) -> Cell {
    let mut cell = Cell {
        client: client.peer.to_string(),
        server: server.peer.to_string(),
        case,
        ok: false,
        error: None,
        defect: None,
        seconds: 0.0,
        lacks: case.lacks(client.peer, server.peer),
        seen: Seen::default(),
        link_dropped: 0,
        link_outage: 0,
        link_corrupted: 0,
        ecn_confirmed: [None; 2],
        key_updates: [None; 2],
        versions: [String::new(), String::new()],
    };
    if cell.lacks.is_some() {
        return cell;
    }
    let credentials = &credentials[usize::from(case.has_large_chain())];
    let limit = case.time_limit();
    let result = match timeout(limit, meet(client, server, credentials, &mut cell)).await {
        Ok(result) => result.and_then(|()| case.evidence(&cell)),
        Err(_) => Err(anyhow::anyhow!("not done after {} s", limit.as_secs())),
    };
    cell.ok = result.is_ok();
    cell.error = result.err().map(|error| format!("{error:#}"));
    cell.defect = known_defect(server.peer, &cell);
    cell
}

/// Defect of a peer that explains a fault. Each is narrow: what it names cannot come about by what the other stack does.
fn known_defect(server: Peer, cell: &Cell) -> Option<&'static str> {
    // RFC 9000 §17.2.5: a server must discard a Retry packet. No client sends one: damaged bits of the type do.
    let was_damaged = cell.seen.spoiled > 0 || cell.link_corrupted > 0;
    let error = cell.error.as_deref().filter(|_| server == Peer::Quinn)?;
    // RFC 9000 §13.2.1: Initial packets that ask for an acknowledgement get one at once, and the client's probes do. A server that is
    // silent in that space, its Handshake packets filling its window, holds its lost ServerHello back as well. The last Initial packet
    // of the client closes the connection, and need not be answered.
    if error.contains("the handshake timed out") && cell.seen.initials_unanswered >= 3 {
        return Some("quinn's server never repeats a lost ServerHello while its window is full");
    }
    (was_damaged && error.contains("client sent Retry"))
        .then_some("quinn's server closes when damage turns a packet's type into Retry")
}

/// Starts the server, lets the client do its work, stops the server and reads what both say.
async fn meet(client: &Installed, server: &Installed, credentials: &Credentials, cell: &mut Cell) -> Result<()> {
    let mut command = server.command();
    command.args(["server", "--listen", "127.0.0.1:0", "--cert"]).arg(&credentials.cert);
    command.arg("--key").arg(&credentials.key);
    command.args(cell.case.server_arguments());
    let mut process = command.spawn().context("start the server")?;
    let mut lines = BufReader::new(process.stdout.take().context("the server's output")?).lines();
    let Some(first) = lines.next_line().await? else {
        return Err(complaint(process).await.context("the server did not start"));
    };
    let ready: serde_json::Value = serde_json::from_str(&first).with_context(|| format!("the server said {first}"))?;
    let address = ready["address"].as_str().with_context(|| format!("the server said {first}"))?.parse()?;

    // client – tap – link – server. Clients of s2n-quic answer the first datagram before the second has come: with them the
    // tap stands beside the server, where what it may send is still seen. With ECN there is nothing between, because the
    // tap does not pass marks on.
    let beside_server = client.peer == Peer::S2n;
    let mut address = address;
    let (mut tap, mut link) = (None, None);
    for place in if beside_server { ["tap", "link"] } else { ["link", "tap"] } {
        if place == "tap" && cell.case != Case::Ecn {
            address = tap.insert(Tap::start(address, cell.case.rebind(), cell.case.spoil()).await?).address;
        } else if place == "link"
            && let Some(config) = cell.case.link()
        {
            let relay = Relay::start(&RelayConfig {
                up: config.clone(),
                down: config,
                seed: Seed::from_number(1),
                ..RelayConfig::new("127.0.0.1:0".parse()?, address)
            })?;
            address = link.insert(relay).address();
        }
    }
    let mut command = client.command();
    command.arg("client").arg("--connect").arg(address.to_string());
    command.arg("--ca").arg(&credentials.ca).args(cell.case.client_arguments(client.peer));
    let output = command.output().await.context("start the client")?;
    cell.seen = tap.map(|tap| tap.seen()).unwrap_or_default();
    if let Some(statistics) = link.and_then(|link| link.stop().ok()) {
        let links = [&statistics.up, &statistics.down];
        let lost =
            |link: &&netem::LinkCounters| DropReason::ALL.iter().map(|&why| link.dropped(why).packets).sum::<u64>();
        cell.link_dropped = links.iter().map(lost).sum();
        cell.link_outage = links.iter().map(|link| link.dropped(DropReason::Outage).packets).sum();
        cell.link_corrupted = links.iter().map(|link| link.corrupted).sum();
    }
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
    cell.ecn_confirmed[0] = figures.ecn_confirmed;
    let last = last.context("the server said nothing at its end")?;
    let figures: Figures = serde_json::from_str(&last).with_context(|| format!("the server said {last}"))?;
    (cell.key_updates[1], cell.versions[1]) = (figures.key_updates, figures.version);
    cell.ecn_confirmed[1] = figures.ecn_confirmed;
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

/// Complaint of a process that ended early.
async fn complaint(process: Child) -> anyhow::Error {
    match process.wait_with_output().await {
        Ok(output) => anyhow::anyhow!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => error.into(),
    }
}

/// All cells, printed as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Matrix {
    /// One per pair and case.
    pub cells: Vec<Cell>,
}

/// Client and server.
type Pair<'a> = (&'a str, &'a str);

impl Matrix {
    /// The pairs in their order, and by case what became of each.
    fn columns(&self) -> (Vec<Pair<'_>>, BTreeMap<Case, BTreeMap<Pair<'_>, &Cell>>) {
        let mut pairs = Vec::new();
        let mut cases: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for cell in &self.cells {
            let pair = (&cell.client[..], &cell.server[..]);
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
            cases.entry(cell.case).or_default().insert(pair, cell);
        }
        (pairs, cases)
    }

    /// The versions that took part.
    fn versions(&self) -> String {
        let versions: std::collections::BTreeSet<_> =
            self.cells.iter().flat_map(|cell| &cell.versions).filter(|text| !text.is_empty()).collect();
        versions.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Cells that ran, those of them in which all was right, and those with a known defect of the peer.
    pub fn score(&self) -> (usize, usize, usize) {
        let ran = self.cells.iter().filter(|cell| cell.lacks.is_none());
        let defects = ran.clone().filter(|cell| cell.defect.is_some()).count();
        (ran.clone().count(), ran.filter(|cell| cell.ok).count(), defects)
    }

    /// The score, for people.
    fn score_text(&self) -> String {
        match self.score() {
            (ran, right, 0) => format!("{right} of {ran} right"),
            (ran, right, defects) => format!("{right} of {ran} right, {defects} with a known defect of the peer"),
        }
    }

    /// The tables for docs/interop.md; `analyses` has a line `CLIENT SERVER CASE: text` for each failure that was looked into.
    pub fn markdown(&self, analyses: &str) -> String {
        use fmt::Write as _;
        let (pairs, cases) = self.columns();
        let mut text = String::from("| case |");
        pairs.iter().for_each(|(client, server)| write!(text, " {client} → {server} |").unwrap_or_default());
        text += "\n|---|";
        text += &"---|".repeat(pairs.len());
        for (case, row) in &cases {
            let _ = write!(text, "\n| {} |", case.name());
            for pair in &pairs {
                let cell = row.get(pair);
                let _ = match cell {
                    None => write!(text, " |"),
                    Some(cell) if cell.lacks.is_some() => write!(text, " – |"),
                    Some(cell) if cell.ok => write!(text, " {:.2} s |", cell.seconds),
                    Some(_) => write!(text, " **failed** |"),
                };
            }
        }
        let _ = write!(text, "\n\n{}. Versions: {}.\n", self.score_text(), self.versions());
        let lacks: std::collections::BTreeSet<_> =
            self.cells.iter().filter_map(|cell| Some((cell.case.name(), cell.lacks?))).collect();
        if !lacks.is_empty() {
            text += "\nNot possible (–):\n\n";
            lacks.iter().for_each(|(case, why)| writeln!(text, "- {case}: {why}").unwrap_or_default());
        }
        let failed: Vec<_> = self.cells.iter().filter(|cell| !cell.ok && cell.lacks.is_none()).collect();
        if !failed.is_empty() {
            text += "\nFailures:\n\n";
        }
        for cell in failed {
            let name = format!("{} {} {}", cell.client, cell.server, cell.case.name());
            let error = cell.error.as_deref().unwrap_or_default().replace('\n', " ");
            let known = analyses.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(": "));
            let why = cell.defect.or(known).unwrap_or("not analysed");
            let _ = writeln!(text, "- {} → {}, {}: `{error}` — {why}", cell.client, cell.server, cell.case.name());
        }
        text
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pairs, cases) = self.columns();
        for (case, row) in &cases {
            for pair in &pairs {
                let Some(cell) = row.get(pair) else { continue };
                let text = match cell.lacks {
                    Some(why) => format!("– ({why})"),
                    None if !cell.ok => {
                        let word = if cell.defect.is_some() { "known defect" } else { "FAILED" };
                        let why = cell.defect.map(|defect| format!(" ({defect})")).unwrap_or_default();
                        format!("{word} {}{why}", cell.error.as_deref().unwrap_or_default())
                    }
                    // Nobody tells whether the keys changed.
                    None if *case == Case::Keyupdate && cell.key_updates == [None; 2] => {
                        format!("{:.2} s, unproven", cell.seconds)
                    }
                    None => format!("{:.2} s", cell.seconds),
                };
                writeln!(f, "{:<20} {:<24} {text}", case.name(), format!("{} -> {}", pair.0, pair.1))?;
            }
        }
        // Once more at the end, where a long table does not hide them.
        for cell in self.cells.iter().filter(|cell| cell.error.is_some() && cell.defect.is_none()) {
            let error = cell.error.as_deref().unwrap_or_default();
            writeln!(f, "FAILED: {} -> {}, {}: {error}", cell.client, cell.server, cell.case.name())?;
        }
        write!(f, "{}; {}", self.score_text(), self.versions())
    }
}
