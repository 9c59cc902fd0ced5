//! Files of an archive, laid out in a folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Folders, commit_time, finish, licences, program::Program, target::Target};

/// Files that are copied as they are.
const FILES: [&str; 5] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "SECURITY.md"];
/// Completions, by the shell's name for itself.
pub(super) const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "tiderace.bash"), ("zsh", "_tiderace"), ("fish", "tiderace.fish")];
/// Licences of what is linked into the program.
pub(super) const THIRD_PARTY: &str = "THIRD-PARTY-LICENCES.txt";

/// Folder with the program and what goes with it.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) folder: PathBuf,
    pub(super) name: String,
}

/// Lays out the files.
pub(super) fn lay_out(folders: &Folders, target: &Target, program: &Program, name: &str) -> Result<Staged> {
    let folder = empty(&folders.out.join("stage").join(name))?;
    fs::copy(&program.path, folder.join("tiderace"))?;
    for file in FILES {
        fs::copy(folders.root.join(file), folder.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    copy_all(&folders.root.join("deploy"), &folder.join("deploy"))?;
    let texts = licences::collect(&folders.root, &target.triple())?;
    fs::write(folder.join(THIRD_PARTY), texts)?;

    let emulator = "\nhint: apt-get install qemu-user-static, to run what is for another machine";
    let hint = if target.arch.is_native() { "" } else { emulator };
    let pages = program.command(target.arch).args(["man", "--out"]).arg(folder.join("man")).output();
    let pages = pages.with_context(|| format!("the program cannot be started{hint}"))?;
    anyhow::ensure!(pages.status.success(), "no manual pages: {}", String::from_utf8_lossy(&pages.stderr));
    fs::create_dir(folder.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        let text = finish(program.command(target.arch).args(["completions", shell]))?;
        fs::write(folder.join("completions").join(file), text)?;
    }
    Ok(Staged { folder, name: name.to_owned() })
}

/// Packs the folder: the same files make the same bytes.
pub(super) fn archive(folders: &Folders, staged: &Staged) -> Result<PathBuf> {
    let path = folders.out.join(format!("{}.tar.gz", staged.name));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", commit_time(&folders.root))).args([
        "--use-compress-program",
        "gzip -9n",
        "--create",
        "--file",
    ]);
    tar.arg(&path).arg("--directory").arg(folders.out.join("stage")).arg(&staged.name);
    finish(&mut tar)?;
    Ok(path)
}

/// Folder without anything in it.
pub(super) fn empty(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Copies a folder with everything below it.
pub(crate) fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let copy = to.join(path.file_name().context("an entry has a name")?);
        if path.is_dir() {
            copy_all(&path, &copy)?;
        } else {
            fs::copy(&path, copy)?;
        }
    }
    Ok(())
}
