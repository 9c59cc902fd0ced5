//! Errors of a start, a reload and an upgrade, each with its variant.

use std::{
    io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{Process, ProcessError};
use crate::{
    config::ConfigCause,
    setup::SetupError,
    upgrade::{RefusalCause, UpgradeError},
};

/// A gateway that is to start, in a folder of its own.
struct Site {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let file = folder.path().join("edge.toml");
        Self { folder, file }
    }

    /// Writes the configuration, with `listen` and these sections.
    fn configure(&self, listen: &str, sections: &str) {
        let text = format!(
            "listen = \"{listen}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n{sections}\n\
             [[route]]\nto = \"http://127.0.0.1:9\"\n"
        );
        std::fs::write(&self.file, text).unwrap();
    }

    fn start(&self, listen: &str, sections: &str) -> Result<Arc<Process>, ProcessError> {
        self.configure(listen, sections);
        Process::start(&self.file)
    }

    /// A program of this text.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// Error of the part that cannot be opened.
fn part(error: &ProcessError) -> &ProcessError {
    match error {
        ProcessError::Refused { source, .. } => source,
        other => other,
    }
}

#[tokio::test]
async fn each_fault_of_a_start_has_its_variant() {
    let site = Site::new();
    let any = "127.0.0.1:0";
    let missing = Process::start(Path::new("/nowhere/edge.toml")).err().unwrap();
    assert!(matches!(&missing, ProcessError::Config(error) if matches!(error.cause, ConfigCause::Unreadable(_))));

    let taken = TcpListener::bind(any).unwrap().local_addr().unwrap().to_string();
    let other = site.start(&taken, "").unwrap();
    let listen = site.start(&taken, "").err().unwrap();
    let is_taken = |why: &io::Error| why.kind() == io::ErrorKind::AddrInUse;
    assert!(listen.hint().unwrap().contains("another program serves there"));
    assert!(
        matches!(part(&listen), ProcessError::Listen { address, why, .. } if *address == taken && is_taken(why)),
        "{listen:?}"
    );

    let socket = site.start(any, "[admin]\nsocket = \"/nowhere/admin.sock\"").err().unwrap();
    assert!(
        matches!(part(&socket), ProcessError::AdminSocket { path, .. } if path.starts_with("/nowhere")),
        "{socket:?}"
    );
    let log = site.start(any, "[log]\naccess = \"/nowhere/access.log\"").err().unwrap();
    let is_log = |path: &str| path == "/nowhere/access.log";
    assert!(matches!(part(&log), ProcessError::Setup(SetupError::AccessLog { path, .. }) if is_log(path)), "{log:?}");

    crate::connection_id_key::make(&site.folder.path().join("id-key")).unwrap();
    crate::keys::rotate(&site.folder.path().join("ring"), 1, Duration::ZERO, Duration::ZERO).unwrap();
    site.configure(&taken, "[keys]\nfile = \"ring\"\n[load-balancer]\nserver-id = \"01\"\nkey = \"id-key\"");
    let routable = other.reload().await.err().unwrap();
    assert!(matches!(routable, ProcessError::Routable), "{routable}");
    assert!(routable.hint().unwrap().contains("drain this machine"));
}

/// A command of the shell that sends a message of the hand-over protocol.
fn send(message: &str) -> String {
    format!("printf '\\000\\000\\000\\{:03o}{}' >&0", message.len(), message.replace('%', "%%"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_of_an_upgrade_has_its_variant() {
    type Expected = fn(&UpgradeError) -> bool;
    let site = Site::new();
    let process = site.start("127.0.0.1:0", "[upgrade]\nstart-timeout = \"3 s\"").unwrap();
    let hello = send(r#"{"from":2,"to":2,"program":"9"}"#);
    let failed = send(r#"{"failed":{"error":"no room","hint":"make room","cause":"listener"}}"#);
    let cases: [(&str, String, Expected); 5] = [
        (
            "crash",
            "exit 7".to_owned(),
            |error| matches!(error, UpgradeError::Ended(status) if status.code() == Some(7)),
        ),
        (
            "silent",
            "exec sleep 60".to_owned(),
            |error| matches!(error, UpgradeError::Late(limit) if *limit == Duration::from_secs(3)),
        ),
        ("other", format!("{}; exec sleep 60", send(r#"{"from":7,"to":9,"program":"9"}"#)), |error| {
            matches!(error, UpgradeError::Protocol { from: 7, to: 9 })
        }),
        (
            "liar",
            "printf '\\377\\377\\377\\377' >&0; exec sleep 60".to_owned(),
            |error| matches!(error, UpgradeError::Broken(error) if error.kind() == io::ErrorKind::InvalidData),
        ),
        ("refuses", format!("{hello}; {failed}; exec sleep 60"), |error| {
            matches!(error, UpgradeError::Refused { cause: RefusalCause::Listener, error, hint: Some(hint) }
                if error == "no room" && hint == "make room")
        }),
    ];
    for (name, text, is_expected) in cases {
        let error = process.upgrade(Some(site.script(name, &text))).await.unwrap_err();
        assert!(is_expected(&error), "{name}: {error:?}");
    }
    let none = process.upgrade(Some("/nowhere/program".into())).await.unwrap_err();
    assert!(matches!(&none, UpgradeError::Start { program, .. } if program.starts_with("/nowhere")), "{none:?}");
    assert!(!process.has_handed_over());
}
