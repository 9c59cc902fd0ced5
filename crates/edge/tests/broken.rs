//! Broken configurations: `check` says what is wrong, where, and what to do, and `run` refuses each for the same reason.

mod site;

use std::{net::TcpListener, os::unix::fs::PermissionsExt};

use rcgen::{CertificateParams, KeyPair};
use site::{Directory, write_certificate};
use tiderace_edge::{
    ConfigError, Process,
    config::{Examination, Examined, examine},
};

/// A whole configuration; a case is behind it.
const TOP: &str = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n";
const TO: &str = "[[route]]\nto = \"http://127.0.0.1:9\"\n";
/// The line of the fault.
const HERE: &str = "# here";

/// A configuration, what is said of it, and what is advised.
struct Case {
    text: String,
    message: &'static str,
    hint: &'static str,
}

/// A case behind [`TOP`]; `TO` stands for a route with a back end.
fn case(rest: &str, message: &'static str, hint: &'static str) -> Case {
    Case { text: format!("{TOP}{}", rest.replace("TO\n", TO)), message, hint }
}

/// A case that replaces a line of the whole.
fn replaced(line: &str, by: &str, message: &'static str, hint: &'static str) -> Case {
    let whole = format!("{TOP}{TO}");
    assert!(whole.contains(line), "{line}");
    Case { text: whole.replacen(line, by, 1), message, hint }
}

/// Faults of the form, and of the file as a whole.
fn of_the_form() -> Vec<Case> {
    vec![
        replaced(
            "listen = ",
            "lissen = \"[::]:443\" # here\nlisten = ",
            "unknown field `lissen`",
            "did you mean `listen`?",
        ),
        replaced("workers = 1", "workers = 1000 # here", "u8", "edge reference"),
        replaced("workers = 1", "workers = \"two\" # here", "invalid type", "edge reference"),
        replaced("workers = 1", "workers = = 1 # here", "expected", "edge reference"),
        replaced("workers = 1", "drain = \"30\" # here", "is no time", "edge reference"),
        replaced("workers = 1", "redirect-from = \"[::]\" # here", "an address with a port", "every address"),
        replaced("\"127.0.0.1:0\"", "\"example.org:443\" # here", "an address with a port", "every address"),
        replaced("\"127.0.0.1:0\"", "[\"127.0.0.1:4433\", \"127.0.0.1:4433\"] # here", "is there twice", "once"),
        replaced("\"127.0.0.1:0\"", "[] # here", "expected an address", "edge reference"),
        replaced(
            "workers = 1",
            "redirect-from = \"127.0.0.1:4433\"\nlisten = \"127.0.0.1:4433\" # here",
            "duplicate key",
            "edge reference",
        ),
        case("[log]\naccess = \"off\"\nformat = \"xml\" # here\nTO\n", "unknown variant", "edge reference"),
        case("[limits]\nconnections = 0\n", "serves nobody", "edge reference").at("[limits]"),
        case("[limits]\nconnection-memory = \"64 KiB\" # here\nTO\n", "at least 1 MiB", "edge reference"),
        case("[limits]\nfields = \"64\" # here\nTO\n", "is no size", "edge reference"),
        case("[transport]\ncongestion = \"cubik\" # here\nTO\n", "no congestion control", "did you mean `cubic`?"),
        case("[metrics]\nlisten = \"localhost\" # here\nTO\n", "an address with a port", "edge reference"),
        case("[capture]\nenabled = true # here\nTO\n", "nobody could ask", "[admin]"),
        case("[trusted-proxies]\nnetworks = \"10.0.0.0/40\" # here\nTO\n", "expected a network", "edge reference"),
        case("[trusted-proxies]\nnetworks = \"::/0\" # here\nTO\n", "every client", "your proxies"),
        case("[trusted-proxies]\nfield = \"x-real-ip\" # here\nTO\n", "unknown variant", "edge reference"),
        case("[rate-limit]\nrequests-per-second = 0 # here\nTO\n", "requests per second", "no limit"),
        case("[rate-limit]\nburst = 0 # here\nTO\n", "serves nobody", "edge reference"),
        case("[client-certificates] # here\nTO\n", "expected `roots`", "ca.pem"),
        case("[keys]\nstrikes = \"http://x\" # here\nTO\n", "URL of a Redis", "redis://"),
        case("[acme]\nnames = \"a.example\" # here\nTO\n", "terms-agreed", "agree"),
        case("[[policy]]\nname = \"a b\" # here\nTO\n", "expected a `name`", "edge reference").at("[[policy]]"),
    ]
}

