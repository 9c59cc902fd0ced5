//! A new process that is killed when the older one has stopped for it, and before it serves: the older one serves again.
//!
//! The window is held open from outside. The new process reads its configuration from a FIFO, so that it has the sockets and waits. The
//! older one is stopped (SIGSTOP) until the new one has built the gateway; then the new one is stopped, and cannot say that it serves.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::{
    clients::{Site, content, get, get1},
    fleet::{Fleet, LIMIT, signal},
    gateway::edge,
    load::{Load, hold},
    mix::Kind,
    private, script,
};

/// Time without an answer after which a client waits for a process that has stopped reading.
const SILENCE: Duration = Duration::from_millis(300);

/// States of the threads of a process (proc(5)).
fn states(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stat = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("stat")).ok();
    tasks.filter_map(stat).map(|stat| stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()).collect()
}

/// Waits until this holds for so many looks in a row.
async fn wait_until(what: &str, looks: u32, mut holds: impl FnMut() -> bool) {
    let (begun, mut seen) = (Instant::now(), 0);
    while seen < looks {
        assert!(begun.elapsed() < LIMIT, "not in time: {what}");
        seen = if holds() { seen + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Stops a process, with all of its threads.
async fn stop(pid: u32) {
    signal(pid, "STOP");
    wait_until("a process stops", 1, || states(pid).iter().all(|state| *state == 'T')).await;
}

/// A process that has taken over and is stopped before it serves, and the command that awaits it.
struct Stopped {
    pid: u32,
    command: Child,
}

impl Stopped {
    /// Starts an upgrade of the process `older`, and stops the new process in the window.
    async fn start(fleet: &mut Fleet, older: u32) -> Self {
        let folder = fleet.folder.0.clone();
        let (fifo, pid_file) = (folder.join("waits.toml"), folder.join("pid"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        // A copy that an ordinary user may start, where there is one.
        let copy = folder.join("tiderace");
        let program = if copy.exists() { copy.as_path() } else { Path::new(env!("CARGO_BIN_EXE_tiderace")) };
        let text = format!(
            "echo $$ > {}\nexec {} edge run --take-over --config {}",
            pid_file.display(),
            program.display(),
            fifo.display()
        );
        let mut command = edge("upgrade", &fleet.file);
        command.args(["--program", &script(fleet, "waits", &text)]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Without a reader it cannot be opened (ENXIO, fifo(7)): the new process reads it when it has the sockets.
        let mut opened = None;
        wait_until("the new process reads its configuration", 1, || {
            opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).ok();
            opened.is_some()
        })
        .await;
        let pid: u32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        fleet.note(pid);
        stop(older).await;
        opened.unwrap().write_all(&std::fs::read(&fleet.file).unwrap()).unwrap();
        // Its first thread builds the gateway, and sleeps when it waits for the older process.
        let stat = format!("/proc/{pid}/task/{pid}/stat");
        let is_asleep = || std::fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('S');
        wait_until("the new process waits", 50, is_asleep).await;
        stop(pid).await;
        signal(older, "CONT");
        std::fs::remove_file(fifo).unwrap();
        Self { pid, command }
    }

    /// Kills the process. Returns what the command said, whose exit code is 2.
    fn kill(self) -> String {
        signal(self.pid, "KILL");
        let output = self.command.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        stderr
    }
}

/// A request over a new connection of HTTP/3.
fn come(site: &Site) -> JoinHandle<()> {
    let site = site.clone();
    tokio::spawn(async move {
        let (_endpoint, mut h3) = site.h3().await;
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    })
}

/// Kills a new process when the process `older` has stopped for it, and before it serves. All who asked meanwhile get an answer.
async fn kill_in_the_window(fleet: &mut Fleet, older: u32) {
    let (site, before) = (Site::of(fleet), fleet.status());
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    let stopped = Stopped::start(fleet, older).await;
    // The older process takes nobody any more. It lives: it still serves its connections over TCP.
    let (since, mut waiting) = (Instant::now(), come(&site));
    while let Ok(answered) = timeout(SILENCE, &mut waiting).await {
        answered.unwrap();
        assert!(since.elapsed() < LIMIT, "the older process has not stopped");
        waiting = come(&site);
    }
    assert_eq!(content(h2.send_request(get("small")).await.unwrap()).await, "small");
    let new = site.clone();
    let mut accepted = tokio::spawn(async move { new.h1().await });
    let asked = tokio::spawn(async move { content(h3.send(get("small")).await.unwrap()).await });
    assert!(timeout(SILENCE, &mut accepted).await.is_err(), "a process has accepted a connection");
    assert!(!waiting.is_finished(), "a process has answered a ClientHello");
    let said = stopped.kill();
    assert!(said.contains("signal: 9"), "{said}");
    timeout(LIMIT, waiting).await.expect("a new connection over QUIC").unwrap();
    assert_eq!(timeout(LIMIT, asked).await.expect("an answer over QUIC").unwrap(), "small");
    let mut h1 = timeout(LIMIT, accepted).await.expect("a new connection over TCP").unwrap();
    assert_eq!(content(h1.send_request(get1("small")).await.unwrap()).await, "small");
    let after = fleet.status();
    for same in ["process", "workers", "sockets", "generation"] {
        assert_eq!(before[same], after[same], "{same}: {after}");
    }
    assert_eq!(before["kernel_steering"]["on"], after["kernel_steering"]["on"], "{after}");
    let serving = |status: &serde_json::Value| -> Vec<_> {
        let processes = status["processes"].as_array().unwrap().iter();
        processes.map(|process| (process["pid"].clone(), process["serving"].clone())).collect()
    };
    assert_eq!(serving(&before), serving(&after), "{after}");
}

/// Kills new processes of the first process, and of one that has an older process beside it, under load.
async fn lose_nothing(mut fleet: Fleet) {
    let (site, pause) = (Site::of(&fleet), Duration::from_millis(5));
    let (load, mut clients) = (Load::new(pause), JoinSet::new());
    for kind in [Kind::Http3, Kind::Http3, Kind::Http2, Kind::Private, Kind::Qmux, Kind::Rebinding, Kind::Migrating] {
        clients.spawn(hold(load.clone(), site.clone(), kind, u64::MAX, pause));
    }
    let first = fleet.first_id();
    kill_in_the_window(&mut fleet, first).await;
    let (number, second) = fleet.upgrade();
    assert_eq!(number, 2);
    clients.spawn(hold(load.clone(), site.clone(), Kind::Http3, u64::MAX, pause));
    kill_in_the_window(&mut fleet, second).await;
    assert_eq!(fleet.upgrade().0, 3);
    tokio::time::sleep(SILENCE).await;
    load.end();
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    load.check();
    for older in [first, second] {
        fleet.wait_for_end(older);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_that_is_killed_before_it_serves_changes_nothing() {
    lose_nothing(Fleet::with("committed", "", &private::section().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_that_is_killed_before_it_serves_changes_nothing_without_privilege() {
    let upgrade = "[upgrade]\nkernel-steering = false\n";
    lose_nothing(Fleet::unprivileged("committed-unprivileged", upgrade, &private::section().await)).await;
}
