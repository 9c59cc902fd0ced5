//! Reference page of the configuration, made from the declarations.

use std::fmt::Write;

use serde::Serialize;

use super::{
    Acme, Admin, BackEndTls, BasicAuth, Capture, Certificate, ClientCertificates, Compression, Config, Cors, Files,
    HeaderRules, Health, Http3, IpProxy, Keys, Limits, LoadBalancer, Log, Metrics, OtherMachine, Policy, Proxy,
    RateLimit, ReadConnectionIds, Route, Signer, Sticky, Stream, Transport, TrustedProxies, Upgrade, WebTransport,
    section::{Section, file_name},
};

/// The page, as Markdown.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration of the edge\n\n\
         Made from the code by `tiderace edge reference`; a test keeps this file and the code equal. The file is TOML. Paths in it are\n\
         relative to its directory. `tiderace edge check --config FILE` says what is wrong with it.\n",
    );
    section::<Config>(&mut page, "The file");
    section::<Upgrade>(&mut page, "[upgrade]");
    section::<Certificate>(&mut page, "[[certificate-for]]");
    section::<Acme>(&mut page, "[acme]");
    section::<Signer>(&mut page, "[signer]");
    section::<ClientCertificates>(&mut page, "[client-certificates]");
    section::<Http3>(&mut page, "[http3]");
    section::<Transport>(&mut page, "[transport]");
    section::<Policy>(&mut page, "[[policy]]");
    section::<Files>(&mut page, "[files]");
    section::<TrustedProxies>(&mut page, "[trusted-proxies]");
    section::<LoadBalancer>(&mut page, "[load-balancer]");
    section::<OtherMachine>(&mut page, "[[load-balancer.machine]]");
    section::<ReadConnectionIds>(&mut page, "[[load-balancer.connection-ids]]");
    section::<RateLimit>(&mut page, "[rate-limit], [route.rate-limit]");
    section::<Limits>(&mut page, "[limits]");
    section::<Keys>(&mut page, "[keys]");
    section::<Log>(&mut page, "[log]");
    section::<Admin>(&mut page, "[admin]");
    section::<Capture>(&mut page, "[capture]");
    section::<Metrics>(&mut page, "[metrics]");
    section::<Route>(&mut page, "[[route]]");
    section::<Proxy>(&mut page, "[route.proxy]");
    section::<IpProxy>(&mut page, "[route.ip-proxy]");
    section::<WebTransport>(&mut page, "[route.webtransport]");
    section::<Sticky>(&mut page, "[route.sticky]");
    section::<BackEndTls>(&mut page, "[route.tls]");
    section::<Health>(&mut page, "[route.health]");
    section::<Compression>(&mut page, "[route.compression]");
    section::<BasicAuth>(&mut page, "[route.basic-auth]");
    section::<Cors>(&mut page, "[route.cors]");
    section::<HeaderRules>(&mut page, "[route.request-headers], [route.response-headers]");
    section::<Stream>(&mut page, "[[stream]]");
    page
}

pub(crate) fn section<S: Section + Default + Serialize>(page: &mut String, title: &str) {
    let defaults = toml::Value::try_from(S::default()).expect("defaults can be written");
    let about: Vec<&str> = S::ABOUT.iter().map(|line| line.trim()).collect();
    let _ = write!(page, "\n## {title}\n\n{}\n\n| name | default | meaning |\n|---|---|---|\n", about.join(" "));
    for field in S::FIELDS {
        let doc: Vec<&str> = field.doc.iter().map(|line| line.trim()).collect();
        let name = file_name(field.name);
        let default = match defaults.get(&name) {
            Some(toml::Value::Table(table)) if table.is_empty() => "none".to_owned(),
            Some(toml::Value::Table(_)) => "see below".to_owned(),
            None => "none".to_owned(),
            Some(toml::Value::Array(list)) if list.is_empty() => "none".to_owned(),
            Some(toml::Value::String(text)) if text.is_empty() => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let _ = writeln!(page, "| `{name}` | {default} | {} |", doc.join(" ").replace('|', "\\|"));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_what_the_code_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/edge-config.md");
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == super::markdown(),
            "docs/edge-config.md is out of date\nhint: cargo run -- edge reference > docs/edge-config.md"
        );
    }
}
