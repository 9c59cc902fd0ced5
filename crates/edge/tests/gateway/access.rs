//! Access to a site: proxies that name the client, rates, passwords, and other origins.

use http::{Method, Request, Response};
use serde_json::Value;

use crate::site::{
    BackEnd, Body, Site,
    client::{Client, VERSIONS},
    full, mirror, read, text, until,
};

pub(crate) fn field<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// A request with these fields.
pub(crate) fn with(mut request: Request<Body>, fields: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

/// The lines of the access log, once there are so many.
pub(crate) async fn lines(site: &Site, count: usize) -> Vec<Value> {
    let log = site.directory.0.join("access.log");
    until(|| read(&log).lines().count() >= count, true).await;
    read(&log).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn said(client: &mut Client, fields: &[(&'static str, &str)]) -> Value {
    let request = with(client.request(Method::GET, "/", full("")), fields);
    serde_json::from_str(&text(client.send(request).await.unwrap()).await).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_proxy_names_the_client_in_all_versions() {
    let back_end = BackEnd::start(mirror).await;
    let site = Site::start(
        "trusted",
        &format!("trusted-proxies = {{ networks = \"127.0.0.0/8\" }}\n[[route]]\nto = \"{}\"\n", back_end.url()),
    );
    let claim = "198.51.100.1, 203.0.113.9:700, 127.0.0.2";
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let fields = said(&mut client, &[("x-forwarded-for", claim), ("forwarded", "for=192.0.2.66")]).await;
        assert_eq!(fields["fields"]["x-forwarded-for"], "203.0.113.9", "{version}");
        assert_eq!(fields["fields"]["forwarded"], Value::Null, "{version}");
        // Without a word of the proxy, it is the client.
        assert_eq!(said(&mut client, &[]).await["fields"]["x-forwarded-for"], "127.0.0.1", "{version}");
    }
    let lines = lines(&site, 6).await;
    for line in lines.iter().filter(|line| line["proxy"] != Value::Null) {
        assert_eq!(line["client"], "203.0.113.9:700", "{line}");
        assert!(line["proxy"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert_eq!(lines.iter().filter(|line| line["proxy"] != Value::Null).count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_name_nobody_and_a_reload_decides_who_is_believed() {
    let back_end = BackEnd::start(mirror).await;
    let route = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let other = "trusted-proxies = { networks = [\"10.0.0.0/8\", \"::1\"], field = \"forwarded\" }\n";
    let site = Site::start("untrusted", &format!("{other}{route}"));
    let claims = [("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=203.0.113.10")];
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        assert_eq!(said(&mut client, &claims).await["fields"]["x-forwarded-for"], "127.0.0.1", "{version}");
    }
    site.configure(&format!("trusted-proxies = {{ networks = \"127.0.0.1\", field = \"forwarded\" }}\n{route}"));
    site.process.reload().await.unwrap();
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        assert_eq!(said(&mut client, &claims).await["fields"]["x-forwarded-for"], "203.0.113.10", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_proxy_are_those_of_many_clients() {
    let back_end = BackEnd::start(mirror).await;
    let limit = "[limits]\nconnections-per-address = 2\n";
    let route = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let site = Site::start("proxied", &format!("trusted-proxies = {{ networks = \"127.0.0.1\" }}\n{limit}{route}"));
    let mut clients = Vec::new();
    for version in ["h2", "h3", "http/1.1", "h2", "h3"] {
        let mut client = Client::new(&site, version).await;
        assert_eq!(said(&mut client, &[]).await["method"], "GET", "{version}");
        clients.push(client);
    }
    assert_eq!(site.figure("tiderace_edge_connections_refused_total{reason=\"address\"}"), 0.0);
}

async fn status(client: &mut Client, path: &str, fields: &[(&'static str, &str)]) -> (u16, Option<u64>) {
    let response = client.send(with(client.request(Method::GET, path, full("")), fields)).await.unwrap();
    let wait = field(&response, "retry-after").map(|wait| wait.parse().unwrap());
    let status = response.status().as_u16();
    text(response).await;
    (status, wait)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_too_often_is_told_when_to_come_again() {
    let (back_end, count) = BackEnd::counting().await;
    // So slow that nothing comes back during the test.
    let site = Site::start(
        "rates",
        &format!(
            "trusted-proxies = {{ networks = \"127.0.0.1\" }}\n[[route]]\nto = \"{0}\"\nhsts = \"1 h\"\n\
             rate-limit = {{ requests-per-second = 0.001, burst = 6 }}\n[[route]]\npath = \"/free\"\nto = \"{0}\"\n",
            back_end.url()
        ),
    );
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        for _ in 0..2 {
            assert_eq!(status(&mut client, "/", &[]).await, (200, None), "{version}");
        }
    }
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let (refused, wait) = status(&mut client, "/", &[]).await;
        assert_eq!(refused, 429, "{version}");
        assert!((900..=1_000).contains(&wait.unwrap()), "{version}: {wait:?}");
        assert_eq!(status(&mut client, "/free", &[]).await, (200, None), "{version}");
        // Another client of the proxy has its own.
        assert_eq!(status(&mut client, "/", &[("x-forwarded-for", "203.0.113.7")]).await, (200, None), "{version}");
        let response = client.send(client.request(Method::GET, "/", full(""))).await.unwrap();
        assert_eq!(field(&response, "strict-transport-security").as_deref(), Some("max-age=3600"), "{version}");
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 12, "refused requests reach no back end");
    assert_eq!(site.figure("tiderace_edge_rate_limited_requests_total{limit=\"*/\"}"), 6.0);
    assert_eq!(site.figure("tiderace_edge_rate_limit_clients{limit=\"*/\"}"), 2.0);
    let lines = lines(&site, 18).await;
    let refused: Vec<_> = lines.iter().filter(|line| line["status"] == 429).collect();
    assert_eq!(refused.len(), 6);
    assert!(refused.iter().all(|line| line["reason"] == "rate" && line["ended_by"] == "limit"), "{refused:?}");
    // What is known of clients outlives a reload that leaves the limit as it is.
    site.process.reload().await.unwrap();
    let mut client = Client::new(&site, "h2").await;
    assert_eq!(status(&mut client, "/", &[]).await.0, 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_for_all_routes_counts_what_has_no_route() {
    let back_end = BackEnd::start(mirror).await;
    let site = Site::start(
        "rates-of-all",
        &format!(
            "rate-limit = {{ requests-per-second = 0.01, burst = 3 }}\n[[route]]\npath = \"/a\"\nto = \"{}\"\n",
            back_end.url()
        ),
    );
    let mut client = Client::new(&site, "h2").await;
    for (path, expected) in [("/nowhere", 404), ("/a", 200), ("/nowhere", 404), ("/a", 429), ("/nowhere", 429)] {
        assert_eq!(status(&mut client, path, &[]).await.0, expected, "{path}");
    }
    assert_eq!(site.figure("tiderace_edge_rate_limited_requests_total{limit=\"all\"}"), 2.0);
    let held = site.figure("tiderace_edge_memory_bytes{reason=\"held\"}");
    assert!(held > 0.0, "the table is charged: {held}");
}

/// Writes users with cheap hashes.
fn write_users(site: &std::path::Path, users: &[(&str, &str)]) {
    let line = |(name, password): &(&str, &str)| format!("{name}:{}\n", bcrypt::hash(password, 4).unwrap());
    let path = site.join("users");
    std::fs::write(&path, users.iter().map(line).collect::<String>()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

fn basic(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    format!("Basic {}", STANDARD.encode(text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_users_with_a_password_are_served() {
    let back_end = BackEnd::start(mirror).await;
    let routes = format!(
        "[[route]]\nto = \"{0}\"\nbasic-auth = {{ users = \"users\", realm = \"staff\" }}\n\
         [[route]]\npath = \"/free\"\nto = \"{0}\"\n",
        back_end.url()
    );
    let site = Site::start_with("passwords", &routes, |directory| {
        write_users(&directory.0, &[("alice", "secret"), ("bob", "other")]);
    });
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let response = client.send(client.request(Method::GET, "/", full(""))).await.unwrap();
        let asked = field(&response, "www-authenticate");
        assert_eq!(
            (response.status().as_u16(), asked.as_deref()),
            (401, Some("Basic realm=\"staff\", charset=\"UTF-8\""))
        );
        text(response).await;
        let fields =
            said(&mut client, &[("authorization", &basic("alice:secret")), ("x-forwarded-user", "root")]).await;
        assert_eq!(fields["fields"]["x-forwarded-user"], "alice", "{version}");
        assert_eq!(fields["fields"]["authorization"], Value::Null, "{version}");
        assert_eq!(status(&mut client, "/", &[("authorization", &basic("bob:secret"))]).await.0, 401, "{version}");
        assert_eq!(status(&mut client, "/free", &[]).await.0, 200, "{version}");
    }
    let figure =
        |result: &str| site.figure(&format!("tiderace_edge_authentications_total{{route=\"*/\",result=\"{result}\"}}"));
    let counts = ["verified", "remembered", "missing", "wrong", "limited"].map(figure);
    assert_eq!(counts, [1.0, 2.0, 3.0, 3.0, 0.0]);
    let lines = lines(&site, 12).await;
    let users: Vec<_> = lines.iter().filter_map(|line| line["user"].as_str()).collect();
    assert_eq!(users, ["alice"; 3]);
    // A changed file is read again: the password that was right is not.
    write_users(&site.directory.0, &[("alice", "changed")]);
    site.process.reload().await.unwrap();
    let mut client = Client::new(&site, "h2").await;
    assert_eq!(status(&mut client, "/", &[("authorization", &basic("alice:secret"))]).await.0, 401);
    assert_eq!(status(&mut client, "/", &[("authorization", &basic("alice:changed"))]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_guesses_is_stopped_and_others_are_served() {
    let (back_end, count) = BackEnd::counting().await;
    let routes = format!(
        "trusted-proxies = {{ networks = \"127.0.0.1\" }}\n[[route]]\nto = \"{}\"\n\
         basic-auth = {{ users = \"users\", attempts = {{ requests-per-second = 0.001, burst = 5 }} }}\n",
        back_end.url()
    );
    let site = Site::start_with("guesses", &routes, |directory| write_users(&directory.0, &[("alice", "secret")]));
    let mut client = Client::new(&site, "h2").await;
    let mut statuses = Vec::new();
    for number in 0..50 {
        let guess = basic(&format!("alice:{number}"));
        statuses
            .push(status(&mut client, "/", &[("authorization", &guess), ("x-forwarded-for", "203.0.113.1")]).await.0);
    }
    assert_eq!((statuses[..5].to_vec(), statuses[5..].to_vec()), (vec![401; 5], vec![429; 45]));
    let right = basic("alice:secret");
    let asked = |client: &'static str| [("authorization", right.as_str()), ("x-forwarded-for", client)];
    let (refused, wait) = status(&mut client, "/", &asked("203.0.113.1")).await;
    assert!(refused == 429 && wait.is_some(), "it learns nothing from the right one: {refused}");
    assert_eq!(status(&mut client, "/", &asked("203.0.113.2")).await.0, 200);
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_named_origins_may_read() {
    let back_end = BackEnd::start(|request| async {
        let mut response = mirror(request).await;
        response.headers_mut().insert("access-control-allow-origin", "*".parse().unwrap());
        response
    })
    .await;
    let routes = format!(
        "[[route]]\nto = \"{}\"\nbasic-auth = {{ users = \"users\" }}\n\
         cors = {{ origins = \"https://app.example\", methods = [\"GET\", \"PUT\"], headers = \"content-type\", credentials = true }}\n",
        back_end.url()
    );
    let site = Site::start_with("cors", &routes, |directory| write_users(&directory.0, &[("alice", "secret")]));
    let right = basic("alice:secret");
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let preflight = with(
            client.request(Method::OPTIONS, "/x", full("")),
            &[("origin", "https://app.example"), ("access-control-request-method", "PUT")],
        );
        let response = client.send(preflight).await.unwrap();
        let fields = ["origin", "methods", "headers", "credentials"]
            .map(|name| field(&response, &format!("access-control-allow-{name}")).unwrap_or_default());
        assert_eq!(fields, ["https://app.example", "GET, PUT", "content-type", "true"], "{version}");
        assert_eq!(
            (response.status().as_u16(), field(&response, "vary").as_deref()),
            (204, Some("origin")),
            "{version}"
        );
        text(response).await;
        // The error of a password can be read by the script, too.
        for (origin, password, status, allowed) in [
            ("https://app.example", true, 200, Some("https://app.example")),
            ("https://app.example", false, 401, Some("https://app.example")),
            ("https://evil.example", true, 200, None),
        ] {
            let fields = [("origin", origin), ("authorization", if password { right.as_str() } else { "none" })];
            let response = client.send(with(client.request(Method::GET, "/", full("")), &fields)).await.unwrap();
            let given = field(&response, "access-control-allow-origin");
            assert_eq!((response.status().as_u16(), given.as_deref()), (status, allowed), "{version} {origin}");
            text(response).await;
        }
        // An OPTIONS that is no preflight is the back end's.
        let other = with(client.request(Method::OPTIONS, "/", full("")), &[("authorization", right.as_str())]);
        let response = client.send(other).await.unwrap();
        let answer: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(answer["method"], "OPTIONS", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_days_of_a_certificate_are_a_metric() {
    let back_end = BackEnd::start(mirror).await;
    let site = Site::start("days", &format!("[[route]]\nto = \"{}\"\n", back_end.url()));
    let file = site.directory.0.join("cert.pem");
    let days = || site.figure(&format!("tiderace_edge_certificate_days{{certificate=\"{}\"}}", file.display()));
    assert!(days() > 10_000.0, "{}", days());
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    params.not_before = rcgen::date_time_ymd(2019, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    site.directory.write("key.pem", key.serialize_pem());
    site.directory.write("cert.pem", params.self_signed(&key).unwrap().pem());
    site.process.reload().await.unwrap();
    assert!((-10_000.0..-1_000.0).contains(&days()), "{}", days());
    assert!(site.process.status()["certificates"][0]["days"].as_f64().unwrap() < 0.0);
}