/// Faults of routes.
fn of_routes() -> Vec<Case> {
    let route = |rest: &str, message, hint| case(&format!("[[route]]\n{rest}"), message, hint);
    let to = |rest: &str, message, hint| case(&format!("TO\n{rest}"), message, hint);
    vec![
        route("path = \"/x\"\n", "expected `to`, `files`", "to = ").at("[[route]]"),
        route("too = \"http://127.0.0.1:9\" # here\n", "unknown field", "did you mean `to`?"),
        route("to = \"127.0.0.1:9\" # here\n", "expected `http://host:port`", "h2c://"),
        route("to = \"http://127.0.0.1:9/path\" # here\n", "has no path", "h2c://"),
        route("to = \"h3://127.0.0.1:9/path\" # here\n", "has no path", "h3://"),
        route("to = \"ftp://127.0.0.1:9\" # here\n", "expected `http://host:port`", "h2c://"),
        to("path = \"x\" # here\n", "begins with `/`", "edge reference"),
        to("path = \"/a%2fb\" # here\n", "%2F", "edge reference"),
        to("host = \"https://a.example\" # here\n", "expected a name", "no scheme"),
        to("files = \"www\" # here\n", "found both", "edge reference"),
        to("TO\n", "the same host and path", "edge reference").at_last("[[route]]"),
        to("requests = 0 # here\n", "serves nobody", "edge reference"),
        to("timeout = \"soon\" # here\n", "is no time", "edge reference"),
        to("balance = \"random\" # here\n", "unknown variant", "edge reference"),
        to("refresh = \"30 s\" # here\n", "no name", "edge reference"),
        route("to = \"http://localhost:9\"\nrefresh = \"1 ms\" # here\n", "at least 1 s", "30 s"),
        route("files = \"www\"\nsticky = {} # here\n", "expected `to`", "edge reference"),
        to("sticky = { cookie = \"a b\" } # here\n", "no name of a cookie", "edge reference"),
        to("tls = { name = \"a\" } # here\n", "over TLS", "https://"),
        to("rate-limit = { requests-per-second = -1 } # here\n", "requests per second", "no limit"),
        to("basic-auth = {} # here\n", "expected `users`", "htpasswd"),
        to("basic-auth = { users = \"users\", realm = \"a\\\"b\" } # here\n", "without quotes", "edge reference"),
        to("client-certificate = true # here\n", "no client is asked", "[client-certificates]"),
        to("cors = {} # here\n", "expected `origins`", "https://app.example"),
        to("cors = { origins = \"*\", credentials = true } # here\n", "not possible with `credentials`", "name each"),
        to(
            "cors = { origins = \"https://a.example\", headers = \"*\", credentials = true } # here\n",
            "not possible with `credentials`",
            "name each",
        ),
        to("cors = { origins = \"https://a.example/\" } # here\n", "expected an origin", "without a path"),
        to("cors = { origins = \"https://a.example:443\" } # here\n", "port of its scheme", "leave the port out"),
        to("cors = { origins = \"a.example\" } # here\n", "expected an origin", "scheme"),
        to("compression = { codings = \"gzipp\" } # here\n", "no coding", "did you mean `gzip`?"),
        to("error-pages = { 200 = \"x\" } # here\n", "a status of 400 to 599", "404"),
        to("request-headers = { set = { x-forwarded-for = \"a\" } } # here\n", "is the gateway's", "edge reference"),
        to(
            "request-headers = { set = { x-client-cert-subject = \"a\" } } # here\n",
            "is the gateway's",
            "edge reference",
        ),
        route("redirect = \"//evil.example\" # here\n", "expected a URL or a path", "https://www.example.org"),
        case("[[stream]]\nalpn = \"h3\" # here\nto = \"tcp://127.0.0.1:9\"\n", "is HTTP", "[[route]]"),
        case("[[stream]]\nalpn = \"x\"\nto = \"127.0.0.1:9\" # here\n", "expected `tcp://host:port`", "edge reference"),
    ]
}

