//! `cargo xtask site`: the documentation as a site, and the check that links lead somewhere.
//!
//! [`links`] reads the documents, [`commands`] their commands, `examples` compares their program texts with what is compiled, [`pages`] reads what mdBook has made of them. The sources of the site are those of `docs`; only links to
//! what is no page of it are led to the repository.

pub(crate) mod commands;
#[cfg(test)]
mod examples;
mod links;
mod pages;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use self::links::Document;

/// Version of mdBook that is installed where there is none.
const MDBOOK: &str = "0.5.4";
/// Folder of the documents.
const DOCS: &str = "docs";
/// The list of pages, which is none.
const CONTENTS: &str = "SUMMARY.md";

/// Build the documentation as a site, into target/site/book, and check its links.
///
/// mdBook is taken from the path, or installed into target/tools. Without --links the pages are checked as well.
///
/// Exit code 0: every link leads somewhere. 1: some do not. 2: the site cannot be built.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Check the links of the documents only, without building anything
    #[arg(long)]
    links: bool,
}

/// Site that was built.
#[derive(Debug)]
pub(crate) struct Site {
    /// Folder with `index.html`.
    pub(crate) book: PathBuf,
    /// Pages in it.
    pub(crate) pages: usize,
    /// Links in it that lead to other pages, headings and files of it.
    pub(crate) links: usize,
    /// Broken links of documents and pages.
    pub(crate) faults: Vec<String>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = root().and_then(|root| if args.links { check(&root) } else { report(&build(&root)?) });
    match result {
        Ok(faults) => {
            for fault in &faults {
                eprintln!("error: {fault}");
            }
            ExitCode::from(u8::from(!faults.is_empty()))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn root() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?.to_owned())
}

/// Broken links of the documents.
fn check(root: &Path) -> Result<Vec<String>> {
    let documents = links::documents(root)?;
    let links: usize = documents.values().map(|document| document.links.len()).sum();
    println!("{} documents, {links} links", documents.len());
    Ok(links::faults(&documents, |path| root.join(path).exists()))
}

fn report(site: &Site) -> Result<Vec<String>> {
    println!("{} pages, {} links: {}", site.pages, site.links, site.book.join("index.html").display());
    Ok(site.faults.clone())
}

/// Builds the site and checks it.
pub(crate) fn build(root: &Path) -> Result<Site> {
    let mut faults = check(root)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let (source, book) = (target.join("site/source"), target.join("site/book"));
    for folder in [&source, &book] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
    }
    copy(root, &source)?;
    fs::copy(root.join("book.toml"), source.join("book.toml"))?;
    let mut mdbook = Command::new(mdbook(&target)?);
    let status = mdbook.arg("build").arg(&source).arg("--dest-dir").arg(std::path::absolute(&book)?).status()?;
    ensure!(status.success(), "mdbook has failed");
    let (pages, links, broken) = pages::check(&book)?;
    faults.extend(broken);
    Ok(Site { book, pages, links, faults })
}

/// Path of mdBook, which is installed where there is none.
fn mdbook(target: &Path) -> Result<PathBuf> {
    let works = |program: &Path| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let tools = std::path::absolute(target.join("tools"))?;
    let installed = tools.join("bin/mdbook");
    for program in [PathBuf::from("mdbook"), installed.clone()] {
        if works(&program) {
            return Ok(program);
        }
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "mdbook", "--version", MDBOOK, "--locked", "--no-default-features", "--features", "search"]);
    let status = cargo.arg("--root").arg(&tools).status().context("cannot start cargo")?;
    ensure!(status.success(), "mdbook cannot be installed\nhint: cargo install mdbook --version {MDBOOK}");
    Ok(installed)
}

/// Copies the documents, with links to what is no page led to the repository.
fn copy(root: &Path, source: &Path) -> Result<()> {
    let documents = links::documents(root)?;
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", DOCS])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    for name in String::from_utf8(list.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), source.join(name));
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        match documents.get(Path::new(name)) {
            Some(document) => {
                let text = fs::read_to_string(&from)?;
                fs::write(to, lead_out(root, Path::new(name), &text, document, &documents))?;
            }
            None => _ = fs::copy(&from, to).with_context(|| format!("cannot copy {name}"))?,
        }
    }
    Ok(())
}

