//! The container image: what `deploy/Containerfile` says, done by hand, and the gateway in it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{Context, Row, Target, after, fetches, make, number, wait};
use crate::{
    dist::copy_all,
    shows::edge_servers::{port, site},
};

/// Content of the page that is served.
const CONTENT: &str = "from the image\n";

/// Instructions of a Containerfile, as far as ours has them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Image {
    /// From the folder of the Containerfile to the root of the image, with the owner.
    copies: Vec<(String, String, Option<u32>)>,
    user: String,
    command: Vec<String>,
}

impl Image {
    /// Reads a Containerfile. An instruction that is not done here is an error.
    fn read(text: &str) -> Result<Self> {
        let (mut image, mut entry, mut arguments) = (Self::default(), Vec::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (instruction, rest) = line.split_once(' ').with_context(|| format!("`{line}` says nothing"))?;
            match instruction {
                "FROM" => ensure!(rest == "scratch", "the image begins with {rest}"),
                "EXPOSE" | "STOPSIGNAL" => {}
                "USER" => rest.clone_into(&mut image.user),
                "ENTRYPOINT" => entry = serde_json::from_str(rest).context("ENTRYPOINT")?,
                "CMD" => arguments = serde_json::from_str(rest).context("CMD")?,
                "COPY" => {
                    let mut words = rest.split_whitespace().peekable();
                    let owner = words.next_if(|word| word.starts_with("--chown="));
                    let owner = owner.and_then(|word| word.strip_prefix("--chown=")?.split(':').next()?.parse().ok());
                    let (from, to) = (words.next().context("COPY")?, words.next().context("COPY")?);
                    image.copies.push((from.to_owned(), to.to_owned(), owner));
                }
                _ => anyhow::bail!("{instruction} is not done here"),
            }
        }
        image.command = entry.into_iter().chain::<Vec<String>>(arguments).collect();
        Ok(image)
    }

    /// Makes the root directory.
    fn lay_out(&self, folder: &Path, root: &Path) -> Result<()> {
        for (from, to, owner) in &self.copies {
            let to = root.join(to.trim_start_matches('/'));
            copy_all(&folder.join(from), &to)?;
            if let Some(owner) = owner {
                chown(&to, Some(*owner), Some(*owner))?;
            }
        }
        Ok(())
    }
}

/// Runs the gateway of the image, and asks it from outside.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let dist = make(context, "container", &["--container"])?;
    let folder = context.root.join(after(&dist.ended.stdout, "container: ")?);
    let image = Image::read(&fs::read_to_string(folder.join("Containerfile"))?)?;
    let scratch = context.commands.scratch("face-container")?;
    let root = scratch.join("root");
    image.lay_out(&folder, &root)?;
    let size = bytes(&root)?;

    let port = port()?;
    let volume = root.join("etc/tiderace");
    site(&volume, &[])?;
    fs::write(volume.join("www/index.html"), CONTENT)?;
    let text = format!(
        "listen = \"127.0.0.1:{port}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\nfiles = \"www\"\n"
    );
    fs::write(volume.join("edge.toml"), text)?;
    // As a volume that is readable for the image's user.
    fs::set_permissions(volume.join("key.pem"), fs::Permissions::from_mode(0o644))?;

    let mut chroot = Command::new("chroot");
    chroot.arg(format!("--userspec={}", image.user)).arg(&root).args(&image.command);
    // As a container's runtime sets it.
    chroot.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let mut gateway = context.commands.start("face-container-gateway", &mut chroot)?;
    wait(&mut gateway, port)?;
    let mut failed = Vec::new();
    for protocol in ["--http3", "--http2", "--http1.1"] {
        if !fetches(context, &dist, protocol, port, &volume.join("cert.pem"), CONTENT)? {
            failed.push(protocol);
        }
    }
    let files = count(&root)?;
    let megabyte = 1e6;
    Ok(vec![
        Row::new("size of the image", size / megabyte, "MB", Target::AtMost(16.0))
            .detail(format!("{files} files with the test's own")),
        Row::new("versions of HTTP that `tiderace get` misses", number(failed.len()), "", Target::Exactly(0.0))
            .detail(format!("as {}, by chroot: {} {}", image.user, image.command.join(" "), failed.join(" "))),
    ])
}

fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(walk(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

fn count(root: &Path) -> Result<usize> {
    walk(root).map(|files| files.len())
}

#[expect(clippy::cast_precision_loss, reason = "the size of files")]
fn bytes(root: &Path) -> Result<f64> {
    walk(root)?.iter().map(|file| Ok(file.metadata()?.len() as f64)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let image = Image::read(&fs::read_to_string(root.join("deploy/Containerfile")).unwrap()).unwrap();
        assert_eq!(image.command[..2], ["/usr/bin/tiderace", "edge"]);
        assert_eq!(image.user, "65532:65532");
        assert_eq!(image.copies[0], ("root/".to_owned(), "/".to_owned(), None));
        assert_eq!(image.copies[1].2, Some(65532));
        assert!(Image::read("FROM debian").is_err() && Image::read("RUN apt-get").is_err());
    }
}