/// Faults that only show on a machine. `PORT` is served by another program.
fn of_the_machine() -> Vec<Case> {
    let to = |rest: &str, message, hint| case(&format!("TO\n{rest}"), message, hint);
    vec![
        replaced("\"cert.pem\"", "\"gone.pem\" # here", "cannot read", "relative to"),
        replaced("\"key.pem\"", "\"other-key.pem\" # here", "does not belong", "edge reference"),
        replaced("\"key.pem\"", "\"cert.pem\" # here", "a private key", "PRIVATE KEY"),
        replaced("\"cert.pem\"", "\"key.pem\" # here", "expected certificates", "BEGIN CERTIFICATE"),
        replaced("\"127.0.0.1:0\"", "\"127.0.0.1:PORT\" # here", "cannot listen", "another program"),
        replaced("\"127.0.0.1:0\"", "\"192.0.2.77:4433\" # here", "cannot listen", "ip address"),
        replaced("workers = 1", "redirect-from = \"127.0.0.1:PORT\" # here", "cannot listen", "another program"),
        case("[metrics]\nlisten = \"127.0.0.1:PORT\" # here\nTO\n", "cannot listen", "another program"),
        case("[log]\naccess = \"gone/access.log\" # here\nTO\n", "cannot open the access log", "make the directory"),
        case("[log]\naccess = \"www\" # here\nTO\n", "cannot open the access log", "make the directory"),
        case("[admin]\nsocket = \"gone/edge.sock\" # here\nTO\n", "cannot open the admin socket", "RuntimeDirectory"),
        case("[keys]\nfile = \"gone\" # here\nTO\n", "cannot read", "edge keys"),
        case("[client-certificates]\nroots = \"gone\" # here\nTO\n", "cannot read", "edge reference"),
        case("[client-certificates]\nroots = \"key.pem\" # here\nTO\n", "expected certificates", "edge reference"),
        case("[[route]]\nfiles = \"gone\" # here\n", "expected a directory", "edge reference"),
        case(
            "[[route]]\nto = \"https://127.0.0.1:9\"\ntls = { roots = \"gone\" } # here\n",
            "cannot read",
            "edge reference",
        ),
        to("error-pages = { 404 = \"gone\" } # here\n", "found no file", "edge reference"),
        to("basic-auth = { users = \"gone\" } # here\n", "cannot read", "htpasswd"),
        to("basic-auth = { users = \"open-users\" } # here\n", "everybody", "chmod 600"),
        to("basic-auth = { users = \"plain-users\" } # here\n", "expected a hash", "htpasswd"),
        replaced(
            "to = \"http://127.0.0.1:9\"",
            "to = \"https://127.0.0.1:4433\" # here\nhost = \"a.example\"",
            "is the gateway itself",
            "go round",
        )
        .with("127.0.0.1:0", "[::]:4433"),
        replaced(
            "to = \"http://127.0.0.1:9\"",
            "to = \"h3://127.0.0.1\" # here\nhost = \"a.example\"",
            "is the gateway itself",
            "go round",
        )
        .with("127.0.0.1:0", "[::]:443"),
        case("[[route]]\npath = \"/udp\"\nproxy = { tokens = \"gone\" } # here\n", "cannot read", "NAME TOKEN"),
    ]
}

impl Case {
    /// The fault is at the first of these lines, which is not marked.
    fn at(mut self, line: &str) -> Self {
        self.text = self.text.replacen(&format!("{line}\n"), &format!("{line} {HERE}\n"), 1);
        self
    }

    /// The fault is at the last of these lines.
    fn at_last(mut self, line: &str) -> Self {
        let start = self.text.rfind(line).unwrap();
        self.text.insert_str(start + line.len(), &format!(" {HERE}"));
        self
    }

    fn with(mut self, from: &str, to: &str) -> Self {
        assert!(self.text.contains(from));
        self.text = self.text.replacen(from, to, 1);
        self
    }

    fn line(&self) -> u32 {
        let line = self.text.lines().position(|line| line.ends_with(HERE));
        line.unwrap_or_else(|| panic!("no place is marked:\n{}", self.text)) as u32 + 1
    }
}

