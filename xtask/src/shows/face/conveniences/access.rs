//! Conveniences of access and of back ends: passwords, certificates, proxies, rates, origins, names, balance.

use super::{
    ask::Part::{BackEnds, Content, Header, Received, Status, Statuses},
    case::{ALL, Caddy, Convenience, Step, TCP},
};

/// All of them.
pub(super) fn all() -> Vec<Convenience> {
    vec![
        Convenience {
            name: "HTTP/3 is offered",
            ours: "[[route]]\nfiles = \"www\"\n",
            caddy: Caddy::Site("root * @DIR/www\nfile_server\n"),
            versions: TCP,
            steps: vec![Step::new("GET /index.html").gives(Header("alt-svc"), "h3=\":PORT\"; ma=86400").but_caddy(
                "h3=\":PORT\"; ma=2592000",
                "clients of Caddy remember for 30 days, ours for one: `http3.alt-svc-max-age`",
            )],
        },
        Convenience {
            name: "names have sites of their own",
            ours: "[[route]]\nhost = \"a.test\"\nfiles = \"www/folder\"\nindex = \"start.html\"\n[[route]]\nhost = \"*.b.test\"\nfiles = \"www\"\n",
            caddy: Caddy::Sites(
                "respond 404\n",
                "https://a.test:@PORT {\n\tbind 127.0.0.1\n\ttls @DIR/cert.pem @DIR/key.pem\n\troot * @DIR/www/folder\n\tfile_server {\n\t\tindex \
                 start.html\n\t}\n}\nhttps://*.b.test:@PORT {\n\tbind 127.0.0.1\n\ttls @DIR/cert.pem @DIR/key.pem\n\troot * @DIR/www\n\tfile_server\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /").at("a.test").gives(Status, "200").gives(Content, "start\n"),
                Step::new("GET /").at("x.b.test").gives(Status, "200").gives(Content, "index\n"),
                Step::new("GET /").gives(Status, "404"),
            ],
        },
        Convenience {
            name: "users have passwords",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\nbasic-auth = { users = \"users\", realm = \"staff\" }\n",
            caddy: Caddy::Site(
                "basic_auth bcrypt staff {\n\talice @HASH\n}\nreverse_proxy 127.0.0.1:@BACK1 {\n\theader_up x-forwarded-user {http.auth.user.id}\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /")
                    .gives(Status, "401")
                    .gives(Header("www-authenticate"), "Basic realm=\"staff\", charset=\"UTF-8\"")
                    .but_caddy("Basic realm=\"staff\"", "ours says that passwords are UTF-8 (RFC 7617)"),
                Step::new("GET /").with("authorization: Basic YWxpY2U6d3Jvbmc=").gives(Status, "401"),
                Step::new("GET /")
                    .with("authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==")
                    .gives(Status, "200")
                    .gives(Received("x-forwarded-user"), "alice")
                    .gives(Received("authorization"), "none")
                    .but_caddy("Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==", "Caddy passes the password on to the back end"),
            ],
        },
        Convenience {
            name: "clients have certificates",
            ours: "client-certificates = { roots = \"ca.pem\" }\n[[route]]\nto = \"http://127.0.0.1:@BACK1\"\n",
            caddy: Caddy::Tls(
                "client_auth {\n\tmode require_and_verify\n\ttrust_pool file @DIR/ca.pem\n}\n",
                "reverse_proxy 127.0.0.1:@BACK1 {\n\theader_up x-client-cert-subject {tls_client_subject}\n}\n",
            ),
            versions: TCP,
            steps: vec![
                Step::new("GET /").gives(Status, "refused"),
                Step::new("GET /")
                    .certified()
                    .gives(Status, "200")
                    .gives(Received("x-client-cert-subject"), "CN=alice"),
                Step::new("GET /")
                    .certified()
                    .with("x-client-cert-subject: CN=mallory")
                    .gives(Received("x-client-cert-subject"), "CN=alice"),
            ],
        },
        Convenience {
            name: "a proxy in front names the client",
            ours: "trusted-proxies = { networks = \"127.0.0.0/8\" }\n[[route]]\nto = \"http://127.0.0.1:@BACK1\"\n",
            caddy: Caddy::Global(
                "servers {\n\ttrusted_proxies static 127.0.0.0/8\n\ttrusted_proxies_strict\n}\n",
                "reverse_proxy 127.0.0.1:@BACK1 {\n\theader_up x-forwarded-for {client_ip}\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /")
                    .with("x-forwarded-for: 198.51.100.1, 203.0.113.9, 127.0.0.2")
                    .gives(Received("x-forwarded-for"), "203.0.113.9"),
                Step::new("GET /").gives(Received("x-forwarded-for"), "127.0.0.1"),
            ],
        },
        Convenience {
            name: "others name nobody",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\n",
            caddy: Caddy::Site("reverse_proxy 127.0.0.1:@BACK1\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /")
                    .with("x-forwarded-for: 198.51.100.1")
                    .with("x-forwarded-proto: gopher")
                    .gives(Received("x-forwarded-for"), "127.0.0.1")
                    .gives(Received("x-forwarded-proto"), "https")
                    .gives(Received("x-forwarded-host"), "localhost:PORT"),
            ],
        },
        Convenience {
            name: "a client may ask so often",
            ours: "rate-limit = { requests-per-second = 0.001, burst = 9 }\n[[route]]\nfiles = \"www\"\n",
            caddy: Caddy::Missing("rate limits are a module that is not in Caddy's own program"),
            versions: ALL,
            // The three versions share the limit of the client.
            steps: vec![Step::new("GET /index.html").times(3).gives(Statuses, "200 200 200")],
        },
        Convenience {
            name: "who asks too often is refused",
            ours: "[[route]]\nfiles = \"www\"\nrate-limit = { requests-per-second = 0.001, burst = 2 }\n",
            caddy: Caddy::Missing("rate limits are a module that is not in Caddy's own program"),
            versions: &[super::ask::Version::Http3],
            steps: vec![Step::new("GET /index.html").times(4).gives(Statuses, "200 200 429 429")],
        },
        Convenience {
            name: "scripts of other sites may read",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\ncors = { origins = [\"https://app.example\"], methods = [\"PUT\"], headers = [\"x-token\"] }\n",
            caddy: Caddy::Site(
                "@preflight {\n\tmethod OPTIONS\n\theader origin https://app.example\n\theader access-control-request-method *\n}\n@origin header origin \
                 https://app.example\nheader vary origin\nheader @origin access-control-allow-origin https://app.example\nhandle @preflight {\n\theader \
                 access-control-allow-methods PUT\n\theader access-control-allow-headers x-token\n\trespond 204\n}\nhandle {\n\treverse_proxy \
                 127.0.0.1:@BACK1\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("OPTIONS /")
                    .with("origin: https://app.example")
                    .with("access-control-request-method: PUT")
                    .gives(Status, "204")
                    .gives(Header("access-control-allow-origin"), "https://app.example")
                    .gives(Header("access-control-allow-headers"), "x-token"),
                Step::new("GET /")
                    .with("origin: https://app.example")
                    .gives(Status, "200")
                    .gives(Header("access-control-allow-origin"), "https://app.example")
                    .gives(Header("vary"), "origin"),
                Step::new("GET /")
                    .with("origin: https://evil.example")
                    .gives(Status, "200")
                    .gives(Header("access-control-allow-origin"), "none"),
            ],
        },
        Convenience {
            name: "a cookie keeps a client at its back end",
            ours: "[[route]]\nto = [\"http://127.0.0.1:@BACK1\", \"http://127.0.0.1:@BACK2\"]\n[route.sticky]\n",
            caddy: Caddy::Site("reverse_proxy 127.0.0.1:@BACK1 127.0.0.1:@BACK2 {\n\tlb_policy cookie\n}\n"),
            versions: TCP,
            steps: vec![Step::new("GET /").times(10).with_jar().gives(BackEnds, "1")],
        },
        Convenience {
            name: "back ends take turns",
            ours: "[[route]]\nto = [\"http://127.0.0.1:@BACK1\", \"http://127.0.0.1:@BACK2\"]\n",
            caddy: Caddy::Site("reverse_proxy 127.0.0.1:@BACK1 127.0.0.1:@BACK2 {\n\tlb_policy round_robin\n}\n"),
            versions: ALL,
            steps: vec![Step::new("GET /").times(4).gives(BackEnds, "2").gives(Statuses, "200 200 200 200")],
        },
        Convenience {
            name: "a busy back end gets less",
            ours: "workers = 1\n[[route]]\nto = [\"http://127.0.0.1:@BACK1\", \"http://127.0.0.1:@BACK2\"]\nbalance = \"least-connections\"\n",
            caddy: Caddy::Site("reverse_proxy 127.0.0.1:@BACK1 127.0.0.1:@BACK2 {\n\tlb_policy least_conn\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /")
                    .times(6)
                    .beside_held()
                    .gives(BackEnds, "1")
                    .gives(Statuses, "200 200 200 200 200 200"),
            ],
        },
        Convenience {
            name: "a back end that is down is left out",
            ours: "[[route]]\nto = [\"http://127.0.0.1:@DOWN\", \"http://127.0.0.1:@BACK1\"]\n",
            caddy: Caddy::Site(
                "reverse_proxy 127.0.0.1:@DOWN 127.0.0.1:@BACK1 {\n\tlb_policy round_robin\n\tlb_retries 1\n}\n",
            ),
            versions: ALL,
            steps: vec![Step::new("GET /").times(4).gives(Statuses, "200 200 200 200").gives(BackEnds, "1")],
        },
    ]
}
