//! The product as users meet it: archive, Debian package, container image, site, and what the README shows.
//!
//! The cases of this folder use the program that `cargo xtask dist` makes.

mod commands;
mod container;
mod conveniences;
mod deb;
mod dist;
mod play;
mod site;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Case, Context,
    command::{Ended, Running},
    face_lab,
    row::{Row, Target},
};

/// Time that building the distribution may take.
const BUILD: Duration = Duration::from_secs(7_200);
/// Time that anything else may take.
const LIMIT: Duration = Duration::from_secs(900);

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    let mut cases = vec![
        case("dist", "archive: size, what is in it, checksums, a run in an empty root; needs root", dist::measure),
        case(
            "deb",
            "Debian package: install, serve, upgrade, purge in a chroot; needs root, debootstrap",
            deb::measure,
        ),
        case("container", "the image's root directory serves over HTTP/3 and TCP; needs root", container::measure),
        case(
            "conveniences",
            "everyday settings of the gateway beside Caddy: same requests, same answers",
            conveniences::measure,
        ),
        case("site", "documentation site: links, and pages in Chromium at 400 and 1,280 px", site::measure),
        case("commands", "the first use: commands of README and documents in fresh clones", commands::measure),
        case(
            "play",
            "the page of `lab play` in Chromium: sliders, address, scenario, a telephone, no complaints",
            play::measure,
        ),
        case("readme", "the table that README.md shows is what `lab run mobile` prints", readme),
    ];
    cases.extend(face_lab::cases());
    cases
}

/// Files that `cargo xtask dist` has made.
struct Dist {
    /// `target/dist`.
    out: PathBuf,
    /// Folder with the files of the archive.
    staged: PathBuf,
    ended: Ended,
}

impl Dist {
    fn program(&self) -> PathBuf {
        self.staged.join("tiderace")
    }
}

/// Makes the archive for this machine's architecture, and what the options add to it.
fn make(context: &Context, name: &str, options: &[&str]) -> Result<Dist> {
    let mut xtask = Command::new(std::env::current_exe()?);
    xtask.args(["dist", "--arch", std::env::consts::ARCH]).args(options).current_dir(&context.root);
    let ended = context.commands.run(&format!("face-{name}-build"), &mut xtask, BUILD)?;
    // 1 says that the program is too large or not static: that is measured here.
    ensure!(matches!(ended.code, Some(0 | 1)), "{}", ended.reason());
    let archive = after(&ended.stdout, "archive: ")?;
    let out = std::path::absolute(Path::new(archive).parent().context("the archive lies in a folder")?)?;
    let name =
        Path::new(archive).file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".tar.gz"));
    let staged = out.join("stage").join(name.context("the archive has a name")?);
    Ok(Dist { out, staged, ended })
}

/// Rest of the line that begins like this.
fn after<'t>(text: &'t str, begin: &str) -> Result<&'t str> {
    let line = text.lines().find_map(|line| line.strip_prefix(begin));
    line.with_context(|| format!("there is no line `{begin}…`"))
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Fetches a page of a gateway on this machine over one protocol, with the program of the archive; whether the content is this.
fn fetches(context: &Context, dist: &Dist, protocol: &str, port: u16, authority: &Path, content: &str) -> Result<bool> {
    let mut get = Command::new(dist.program());
    get.args(["get", protocol, "--silent", "--ca"]).arg(authority).arg(format!("https://localhost:{port}/"));
    let ended = context.commands.run(&format!("face-get{protocol}"), &mut get, LIMIT)?;
    Ok(ended.succeeded() && ended.stdout == content)
}

/// Waits until the gateway answers over TCP, or has ended.
fn wait(running: &mut Running, port: u16) -> Result<()> {
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(running.alive(), "the gateway has ended: {}", running.printed().trim());
        ensure!(begun.elapsed() < Duration::from_secs(60), "nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Lines of README.md's table that the program of the archive prints otherwise.
fn readme(context: &Context) -> Result<Vec<Row>> {
    let dist = make(context, "readme", &[])?;
    let scratch = context.commands.scratch("face-readme")?;
    let mut lab = Command::new(dist.program());
    let ended =
        context.commands.run("face-readme", lab.args(["lab", "run", "mobile"]).current_dir(&scratch), LIMIT)?.ok()?;
    let readme = std::fs::read_to_string(context.root.join("README.md"))?;
    let begin = readme.find("```text\nmobile: ").context("README.md does not show `lab run mobile`")?;
    let shown = readme[begin..].strip_prefix("```text\n").and_then(|rest| rest.split("```").next()).unwrap_or_default();
    let stale: Vec<String> = differences(shown, &ended.stdout);
    let compared = shown.lines().count();
    let detail = format!("{compared} lines compared\n{}", stale.join("\n"));
    Ok(vec![
        Row::new("lines of README.md's table that are stale", number(stale.len()), "", Target::Exactly(0.0))
            .detail(detail),
    ])
}

/// Lines that differ, as shown and as printed.
fn differences(shown: &str, printed: &str) -> Vec<String> {
    let (shown, printed): (Vec<&str>, Vec<&str>) = (shown.trim().lines().collect(), printed.trim().lines().collect());
    (0..shown.len().max(printed.len()))
        .map(|line| (shown.get(line).map(|line| line.trim_end()), printed.get(line).map(|line| line.trim_end())))
        .filter(|(shown, printed)| shown != printed)
        .map(|(shown, printed)| {
            format!("shown:   {}\nprinted: {}", shown.unwrap_or("nothing"), printed.unwrap_or("nothing"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_lines_are_found() {
        assert!(differences("a\nb \n", "a\nb\n\n").is_empty());
        assert_eq!(differences("a\nb", "a\nc"), ["shown:   b\nprinted: c"]);
        assert_eq!(differences("a", "a\nc"), ["shown:   nothing\nprinted: c"]);
    }
}