/// Directory with the files that the cases name, except the missing ones.
fn directory(name: &str) -> Directory {
    let directory = Directory::new(name);
    write_certificate(&directory, "localhost");
    directory.write("other-key.pem", KeyPair::generate().unwrap().serialize_pem());
    directory.write("www/index.html", "ok");
    let mode = |name: &str, mode| {
        std::fs::set_permissions(directory.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    directory.write("users", format!("alice:{}\n", bcrypt::hash("x", 4).unwrap()));
    mode("users", 0o600);
    directory.write("open-users", format!("alice:{}\n", bcrypt::hash("x", 4).unwrap()));
    mode("open-users", 0o644);
    directory.write("plain-users", "alice:secret\n");
    mode("plain-users", 0o600);
    directory
}

async fn check(directory: &Directory, text: &str) -> Result<Examined, ConfigError> {
    let file = directory.write("edge.toml", text);
    examine(&file, Examination { names: None, ..Examination::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_has_a_place_and_advice_and_keeps_the_gateway_from_starting() {
    let directory = directory("broken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let cases: Vec<Case> = of_the_form().into_iter().chain(of_routes()).chain(of_the_machine()).collect();
    println!("{} configurations", cases.len());
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let text = case.text.replace("PORT", &port);
        let line = case.line();
        let error = match check(&directory, &text).await {
            Ok(_) => {
                wrong.push(format!("nothing is wrong with\n{text}"));
                continue;
            }
            Err(error) => error,
        };
        let (said, hint) = (error.to_string(), error.hint.clone().unwrap_or_default());
        let place = format!("{}:{line}: ", directory.0.join("edge.toml").display());
        if !said.starts_with(&place) || !said.contains(case.message) || !hint.contains(case.hint) || hint.is_empty() {
            wrong.push(format!(
                "{said}\nhint: {hint}\nexpected line {line}, `{}`, `{}` of\n{text}",
                case.message, case.hint
            ));
        }
        match Process::start(&directory.0.join("edge.toml")) {
            Ok(_) => wrong.push(format!("the gateway starts with\n{text}")),
            Err(error) => {
                let started = (error.to_string(), error.hint().unwrap_or_default());
                if started != (said.clone(), hint.clone()) {
                    wrong.push(format!("check: {said}\nhint: {hint}\nrun:   {}\nhint: {}", started.0, started.1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_right_is_taken_by_both() {
    let directory = directory("right");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = udp.local_addr().unwrap().port();
    drop(udp);
    let text = format!(
        "{TOP}redirect-from = \"127.0.0.1:0\"\n[log]\naccess = \"access.log\"\n[admin]\nsocket = \"edge.sock\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n{TO}basic-auth = {{ users = \"users\" }}\n[[route]]\npath = \"/x\"\nfiles = \"www\"\n"
    )
    .replace("listen = \"127.0.0.1:0\"\ncert", &format!("listen = \"127.0.0.1:{port}\"\ncert"));
    assert!(check(&directory, &text).await.unwrap().warnings.is_empty());
    assert!(!directory.0.join("access.log").exists(), "a check leaves nothing");
    let process = Process::start(&directory.0.join("edge.toml")).unwrap();
    // The gateway that runs is no other program: its next configuration is checked beside it.
    let again = text.replace("[log]", "drain = \"1 s\"\n[log]");
    assert!(check(&directory, &again).await.unwrap().warnings.is_empty());
    let file = directory.0.join("edge.toml");
    let without_socket = again.replace("[admin]\nsocket = \"edge.sock\"\n", "");
    let error = check(&directory, &without_socket).await.unwrap_err();
    assert!(error.to_string().contains("cannot listen"), "{error}");
    let skipped = Examination { addresses: false, names: None };
    examine(&file, skipped).await.unwrap();
    drop(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_clients_refuse_are_warnings() {
    let directory = directory("warned");
    let write = |name: &str, names: &[&str], from: i32, to: i32| {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().unwrap();
        directory.write(&format!("{name}.pem"), params.self_signed(&key).unwrap().pem());
        directory.write(&format!("{name}-key.pem"), key.serialize_pem());
    };
    write("old", &["old.example"], 2019, 2020);
    write("next", &["next.example"], 2200, 2300);
    write("wild", &["*.wild.example"], 2019, 2300);
    let text = format!(
        "{TOP}[[certificate-for]]\nname = \"old.example\"\ncertificate = \"old.pem\" # 1\nkey = \"old-key.pem\"\n\
         [[certificate-for]]\nname = \"next.example\"\ncertificate = \"next.pem\" # 2\nkey = \"next-key.pem\"\n\
         [[certificate-for]]\nname = [\"*.wild.example\", \"wild.example\"]\ncertificate = \"wild.pem\" # 3\nkey = \"wild-key.pem\"\n\
         [[route]]\nhost = [\"localhost\", \"a.wild.example\", \"other.example\"]\nfiles = \"www\"\n"
    );
    let warnings = check(&directory, &text).await.unwrap().warnings;
    let said: Vec<String> = warnings.iter().map(|warning| warning.to_string()).collect();
    let line = |mark: &str| text.lines().position(|line| line.ends_with(mark)).unwrap() + 1;
    let expected = [
        (line("# 1"), "expired"),
        (line("# 2"), "not valid yet"),
        (line("# 3"), "not for `wild.example`"),
        (2, "not for `other.example`"),
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for ((line, part), said) in expected.iter().zip(&said) {
        assert!(said.contains(&format!("edge.toml:{line}: ")) && said.contains(part), "{said}");
    }
    assert!(warnings.iter().all(|warning| warning.hint.is_some()));
    // A site with a certificate that some refuse is better than none.
    Process::start(&directory.0.join("edge.toml")).unwrap();
}
