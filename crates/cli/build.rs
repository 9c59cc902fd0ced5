//! Notes the commit that the program is built from, where there is a repository.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Of a repository of its own, not of one that happens to be around an unpacked archive.
    let tracked = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    // Git says where these are: in a worktree they are elsewhere. The log of HEAD grows with every commit.
    let watched = ["HEAD", "logs/HEAD"].map(|name| git(&["rev-parse", "--git-path", name]).filter(|_| tracked));
    println!("cargo::rerun-if-changed=build.rs");
    for path in watched.into_iter().flatten() {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| tracked) {
        println!("cargo::rustc-env=TIDERACE_COMMIT={commit}");
    }
}
