//! Modules that use one another in circles: each module of a crate's root with what its folder holds is one.
//!
//! A use is a path that begins at the root: `crate::module`, `super::module` as often as the file is deep, or a name that the root exports
//! from a module (`pub use module::Name` makes `crate::Name` one). Tests do not count: they may look at everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    house::sources,
    row::{Row, Target},
};

/// The modules that each module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Rows about circles, one for each crate.
pub(super) fn cycles(context: &Context) -> Result<Vec<Row>> {
    let folder = context.root.join("crates");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.path().join("src").is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "there is no crate");
    let row = |name: &String| {
        let root = folder.join(name).join("src");
        let mut files = sources(&root)?;
        for (path, _) in &mut files {
            *path = path.strip_prefix(&root)?.to_owned();
        }
        let files: Vec<(&Path, &str)> = files.iter().map(|(path, text)| (path.as_path(), text.as_str())).collect();
        let circles = circles(&uses(&files));
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let count = circles.iter().map(Circle::len).sum::<usize>() as f64;
        let detail: Vec<String> = circles.iter().map(ToString::to_string).collect();
        Ok(Row::new(format!("modules in circles: {name}"), count, "", Target::Exactly(0.0)).detail(detail.join("\n")))
    };
    names.iter().map(row).collect()
}

/// The uses among the modules of a crate, whose files have paths below its `src`.
fn uses(files: &[(&Path, &str)]) -> Uses {
    let is_root = |module: &str| matches!(module, "lib" | "main");
    let known: BTreeSet<String> = files.iter().map(|(path, _)| module(path)).filter(|name| !is_root(name)).collect();
    let exported: BTreeMap<String, String> = files
        .iter()
        .filter(|(path, _)| is_root(&module(path)))
        .flat_map(|(_, text)| exports(&without_tests(text), &known))
        .collect();
    let mut uses: Uses = known.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for (path, text) in files {
        let module = module(path);
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        let Some(uses) = uses.get_mut(&module).filter(|_| !is_test) else { continue };
        let named = named(&without_tests(text), depth(path));
        let owners = named.into_iter().map(|name| exported.get(&name).cloned().unwrap_or(name));
        uses.extend(owners.filter(|used| *used != module && known.contains(used)));
    }
    uses
}

/// The module below the crate's root that a file belongs to.
fn module(path: &Path) -> String {
    let first = path.iter().next().map(|part| part.to_string_lossy().into_owned());
    first.unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// Number of `super` from a file's module to the root.
fn depth(path: &Path) -> usize {
    path.iter().count() - usize::from(path.ends_with("mod.rs"))
}

/// The code without comments and without what is compiled for tests only.
fn without_tests(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut code = String::new();
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        // The item has one line, or ends with a brace below its beginning.
        let item = lines.by_ref().find(|line| !line.starts_with("#["));
        if item.is_some_and(|item| !item.ends_with(';') && !item.ends_with('}')) {
            lines.by_ref().find(|line| line.starts_with('}'));
        }
    }
    code
}

/// Names of the root that are exported from one of the modules `known`, with their module.
fn exports(root: &str, known: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for statement in root.split(';') {
        let Some((_, tree)) = statement.split_once("pub use ").or(statement.split_once("pub(crate) use ")) else {
            continue;
        };
        let tree = tree.trim();
        let trees = match tree.strip_prefix('{') {
            Some(_) => branches(tree),
            None => vec![tree.to_owned()],
        };
        for tree in trees {
            let path = tree.trim_start_matches("crate::").trim_start_matches("self::");
            let Some((module, rest)) = path.split_once("::") else { continue };
            if known.contains(module) {
                found.extend(leaves(rest).into_iter().map(|name| (name, module.to_owned())));
            }
        }
    }
    found
}

/// The branches of the tree that begins with a brace: `{a::b, c}` has two.
fn branches(tree: &str) -> Vec<String> {
    let (mut depth, mut branch, mut all) = (0_usize, String::new(), Vec::new());
    for letter in tree.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_end = depth == 0 || depth == 1 && letter == ',';
        if is_end && !branch.trim().is_empty() {
            all.push(branch.trim().to_owned());
        }
        if depth == 0 {
            break;
        }
        match (is_end, letter, depth) {
            (true, ..) => branch.clear(),
            (false, '{', 1) if branch.is_empty() => {}
            _ => branch.push(letter),
        }
    }
    all
}

/// Names at the ends of a tree, as they are known there: after `as`, if that is said.
fn leaves(tree: &str) -> Vec<String> {
    match tree.find('{') {
        Some(at) => branches(&tree[at..]).iter().flat_map(|branch| leaves(branch)).collect(),
        None => {
            let name = tree.rsplit(" as ").next().unwrap_or_default().rsplit("::").next().unwrap_or_default();
            vec![first_name(name)]
        }
    }
}

