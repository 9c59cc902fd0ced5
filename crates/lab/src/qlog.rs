//! Directories of qlog files: one per run, one file per connection and side.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

/// The directory of one run's qlog files.
#[derive(Clone, Debug)]
pub struct QlogDir(PathBuf);

impl QlogDir {
    /// The directory `root/CONTENDER/seed-N`, created if it is not there.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(root: &Path, contender: &str, seed: u64) -> io::Result<Self> {
        let plain: String =
            contender.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let directory = root.join(plain).join(format!("seed-{seed}"));
        fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    /// A new file for one side of one connection: `connection-007-client.sqlog`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn file(&self, connection: usize, side: &str) -> io::Result<BufWriter<File>> {
        File::create(self.0.join(format!("connection-{connection:03}-{side}.sqlog"))).map(BufWriter::new)
    }
}
