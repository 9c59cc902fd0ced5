//! Root directory of the container image: `deploy/Containerfile` copies it into an empty image.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use super::{
    Folders,
    stage::{self, Staged, THIRD_PARTY},
    target::Target,
};

/// Places of the certificates that a system trusts, by distribution.
const TRUSTED: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Files of the repository that go into the image.
const DOCUMENTS: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Lays out a folder with a Containerfile and everything that it copies; its path.
pub(super) fn lay_out(folders: &Folders, target: &Target, staged: &Staged) -> Result<PathBuf> {
    let folder = stage::empty(&folders.out.join(format!("container-{}", target.arch.debian())))?;
    fs::copy(folders.root.join("deploy/Containerfile"), folder.join("Containerfile"))?;
    let root = folder.join("root");
    for place in ["usr/bin", "etc/ssl/certs", "etc/tiderace", "usr/share/doc/tiderace", "var/lib/tiderace"] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::copy(staged.folder.join("tiderace"), root.join("usr/bin/tiderace"))?;
    // Back ends, authorities and `tiderace get` are verified against these.
    let trusted = TRUSTED.iter().find(|path| fs::exists(path).is_ok_and(|exists| exists));
    let trusted =
        trusted.context("this machine has no file of trusted certificates\nhint: apt-get install ca-certificates")?;
    fs::copy(trusted, root.join("etc/ssl/certs/ca-certificates.crt"))?;
    fs::write(root.join("etc/passwd"), "tiderace:x:65532:65532:tiderace:/var/lib/tiderace:/sbin/nologin\n")?;
    fs::write(root.join("etc/group"), "tiderace:x:65532:\n")?;
    for name in DOCUMENTS.into_iter().chain([THIRD_PARTY]) {
        fs::copy(staged.folder.join(name), root.join("usr/share/doc/tiderace").join(name))?;
    }
    Ok(folder)
}
