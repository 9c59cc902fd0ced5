//! Load while a server is reloaded: downloads that last from before the first reload to after the last one, and requests over new connections.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

/// Bytes of a download: far more than any buffer on its way, and enough for nine minutes of pieces.
pub(super) const LARGE: usize = 450_000_000;
/// Bytes that a client takes in one piece, and the pause behind each.
const PIECE: usize = 16_384;
const PAUSE: Duration = Duration::from_millis(20);
/// Downloads at a time.
const DOWNLOADS: usize = 4;

/// Clients of one protocol.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    pub(super) program: PathBuf,
    /// `--http3` or `--http2`.
    pub(super) protocol: &'static str,
    pub(super) roots: PathBuf,
    pub(super) port: u16,
}

/// Downloads and requests, and how many of them failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) downloads: u32,
    pub(super) downloads_lost: u32,
    pub(super) requests: u32,
    pub(super) requests_lost: u32,
    /// Time of the load, without the rest of the downloads.
    pub(super) took: Duration,
}

impl Clients {
    fn get(&self, name: &str) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(["get", "-s", self.protocol, "--ca"]).arg(&self.roots);
        command.arg(format!("https://localhost:{}/{name}", self.port));
        command.args(["--resolve", &format!("localhost:{}:127.0.0.1", self.port)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().context("cannot start the client")
    }

    /// Reads a download slowly until `stop`, then to its end. Returns whether all of it arrived.
    fn download(&self, stop: &AtomicBool) -> Result<bool> {
        let mut child = self.get("large")?;
        let mut output = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
        let (mut piece, mut bytes) = (vec![0; PIECE], 0);
        loop {
            let len = output.read(&mut piece)?;
            bytes += len;
            if len == 0 {
                break;
            }
            if !stop.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(child.wait()?.success() && bytes == LARGE)
    }

    fn request(&self) -> Result<bool> {
        let output = self.get("small")?.wait_with_output()?;
        Ok(output.status.success() && output.stdout.len() == super::SMALL)
    }
}

/// Clients at work.
pub(super) struct Load {
    begun: Instant,
    stop: Arc<AtomicBool>,
    downloads: Vec<JoinHandle<Result<bool>>>,
    requests: JoinHandle<Result<(u32, u32)>>,
}

impl Load {
    pub(super) fn start(clients: &Clients) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let downloads = (0..DOWNLOADS).map(|_| {
            let (clients, stop) = (clients.clone(), stop.clone());
            std::thread::spawn(move || clients.download(&stop))
        });
        let downloads = downloads.collect();
        let (clients, stopped) = (clients.clone(), stop.clone());
        let requests = std::thread::spawn(move || {
            let (mut all, mut lost) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                all += 1;
                lost += u32::from(!clients.request()?);
            }
            Ok((all, lost))
        });
        Self { begun: Instant::now(), stop, downloads, requests }
    }

    /// Lets the downloads come to their end.
    pub(super) fn finish(self) -> Result<Outcome> {
        // One that ended before the last operation would not have met it. Those that were lost count as lost.
        let over = self.downloads.iter().filter(|download| download.is_finished()).count();
        self.stop.store(true, Ordering::Relaxed);
        let mut outcome = Outcome { took: self.begun.elapsed(), ..Outcome::default() };
        let panicked = |_| anyhow!("a client panicked");
        for download in self.downloads {
            outcome.downloads += 1;
            outcome.downloads_lost += u32::from(!download.join().map_err(panicked)??);
        }
        let lost = outcome.downloads_lost as usize;
        ensure!(over <= lost, "{} downloads ended before the last operation: they are too short", over - lost);
        (outcome.requests, outcome.requests_lost) = self.requests.join().map_err(panicked)??;
        Ok(outcome)
    }
}

/// First line that a program prints about its version.
pub(super) fn version(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}