/// Text of a document whose links out of the folder of documents lead to the repository, and whose links to pages have their titles.
fn lead_out(
    root: &Path,
    name: &Path,
    text: &str,
    document: &Document,
    documents: &BTreeMap<PathBuf, Document>,
) -> String {
    let mut text = text.to_owned();
    for (_, target) in document.links.iter().filter(|(_, target)| !links::is_foreign(target)) {
        let Some((path, heading)) = links::resolve(name, target) else { continue };
        if let Some(page) = documents.get(&path).filter(|_| path.starts_with(DOCS) && !path.ends_with(CONTENTS)) {
            // Readers of the site know pages by their titles, not by their files.
            let title = title(page, heading.as_deref());
            let written = target.split_once('#').map_or(target.as_str(), |(file, _)| file);
            for named in [written, written.rsplit_once('/').map_or(written, |(_, file)| file)] {
                text = text.replace(&format!("[{named}]({target})"), &format!("[{title}]({target})"));
            }
            continue;
        }
        if path.extension().is_some_and(|end| end == "svg" || end == "png") {
            continue;
        }
        let kind = if root.join(&path).is_dir() { "tree" } else { "blob" };
        let heading = heading.map(|heading| format!("#{heading}")).unwrap_or_default();
        let address = format!("{}/{kind}/main/{}{heading}", env!("CARGO_PKG_REPOSITORY"), path.display());
        text = text.replace(&format!("]({target})"), &format!("]({address})"));
    }
    text
}

/// Title of a link's target: that of the page, and of the heading unless it is the page's own.
fn title(page: &Document, heading: Option<&str>) -> String {
    match heading.and_then(|heading| page.anchors.get(heading)) {
        Some(heading) if *heading != page.title => format!("{}: {heading}", page.title),
        _ => page.title.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_document_is_a_page_once() {
        let root = root().unwrap();
        let documents = links::documents(&root).unwrap();
        let summary = &documents[Path::new("docs/SUMMARY.md")];
        let listed: Vec<_> = summary
            .links
            .iter()
            .filter_map(|(_, target)| links::resolve(Path::new("docs/SUMMARY.md"), target))
            .collect();
        let pages: BTreeSet<&Path> = listed.iter().map(|(path, _)| path.as_path()).collect();
        assert_eq!(pages.len(), listed.len(), "a page stands in the summary twice");
        let written = documents.keys().filter(|name| name.starts_with(DOCS) && !name.ends_with(CONTENTS));
        let missing: Vec<_> = written.filter(|name| !pages.contains(name.as_path())).collect();
        assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    }

    #[test]
    fn links_named_after_a_file_have_the_titles_of_its_page_and_heading() {
        let root = root().unwrap();
        let text = "[b.md](../b.md) [../b.md](../b.md#second-part) [b.md](../b.md#b) [here](../b.md#second-part)";
        let page = Document::read("# B\n## Second part\n");
        let documents = BTreeMap::from([(PathBuf::from("docs/b.md"), page)]);
        let led = lead_out(&root, Path::new("docs/guides/a.md"), text, &Document::read(text), &documents);
        assert_eq!(
            led,
            "[B](../b.md) [B: Second part](../b.md#second-part) [B](../b.md#b) [here](../b.md#second-part)"
        );
    }

    #[test]
    fn links_out_of_the_documents_lead_to_the_repository() {
        let root = root().unwrap();
        let text = "[a](b.md) [b.md](b.md) [b](../README.md#x) [c](../crates) ![d](figures/e.svg) [e](#f) [g](https://h.example)";
        let document = Document::read(text);
        let documents = BTreeMap::from([(PathBuf::from("docs/b.md"), Document::read("# B, a page"))]);
        let led = lead_out(&root, Path::new("docs/a.md"), text, &document, &documents);
        let home = env!("CARGO_PKG_REPOSITORY");
        let expected = format!(
            "[a](b.md) [B, a page](b.md) [b]({home}/blob/main/README.md#x) [c]({home}/tree/main/crates) ![d](figures/e.svg)"
        );
        assert!(led.starts_with(&expected) && led.ends_with("[g](https://h.example)"), "{led}");
    }
}
