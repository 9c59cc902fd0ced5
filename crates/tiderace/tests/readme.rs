//! The program text in README.md is that of an example that is compiled, and the example works.

#[path = "../examples/ask.rs"]
#[allow(dead_code, reason = "the example's main is not called")]
mod ask;

#[test]
fn readme_quotes_the_example() {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../examples/ask.rs");
    let between = |text: &'static str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("there is no {begin:?}"));
        rest.split_once(end).unwrap_or_else(|| panic!("there is no {end:?}")).0
    };
    assert_eq!(between(readme, "```rust\n", "```"), between(example, "// README begins\n", "// README ends"));
}

#[tokio::test]
async fn the_example_answers() {
    assert_eq!(ask::demonstrate("why?").await.unwrap(), "why?");
}
