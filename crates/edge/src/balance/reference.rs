//! The page of documentation about the configuration of a load balancer, made from the declarations.

use super::{BalanceConfig, BalanceHealth, ConnectionIds, Machine};
use crate::config::reference::section;

/// The page, as Markdown.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration of the load balancer\n\n\
         Made from the code by `tiderace balance reference`; a test keeps this file and the code equal. The file is TOML. Paths in it are\n\
         relative to its directory. `tiderace balance check CONFIG` says what is wrong with it.\n",
    );
    section::<BalanceConfig>(&mut page, "The file");
    section::<ConnectionIds>(&mut page, "[[connection-ids]]");
    section::<Machine>(&mut page, "[[machine]]");
    section::<BalanceHealth>(&mut page, "[health]");
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_what_the_code_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/balance-config.md");
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == super::markdown(),
            "docs/balance-config.md is out of date\nhint: cargo run -- balance reference > docs/balance-config.md"
        );
    }
}
