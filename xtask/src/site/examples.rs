//! Program texts of the guides: each stands in a file that is compiled, which the line above it names.

/// Program texts of a document: the file that the line above names, and the text.
fn quoted(text: &str) -> Vec<(Option<&str>, String)> {
    let (mut found, mut above, mut block) = (Vec::new(), "", None::<String>);
    for line in text.lines() {
        match &mut block {
            Some(_) if line.starts_with("```") => {
                let file = above.strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->"));
                found.extend(block.take().map(|text| (file, text)));
                above = "";
            }
            Some(text) => *text += &format!("{line}\n"),
            None if line.starts_with("```rust") => block = Some(String::new()),
            None => above = line,
        }
    }
    found
}

mod tests {
    use std::{fs, path::Path};

    use super::quoted;

    #[test]
    fn program_texts_of_the_guides_are_compiled() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut count = 0;
        for entry in fs::read_dir(root.join("docs/guides")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display();
            for (file, text) in quoted(&fs::read_to_string(&path).unwrap()) {
                let file = file.unwrap_or_else(|| panic!("{name}: no line `<!-- from FILE -->` above\n{text}"));
                assert!(file.contains("/examples/") && file.ends_with(".rs"), "{name}: {file} is no example");
                let source =
                    fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
                assert!(source.contains(&text), "{name}: {file} does not have\n{text}");
                count += 1;
            }
        }
        assert!(count >= 3, "the guides have {count} program texts");
    }

    #[test]
    fn a_text_without_a_file_is_seen() {
        let text = "<!-- from a/examples/b.rs -->\n```rust\nfn a() {}\n```\n```rust\nfn b() {}\n```\n```sh\nls\n```\n";
        let found = quoted(text);
        assert_eq!(found, [(Some("a/examples/b.rs"), "fn a() {}\n".to_owned()), (None, "fn b() {}\n".to_owned())]);
    }
}
