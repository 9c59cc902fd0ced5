//! Links of the documents: files that they lead to, and headings.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// Document, as far as links are concerned.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Document {
    /// Targets of links and pictures, with the lines they stand on.
    pub(crate) links: Vec<(usize, String)>,
    /// First heading.
    pub(crate) title: String,
    /// Headings by the names under which links reach them.
    pub(crate) anchors: BTreeMap<String, String>,
}

impl Document {
    /// Reads Markdown. What stands in code is no link.
    pub(crate) fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let heading = heading.take().unwrap_or_default();
                    let name = anchor(&heading);
                    if document.title.is_empty() {
                        document.title.clone_from(&heading);
                    }
                    let count = seen.entry(name.clone()).or_default();
                    document.anchors.insert(if *count == 0 { name } else { format!("{name}-{count}") }, heading);
                    *count += 1;
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::Start(Tag::Link { link_type, dest_url, .. }) if link_type != LinkType::Email => {
                    document.links.push((line(text, range.start), dest_url.into_string()));
                }
                Event::Start(Tag::Image { dest_url, .. }) => {
                    document.links.push((line(text, range.start), dest_url.into_string()));
                }
                _ => {}
            }
        }
        document
    }
}

fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Name of a heading in links, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

/// Returns whether a link leads out of the repository.
pub(crate) fn is_foreign(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// Path of a link's target in the repository, and the heading; `None` when it leads out of the repository's folder.
pub(crate) fn resolve(document: &Path, target: &str) -> Option<(PathBuf, Option<String>)> {
    let (path, heading) =
        target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading.to_owned())));
    let mut resolved = if path.is_empty() { document.to_owned() } else { document.parent()?.to_owned() };
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir => resolved.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some((resolved, heading))
}

/// Documents of the repository: every Markdown file that git knows, and that is not the text of somebody else.
pub(crate) fn documents(root: &Path) -> Result<BTreeMap<PathBuf, Document>> {
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    ensure!(list.status.success(), "git ls-files: {}", String::from_utf8_lossy(&list.stderr));
    let names = String::from_utf8(list.stdout)?;
    let mut documents = BTreeMap::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            documents.insert(PathBuf::from(name), Document::read(&text));
        }
    }
    Ok(documents)
}

/// Broken links of these documents, one line each; `exists` knows the files that there are.
pub(crate) fn faults(documents: &BTreeMap<PathBuf, Document>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, document) in documents {
        for (line, target) in document.links.iter().filter(|(_, target)| !is_foreign(target)) {
            let fault = match resolve(name, target) {
                None => Some("leads out of the repository"),
                Some((path, _)) if !exists(&path) => Some("leads nowhere"),
                Some((path, Some(heading))) if lacks(documents, &path, &heading) => Some("names no heading"),
                Some(_) => None,
            };
            faults.extend(fault.map(|fault| format!("{}:{line}: {target} {fault}", name.display())));
        }
    }
    faults
}

fn lacks(documents: &BTreeMap<PathBuf, Document>, path: &Path, heading: &str) -> bool {
    documents.get(path).is_some_and(|document| !document.anchors.contains_key(heading))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_all_documents_lead_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let documents = documents(root).unwrap();
        let links: usize = documents.values().map(|document| document.links.len()).sum();
        assert!(documents.len() > 20 && links > 200, "{} documents, {links} links", documents.len());
        let faults = faults(&documents, |path| root.join(path).exists());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn broken_links_are_found() {
        let text = "# One `code` – and more\n[a](#one-code--and-more) [b](#two) [c](../Cargo.toml) [d](gone.md)\n\n\
                    ![e](../../x.png) `[f](gone.md)` [g](https://example.org/x) [h](b.md#there-1) <https://example.org>\n\n\
                    ```md\n[i](gone.md)\n```\n[j][k]\n\n[k]: /root\n\n[l](mailto:a@b)\n";
        let documents = BTreeMap::from([
            (PathBuf::from("docs/a.md"), Document::read(text)),
            (PathBuf::from("docs/b.md"), Document::read("## There\n## There\n[x](a.md#there)")),
        ]);
        let found = faults(&documents, |path| documents.contains_key(path) || path == Path::new("Cargo.toml"));
        let expected = [
            "docs/a.md:2: #two names no heading",
            "docs/a.md:2: gone.md leads nowhere",
            "docs/a.md:4: ../../x.png leads out of the repository",
            "docs/a.md:9: /root leads out of the repository",
            "docs/b.md:3: a.md#there names no heading",
        ];
        assert_eq!(found, expected);
    }
}
