//! Messages to the service manager (sd_notify(3)), in the order in which `Type=notify-reload` waits for them.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    clients::{Site, content, get},
    fleet::{Fleet, LIMIT, signal},
    gateway::edge,
    scratch::Scratch,
};

/// Time limit for a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// Service manager of a test.
struct Manager(UnixDatagram);

impl Manager {
    /// The next message.
    fn next(&self) -> String {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        self.receive().unwrap()
    }

    /// Asserts that no message comes.
    fn check_silent(&self) {
        self.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let message = self.receive();
        assert_eq!(message.as_ref().map_err(io::Error::kind), Err(io::ErrorKind::WouldBlock), "{message:?}");
    }

    fn receive(&self) -> io::Result<String> {
        let mut buffer = [0; 8192];
        let len = self.0.recv(&mut buffer)?;
        Ok(String::from_utf8(buffer[..len].to_vec()).unwrap())
    }

    /// Lets a process reload by a signal, as the manager does. Returns the last message.
    fn reload(&self, pid: u32) -> String {
        let before = monotonic_usec();
        signal(pid, "HUP");
        let message = self.next();
        let begun = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{message:?}"));
        let begun: u64 = begun.strip_suffix('\n').unwrap().parse().unwrap();
        assert!((before..=monotonic_usec()).contains(&begun), "{before} {begun}");
        self.next()
    }
}

/// CLOCK_MONOTONIC.
fn monotonic_usec() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "the standard library does not show the number")]
    // SAFETY: the system writes to `now`, which lives to the end of the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(result, 0);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_manager_follows_start_reload_upgrade_and_stop() {
    let folder = Scratch::new("notify");
    let path = folder.0.join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let mut fleet = Fleet::start_in("notify", "drain = \"1 s\"\n", &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let first = fleet.first_id();
    assert_eq!(manager.next(), "READY=1\nSTATUS=configuration 1 is in use\n");
    assert_eq!(manager.reload(first), "READY=1\nSTATUS=configuration 2 is in use\n");
    // By the admin socket, too.
    fleet.reload(1, "drain = \"1 s\"\n");
    assert!(manager.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(manager.next(), "READY=1\nSTATUS=configuration 3 is in use\n");

    // A refused one ends as well, and what the file has is no message.
    let good = fs::read_to_string(&fleet.file).unwrap();
    fs::write(&fleet.file, format!("nonsense = \"\"\"\nMAINPID=1\n\"\"\"\n{good}")).unwrap();
    let refused = manager.reload(first);
    let status = refused.strip_prefix("READY=1\nSTATUS=the configuration in use stays: ");
    let status = status.unwrap_or_else(|| panic!("{refused:?}"));
    assert!(status.contains("edge.toml:1") && status.ends_with('\n'), "{refused:?}");
    assert_eq!(status.matches('\n').count(), 1, "{refused:?}");
    // So does an upgrade that is refused, without a message.
    fleet.refused(&["--program", "/nonexistent/tiderace"]);
    manager.check_silent();
    // The manager learns of a reload when it begins: here it waits for its file.
    fs::remove_file(&fleet.file).unwrap();
    assert!(Command::new("mkfifo").arg(&fleet.file).status().unwrap().success());
    signal(first, "HUP");
    assert!(manager.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    fs::write(&fleet.file, &good).unwrap();
    assert_eq!(manager.next(), "READY=1\nSTATUS=configuration 4 is in use\n");
    fs::remove_file(&fleet.file).unwrap();
    fs::write(&fleet.file, good).unwrap();

    let (_endpoint, mut h3) = Site::of(&fleet).h3().await;
    let (number, second) = fleet.upgrade();
    assert_eq!(number, 2);
    assert_eq!(manager.next(), format!("MAINPID={second}\nSTATUS=process 2 serves\n"));
    // The older process says nothing any more.
    signal(first, "HUP");
    manager.check_silent();
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    assert_eq!(manager.reload(second), "READY=1\nSTATUS=configuration 6 is in use\n");
    drop((h3, _endpoint));
    fleet.wait_for_end(first);
    manager.check_silent();
    let begun = Instant::now();
    signal(second, "TERM");
    assert_eq!(manager.next(), "STOPPING=1\n");
    fleet.wait_for_end(second);
    assert!(begun.elapsed() < LIMIT);
    manager.check_silent();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_during_an_upgrade_is_one_of_the_newer_process() {
    let folder = Scratch::new("notify-upgrade");
    let path = folder.0.join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let mut fleet =
        Fleet::start_in("notify-upgrade", "drain = \"1 s\"\n", &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let first = fleet.first_id();
    assert_eq!(manager.next(), "READY=1\nSTATUS=configuration 1 is in use\n");

    // The new process waits until somebody writes its configuration.
    let file = fleet.folder.0.join("waits.toml");
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let program = fleet.folder.0.join("waits");
    let tiderace = env!("CARGO_BIN_EXE_tiderace");
    fs::write(&program, format!("#!/bin/sh\nexec {tiderace} edge run --take-over --config {}\n", file.display()))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let upgrade = edge("upgrade", &fleet.file).arg("--program").arg(&program).stdout(Stdio::piped()).spawn().unwrap();
    let mut waiting = fs::OpenOptions::new().write(true).open(&file).unwrap();
    signal(first, "HUP");
    manager.check_silent();
    waiting.write_all(&fs::read(&fleet.file).unwrap()).unwrap();
    drop(waiting);
    // What the new process reads again is the file as it is by then.
    fs::remove_file(&file).unwrap();
    fs::copy(&fleet.file, &file).unwrap();
    let output = upgrade.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let pid = text.split_once("(PID ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
    let second: u32 = pid.unwrap_or_else(|| panic!("{text:?}"));
    fleet.note(second);

    assert_eq!(manager.next(), format!("MAINPID={second}\nSTATUS=process 2 serves\n"));
    assert!(manager.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(manager.next().starts_with("READY=1\nSTATUS=configuration "));
    manager.check_silent();
}
