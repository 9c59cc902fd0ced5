//! `docs/guides/caddy.md`: each convenience in the words of both gateways, as they are run.

use std::fmt::Write as _;

use super::{
    MARKS, all,
    case::{Caddy, Convenience},
};

/// Values that stand in the document for what each run replaces.
const SHOWN: [&str; 7] = ["443", "80", "8081", "8082", "8080", "/srv", "$2y$10$…"];

/// The document.
fn page() -> String {
    let mut page = String::from(
        "# Come from Caddy\n\nSettings of the gateway beside the directives of a Caddyfile that do the same.\n\n\
         - Each pair is run as it stands here: the same requests over HTTP/1.1, HTTP/2 and HTTP/3, and both gateways answer alike, but for what \
         is listed as a difference.\n\
         - Left out below: `listen`, `certificate` and `key` of `edge.toml`, address and `tls` of the Caddyfile.\n\
         - `8081` and `8082` are back ends, `/srv` is the folder of the site.\n\n\
         Repeat the comparison: `cargo xtask shows face --only conveniences` (it takes Go to build Caddy 2.11.4, and curl). [site.md](../site.md) and \
         [access.md](../access.md) have all settings.\n",
    );
    for convenience in all() {
        section(&mut page, &convenience);
    }
    page
}

fn section(page: &mut String, convenience: &Convenience) {
    let mut title = convenience.name.to_owned();
    title[..1].make_ascii_uppercase();
    let ours = shown(convenience.ours);
    let _ = write!(page, "\n## {title}\n\n```toml\n{}```\n", ours);
    let caddy = match convenience.caddy {
        Caddy::Site(site) => site.to_owned(),
        Caddy::Global(global, site) => format!("{{\n{}}}\n…\n{site}", indented(global)),
        Caddy::Sites(site, further) => format!("{site}…\n{further}"),
        Caddy::Tls(tls, site) => format!("tls cert.pem key.pem {{\n{}}}\n{site}", indented(tls)),
        Caddy::Missing(why) => {
            let _ = write!(page, "\nCaddy: none; {why}.\n");
            return;
        }
    };
    let _ = write!(page, "\n```caddyfile\n{}```\n", shown(&caddy));
    let differences = convenience.steps.iter().flat_map(|step| &step.expected).filter_map(|expected| expected.at_caddy);
    for (_, why) in differences {
        let _ = write!(page, "\nDifference: {why}.\n");
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\t{line}\n")).collect()
}

fn shown(text: &str) -> String {
    MARKS.iter().zip(SHOWN).fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::page;

    /// With `WRITE_DOCUMENTS=1` in the environment the document is written.
    #[test]
    fn the_document_has_what_is_run() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides/caddy.md");
        if std::env::var_os("WRITE_DOCUMENTS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == page(),
            "hint: WRITE_DOCUMENTS=1 cargo test -p xtask the_document_has_what_is_run"
        );
    }
}
