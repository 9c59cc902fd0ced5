//! Links of the built site: between its pages, to headings, pictures, styles and scripts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::links::{is_foreign, resolve};

/// Pages, links between them, and the broken ones. The page that is shown in place of a missing one is made for any address, and left out.
pub(super) fn check(book: &Path) -> Result<(usize, usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    read(book, book, &mut pages)?;
    let names: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(name, text)| (name.as_path(), values(text, "id").collect())).collect();
    let (mut links, mut faults) = (0, Vec::new());
    for (name, text) in &pages {
        for target in values(text, "href").chain(values(text, "src")).filter(|target| !is_foreign(target)) {
            links += 1;
            let fault = match resolve(name, target) {
                Some((path, heading)) if book.join(&path).is_file() => heading.and_then(|heading| {
                    let known = names.get(path.as_path()).is_none_or(|names| names.contains(heading.as_str()));
                    (!known && !heading.is_empty()).then_some("names no heading")
                }),
                _ => Some("leads nowhere"),
            };
            faults.extend(fault.map(|fault| format!("{}: {target} {fault}", name.display())));
        }
    }
    Ok((pages.len(), links, faults))
}

fn read(book: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read(book, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") && !path.ends_with("404.html") {
            pages.insert(path.strip_prefix(book)?.to_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Values of an attribute, as they stand in the text between double quotes.
fn values<'t>(text: &'t str, attribute: &str) -> impl Iterator<Item = &'t str> {
    let begin = format!(" {attribute}=\"");
    let parts: Vec<&str> = text.split(begin.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect();
    parts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_of_pages_are_found() {
        let book = std::env::temp_dir().join(format!("tiderace-pages-{}", std::process::id()));
        fs::create_dir_all(book.join("guides")).unwrap();
        let page = r##"<a href="guides/b.html#there"></a><a href="guides/b.html#gone"></a><a href="#"></a><img src="x.svg"><a href="https://x.example">"##;
        fs::write(book.join("index.html"), page).unwrap();
        fs::write(book.join("404.html"), r#"<a href="gone.html">"#).unwrap();
        fs::write(book.join("guides/b.html"), r#"<h1 id="there"></h1><a href="../index.html"></a><a href="../../y">"#)
            .unwrap();
        let (pages, links, faults) = check(&book).unwrap();
        fs::remove_dir_all(&book).unwrap();
        assert_eq!((pages, links), (2, 6));
        assert_eq!(
            faults,
            [
                "guides/b.html: ../../y leads nowhere",
                "index.html: guides/b.html#gone names no heading",
                "index.html: x.svg leads nowhere"
            ]
        );
    }
}