/// Names behind the root, in paths and in braces.
fn named(code: &str, depth: usize) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut found = BTreeSet::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&root) {
            if code[..at].chars().next_back().is_some_and(is_part) {
                continue;
            }
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(_) => found.extend(branches(rest).iter().map(|branch| first_name(branch))),
                None => drop(found.insert(first_name(rest))),
            }
        }
    }
    found
}

fn first_name(path: &str) -> String {
    path.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// Modules of which each reaches each other, with the uses among them.
#[derive(Debug, PartialEq, Eq)]
struct Circle(Uses);

impl Circle {
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, (module, used)) in self.0.iter().enumerate() {
            let used: Vec<&str> = used.iter().map(String::as_str).collect();
            write!(f, "{}{module} uses {}", if number == 0 { "" } else { "; " }, used.join(", "))?;
        }
        Ok(())
    }
}

/// All circles.
fn circles(uses: &Uses) -> Vec<Circle> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses.keys().map(|start| (start, reach(uses, start))).collect();
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for start in uses.keys().filter(|module| reached[module].contains(module)) {
        if seen.contains(start) {
            continue;
        }
        let members: BTreeSet<&String> = reached[start]
            .iter()
            .copied()
            .filter(|module| reached.get(module).is_some_and(|r| r.contains(start)))
            .collect();
        let among = |module: &String| uses[module].iter().filter(|used| members.contains(used)).cloned().collect();
        all.push(Circle(members.iter().map(|module| ((*module).clone(), among(module))).collect()));
        seen.extend(members);
    }
    all
}

/// Modules that a module uses, and those use, and so on.
fn reach<'a>(uses: &'a Uses, start: &str) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&String> = uses[start].iter().collect();
    while let Some(module) = open.pop() {
        if seen.insert(module) {
            open.extend(uses.get(module).into_iter().flatten());
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Uses {
        edges.iter().map(|(from, to)| ((*from).to_owned(), to.iter().map(|&to| to.to_owned()).collect())).collect()
    }

    fn of(files: &[(&str, &str)]) -> Uses {
        uses(&files.iter().map(|(path, text)| (Path::new(path), *text)).collect::<Vec<_>>())
    }

    #[test]
    fn names_behind_the_root_are_found() {
        let code = "use crate::{\n    a::{b, c},\n    d,\n    e::f::{self, g},\n};\nfn x() { crate::h::y() }\nmy_crate::j();\n";
        assert_eq!(named(code, 1).into_iter().collect::<Vec<_>>(), ["a", "d", "e", "h"]);
        let code = "use super::{a, b::c};\nuse super::super::d;\nfn x() { super::e::f() }\n";
        assert_eq!(named(code, 1).into_iter().collect::<Vec<_>>(), ["a", "b", "e", "super"]);
        assert_eq!(named(code, 2).into_iter().collect::<Vec<_>>(), ["d"]);
        let deep = |path| depth(Path::new(path));
        assert_eq!(
            [deep("a.rs"), deep("a/mod.rs"), deep("a/b.rs"), deep("a/b/mod.rs"), deep("a/b/c.rs")],
            [1, 1, 2, 2, 3]
        );
    }

    #[test]
    fn a_name_that_the_root_exports_is_a_use_of_its_module() {
        let root = "mod a;\nmod b;\nmod c;\npub use a::{Name, inner::{Other as Third, Fourth}};\npub use self::b::Fifth;\npub use elsewhere::Sixth;\n";
        let known = ["a", "b", "c"].map(str::to_owned).into();
        let pair = |name: &str, module: &str| (name.to_owned(), module.to_owned());
        let expected = [pair("Name", "a"), pair("Third", "a"), pair("Fourth", "a"), pair("Fifth", "b")];
        assert_eq!(exports(root, &known), expected);
        let files = [
            ("lib.rs", root),
            ("a.rs", "use crate::Fifth;"),
            ("b.rs", "use crate::{Third, Unknown};"),
            ("c.rs", "use crate::Sixth;"),
        ];
        assert_eq!(of(&files), graph(&[("a", &["b"]), ("b", &["a"]), ("c", &[])]));
    }

    #[test]
    fn folders_count_as_their_module_and_tests_do_not_count() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a/mod.rs", "#[cfg(test)]\nmod tests;\nuse super::b;\n// crate::c\n"),
            ("a/tests.rs", "use crate::c;"),
            ("a/part.rs", "use super::super::b;\nuse super::other;"),
            (
                "b.rs",
                "fn x() {}\n#[cfg(test)]\nuse crate::{\n    a,\n};\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nfn y() { crate::c::z() }",
            ),
            ("c.rs", ""),
        ];
        assert_eq!(of(&files), graph(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]));
    }

    #[test]
    fn circles_are_told_apart() {
        assert!(circles(&graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let found = circles(&graph(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["b"]),
            ("d", &["a", "e"]),
            ("e", &["f"]),
            ("f", &["d"]),
        ]));
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["b uses c; c uses b", "d uses e; e uses f; f uses d"]);
        assert_eq!(found.iter().map(Circle::len).sum::<usize>(), 5);
    }
}
