//! The program text in docs/webtransport.md is that of an example that is compiled, and the example works.

#[path = "../examples/webtransport_echo.rs"]
#[allow(unreachable_pub, reason = "an example is a crate of its own")]
mod echo;

#[test]
fn the_document_quotes_the_example() {
    let document = include_str!("../../../docs/webtransport.md");
    let example = include_str!("../examples/webtransport_echo.rs");
    let (_, text) = example.split_once("// docs begin\n").unwrap();
    let (text, _) = text.split_once("// docs end").unwrap();
    assert!(
        document.contains(text),
        "docs/webtransport.md does not quote crates/webtransport/examples/webtransport_echo.rs"
    );
}

#[tokio::test]
async fn the_example_answers() {
    assert_eq!(echo::demonstrate(b"why?").await.unwrap(), b"why?");
}
