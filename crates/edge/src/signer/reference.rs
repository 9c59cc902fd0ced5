//! The page of documentation about the configuration of a signer, made from the declarations.

use super::{Pkcs11Token, SignerConfig, SignerIdentity};
use crate::config::reference::section;

/// The page, as Markdown.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration of the signer\n\n\
         Made from the code by `tiderace edge signer reference`; a test keeps this file and the code equal. The file is TOML. Paths in it\n\
         are relative to its directory. `tiderace edge signer check CONFIG` says what is wrong with it.\n",
    );
    section::<SignerConfig>(&mut page, "The file");
    section::<Pkcs11Token>(&mut page, "[pkcs11]");
    section::<SignerIdentity>(&mut page, "[[identity]]");
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_what_the_code_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/signer-config.md");
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == super::markdown(),
            "docs/signer-config.md is out of date\nhint: cargo run -- edge signer reference > docs/signer-config.md"
        );
    }
}
