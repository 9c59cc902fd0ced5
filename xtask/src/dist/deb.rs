//! Debian package, by dpkg-deb from the staged files: the program is static, so that one package serves every release.
//!
//! Installing starts nothing. The unit runs as soon as the administrator enables it.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Folders, commit_time, finish,
    stage::{self, COMPLETIONS, Staged, THIRD_PARTY},
    target::Target,
};

const UNIT: &str = "tiderace-edge.service";
const SOCKET_UNIT: &str = "tiderace-edge.socket";
/// Scripts that dpkg runs; their texts are in `deploy/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Files that dpkg keeps as the administrator has changed them.
const CONFFILES: [&str; 1] = ["/etc/tiderace/edge.toml"];

/// Makes the package; its path.
pub(super) fn make(folders: &Folders, target: &Target, staged: &Staged) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("tiderace_{version}_{}", target.arch.debian());
    let tree = stage::empty(&folders.out.join("stage").join(&name))?;
    lay_out(folders, staged, &tree)?;
    let debian = folders.root.join("deploy/debian");
    let control = tree.join("DEBIAN");
    fs::create_dir(&control)?;
    let size = installed(&tree)?.div_ceil(1024);
    let template = fs::read_to_string(debian.join("control"))?;
    let fields = [("@VERSION@", version), ("@ARCH@", target.arch.debian()), ("@SIZE@", &size.to_string())];
    let text = fields.iter().fold(template, |text, (mark, value)| text.replace(mark, value));
    fs::write(control.join("control"), text)?;
    fs::write(control.join("conffiles"), CONFFILES.join("\n") + "\n")?;
    for script in SCRIPTS {
        let path = control.join(script);
        fs::copy(debian.join(script), &path).with_context(|| format!("cannot copy {script}"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let sums = finish(
        Command::new("sh")
            .current_dir(&tree)
            .args(["-c", "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | sort -z | xargs -0 md5sum"]),
    )?;
    fs::write(control.join("md5sums"), sums)?;
    let path = folders.out.join(format!("{name}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree).arg(&path);
    finish(build.env("SOURCE_DATE_EPOCH", commit_time(&folders.root)))?;
    Ok(path)
}

/// Puts files where Debian has them.
fn lay_out(folders: &Folders, staged: &Staged, tree: &Path) -> Result<()> {
    let debian = folders.root.join("deploy/debian");
    let from = |name: &str| staged.folder.join(name);
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    put(tree, "usr/bin/tiderace", &read(from("tiderace"))?, 0o755)?;
    put(tree, "etc/tiderace/edge.toml", &read(debian.join("edge.toml"))?, 0o644)?;

    let unit = fs::read_to_string(folders.root.join("deploy").join(UNIT))?;
    ensure!(unit.contains("/usr/local/bin/tiderace"), "{UNIT} names the program elsewhere");
    let unit = unit.replace("/usr/local/bin/tiderace", "/usr/bin/tiderace");
    put(tree, &format!("usr/lib/systemd/system/{UNIT}"), unit.as_bytes(), 0o644)?;
    let socket_unit = read(folders.root.join("deploy").join(SOCKET_UNIT))?;
    put(tree, &format!("usr/lib/systemd/system/{SOCKET_UNIT}"), &socket_unit, 0o644)?;

    let places = ["usr/share/bash-completion/completions/tiderace", "usr/share/zsh/vendor-completions/_tiderace"];
    let places = places.into_iter().chain(["usr/share/fish/vendor_completions.d/tiderace.fish"]);
    for ((_, file), place) in COMPLETIONS.iter().zip(places) {
        put(tree, place, &read(from("completions").join(file))?, 0o644)?;
    }
    for entry in fs::read_dir(from("man"))? {
        let path = entry?.path();
        let name = path.file_name().context("a page has a name")?.to_string_lossy().into_owned();
        put_compressed(tree, &format!("usr/share/man/man1/{name}"), &read(path)?)?;
    }
    let documents = "usr/share/doc/tiderace";
    put(tree, &format!("{documents}/copyright"), copyright(&folders.root)?.as_bytes(), 0o644)?;
    put(tree, &format!("{documents}/README.md"), &read(from("README.md"))?, 0o644)?;
    put_compressed(tree, &format!("{documents}/changelog"), &read(from("CHANGELOG.md"))?)?;
    put_compressed(tree, &format!("{documents}/{THIRD_PARTY}"), &read(from(THIRD_PARTY))?)?;
    for folder in ["prometheus", "grafana"] {
        for file in files(&folders.root.join("deploy").join(folder))? {
            let name = file.strip_prefix(folders.root.join("deploy"))?.to_string_lossy().into_owned();
            put(tree, &format!("{documents}/examples/{name}"), &read(file)?, 0o644)?;
        }
    }
    Ok(())
}

/// Our licences in the form that Debian's tools read.
fn copyright(root: &Path) -> Result<String> {
    let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
    let holder = mit.lines().find(|line| line.starts_with("Copyright")).context("LICENSE-MIT names nobody")?;
    let mut text = format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: tiderace\nSource: {}\n\nFiles: *\nCopyright: {}\n\
         License: Apache-2.0 or Expat\nComment:\n The licences of what is linked into the program are in {THIRD_PARTY}.gz.\n\nLicense: Apache-2.0\n \
         On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n\nLicense: Expat\n",
        env!("CARGO_PKG_REPOSITORY"),
        holder.trim_start_matches("Copyright (c) ")
    );
    for line in mit.lines().skip_while(|line| !line.starts_with("Permission")) {
        _ = writeln!(text, " {}", if line.trim().is_empty() { "." } else { line });
    }
    Ok(text)
}

/// Writes a file of the package, with the folders above it.
fn put(tree: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let path = tree.join(name);
    fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
}

/// Writes a file as Debian wants documents: compressed, without name and time in it.
fn put_compressed(tree: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    put(tree, name, bytes, 0o644)?;
    finish(Command::new("gzip").arg("-9nf").arg(tree.join(name))).map(drop)
}

/// Files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Bytes of the files below a folder.
fn installed(tree: &Path) -> Result<u64> {
    files(tree)?.iter().map(|file| Ok(file.metadata()?.len())).sum()
}
