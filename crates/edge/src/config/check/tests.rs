//! Faults as a user sees them: file, line, setting and advice.

use super::super::{ConfigCause, ConfigError, load, parse};
use crate::certificate::CertificateError;

const GOOD: &str = r#"listen = "[::]:443"
certificate = "cert.pem"
key = "key.pem"

[[route]]
to = "http://127.0.0.1:8080"

[[route]]
host = ["example.org", "*.example.org"]
path = "/files"
files = "/var/www"

[[stream]]
alpn = "redis"
to = "tcp://127.0.0.1:6379"
"#;

fn error(from: &str, to: &str) -> ConfigError {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1), "edge.toml").unwrap_err()
}

#[test]
fn five_lines_are_enough() {
    parse(GOOD, "edge.toml").unwrap();
    let five: String = GOOD.lines().take(6).map(|line| format!("{line}\n")).collect();
    let config = parse(&five, "edge.toml").unwrap();
    assert!(config.http3.enabled && config.routes.len() == 1);
}

#[test]
fn errors_name_file_line_field_and_what_to_do() {
    for (from, to, line, field, hint) in [
        ("listen =", "lissen =", 1, "lissen", "did you mean `listen`?"),
        ("\"[::]:443\"", "\"localhost\"", 1, "listen", "every address"),
        ("\"[::]:443\"", "443", 1, "listen", ""),
        ("key = \"key.pem\"\n", "", 2, "certificate", ""),
        ("to = \"http", "too = \"http", 6, "route.too", "did you mean `to`?"),
        ("http://127", "https//127", 6, "route[1].to", "http://127.0.0.1:8080"),
        ("to = \"http://127.0.0.1:8080\"\n", "", 5, "route[1]", "to = "),
        ("\"/files\"", "\"files\"", 10, "route[2].path", ""),
        ("path = \"/files\"", "timeout = \"5\"", 10, "route.timeout", ""),
        ("*.example.org", "https://example.org", 9, "route[2].host", "no scheme"),
        ("files = \"/var/www\"", "files = \"/x\"\nto = \"http://a:1\"", 11, "route[2].files", ""),
        ("\"redis\"", "\"h3\"", 14, "stream[1].alpn", "[[route]]"),
        ("tcp://", "http://", 15, "stream[1].to", ""),
        ("\n[[route]]", "\n[transport]\ncongestion = \"cubik\"\n[[route]]", 6, "transport.congestion", "`cubic`"),
        (
            "to = \"http://127.0.0.1:8080\"\n",
            "to = \"http://a:1\"\ntls = { name = \"b\" }\n",
            7,
            "route[1].tls",
            "https",
        ),
        ("to = \"http:", "tunnels = \"a b\"\nto = \"http:", 6, "route[1].tunnels", "connect-udp"),
        (
            "\n[[route]]",
            "\n[keys]\nfile = \"ring\"\n[transport]\nearly-data = true\n[[route]]",
            6,
            "keys.file",
            "copies-do-no-harm = true",
        ),
        ("\"/files\"", "\"/a/../..\"", 10, "route[2].path", ""),
        ("\"/files\"", "\"/a%2fb\"", 10, "route[2].path", ""),
        ("\"/files\"", "\"/a;b\"", 10, "route[2].path", ""),
        ("to = \"http://127", "listing = true\nto = \"http://127", 6, "route[1].listing", ""),
        ("to = \"http://127", "symlinks-outside = true\nto = \"http://127", 6, "route[1].symlinks-outside", ""),
        ("\n[[route]]", "\n[acme]\nnames = \"a.example\"\n[[route]]", 6, "acme.names", "terms"),
        ("\n[[route]]", "\n[acme]\nnames = \"*.example\"\nterms-agreed = true\n[[route]]", 6, "acme.names", "each"),
        ("\n[[route]]", "\n[capture]\nenabled = true\n[[route]]", 6, "capture.enabled", "edge.sock"),
        ("\n[[stream]]", "[[policy]]\nname = \"a\"\n[[stream]]", 12, "policy[1]", ""),
        ("\n[[stream]]", "[[policy]]\nname = \"a\"\ncongestion = \"bbr4\"\n[[stream]]", 14, "policy[1].congestion", ""),
        (
            "\n[[stream]]",
            "[[policy]]\nname = \"a\"\nnetwork = \"192.0.2.0/33\"\ncongestion = \"bbr3\"\n[[stream]]",
            14,
            "policy[1].network",
            "",
        ),
        (
            "\n[[stream]]",
            "[[policy]]\nname = \"a\"\nroute = \"*/x\"\ncongestion = \"bbr3\"\n[[stream]]",
            14,
            "policy[1].route",
            "there are */, example.org/files",
        ),
        (
            "\n[[stream]]",
            "[[policy]]\nname = \"a\"\nsni = \"a.example\"\nfec = \"auto\"\n[[stream]]",
            15,
            "policy[1].fec",
            "leave `sni`",
        ),
        ("\n[[stream]]", "[[policy]]\nname = \"a\"\nshare = \"110 %\"\n[[stream]]", 14, "policy.share", ""),
    ] {
        let error = error(from, to);
        assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(field)), "{error}");
        assert!(error.to_string().starts_with(&format!("edge.toml:{line}: {field}: ")), "{error}");
        assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
    }
    let twice = parse(&format!("{GOOD}\n[[route]]\nto = \"http://a:1\"\n"), "x").unwrap_err();
    assert_eq!(twice.field.as_deref(), Some("route[3].path"), "{twice}");
    assert!(parse("listen = ", "x").is_err() && parse("", "x").is_err());
}

fn of_certificate(error: &ConfigError) -> Option<&CertificateError> {
    match &error.cause {
        ConfigCause::Certificate(error) => Some(error),
        _ => None,
    }
}

#[test]
fn causes_can_be_told_apart() {
    fn goes_anywhere<E: std::error::Error + Send + Sync + 'static>() {}
    goes_anywhere::<ConfigError>();
    let value = error("\"[::]:443\"", "\"localhost\"");
    assert!(matches!(value.cause, ConfigCause::Value), "{value:?}");
    let syntax = error("listen =", "lissen =");
    assert!(matches!(syntax.cause, ConfigCause::Syntax), "{syntax:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edge.toml");
    let missing = load(&file).unwrap_err();
    let source = std::error::Error::source(&missing).and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound), "{missing:?}");
    std::fs::write(&file, GOOD).unwrap();
    let unreadable = load(&file).unwrap_err();
    let cause = of_certificate(&unreadable);
    assert!(matches!(cause, Some(CertificateError::Unreadable { key: false, .. })), "{unreadable:?}");
    std::fs::write(folder.path().join("cert.pem"), "").unwrap();
    let empty = load(&file).unwrap_err();
    assert!(matches!(of_certificate(&empty), Some(CertificateError::NoCertificate(_))), "{empty:?}");
}
