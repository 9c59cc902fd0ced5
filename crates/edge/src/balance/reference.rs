//! Reference page of the load balancer's configuration, made from the declarations.

use super::{BalanceConfig, BalanceHealth, BalanceTcp, ConnectionIds, Machine};
use crate::config::{reference::section, schema::Described};

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
    section::<BalanceTcp>(&mut page, "[tcp]");
    section::<BalanceHealth>(&mut page, "[health]");
    page
}

/// The JSON Schema of the file.
pub fn schema() -> serde_json::Value {
    let mut schema = BalanceConfig::schema();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Configuration of tiderace balance".into();
    schema
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

    #[test]
    fn the_schema_takes_what_the_load_balancer_takes() {
        let validator = jsonschema::draft202012::new(&super::schema()).unwrap();
        let value = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        let good = "listen = [\"a:1\"]\n[[connection-ids]]\nkey = \"k\"\n[[machine]]\nserver-id = \"01\"\ndrain = true\n\
                    [health]\ninterval = \"1 s\"\n";
        assert!(validator.is_valid(&value(good)));
        for wrong in ["[[machines]]\n", "[[machine]]\ndrain = 1\n", "[health]\ninterval = 1\n", "machine = 1"] {
            assert!(!validator.is_valid(&value(wrong)), "{wrong}");
            assert!(toml::from_str::<super::BalanceConfig>(wrong).is_err(), "{wrong}");
        }
    }
}
