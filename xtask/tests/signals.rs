//! Programs that `xtask` starts end with it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Limit against hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// Waits for what has to come.
fn until<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether a process does nothing any more; one that nobody has waited for still has its entry.
fn is_over(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// A program in the place of cargo, which starts another one and waits for it.
fn build_that_hangs(folder: &Path) -> std::path::PathBuf {
    let program = folder.join("cargo");
    fs::write(&program, "#!/bin/sh\nsleep 600 &\necho $! > \"$0.new\"\nmv \"$0.new\" \"$0.pid\"\nwait\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_build_ends_with_the_program_that_has_started_it() {
    for signal in ["TERM", "INT", "HUP"] {
        let folder = std::env::temp_dir().join(format!("tiderace-xtask-signal-{signal}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let cargo = build_that_hangs(&folder);
        let mut shows = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["shows", "house", "--only", "documentation"])
            .env("CARGO", &cargo)
            .env("CARGO_TARGET_DIR", folder.join("target"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = until("the build starts", || fs::read_to_string(folder.join("cargo.pid")).ok());
        let started: u32 = started.trim().parse().unwrap();
        assert!(!is_over(started));
        let sent = Command::new("kill").args([format!("-{signal}"), shows.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ended = shows.wait().unwrap();
        assert!(ended.code().is_some_and(|code| code > 128), "{signal}: {ended}");
        until("what the build has started ends", || is_over(started).then_some(()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
