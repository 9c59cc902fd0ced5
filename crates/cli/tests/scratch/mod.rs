//! Folders and programs of which nothing is left when a test ends.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    path::PathBuf,
    process::{Child, Command, Output},
};

/// A folder of its own for each test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tiderace-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A certificate for this name, signed by itself, in `cert.pem`, with its key in `key.pem`.
    pub(crate) fn certificate(&self, name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        std::fs::write(self.0.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(self.0.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        made
    }

    /// Runs `tiderace lab` in it.
    pub(crate) fn lab(&self, arguments: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_tiderace");
        Command::new(program).arg("lab").args(arguments).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program; killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
