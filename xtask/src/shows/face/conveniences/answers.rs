//! Conveniences of the answer: redirections, rewriting, header fields, compression, files.

use super::{
    ask::{
        Part::{Content, Header, Received, Status, Target},
        Version,
    },
    back_end::{LINE, LINES},
    case::{ALL, Caddy, Convenience, Step},
};

/// All of them.
pub(super) fn all() -> Vec<Convenience> {
    vec![
        Convenience {
            name: "plain HTTP is redirected",
            ours: "redirect-from = \"127.0.0.1:@PLAIN\"\n[[route]]\nfiles = \"www\"\n",
            caddy: Caddy::Sites(
                "root * @DIR/www\nfile_server\n",
                "http://localhost:@PLAIN {\n\tbind 127.0.0.1\n\tredir https://{host}:@PORT{uri} 308\n}\n",
            ),
            versions: &[Version::Plain],
            steps: vec![
                Step::new("GET /a/b?c=d")
                    .gives(Status, "308")
                    .gives(Header("location"), "https://localhost:PORT/a/b?c=d"),
                Step::new("POST /form").gives(Status, "308").gives(Header("location"), "https://localhost:PORT/form"),
            ],
        },
        Convenience {
            name: "a path is redirected to another site",
            ours: "[[route]]\npath = \"/old\"\nredirect = \"https://www.example.org/new/{path}\"\nredirect-status = 301\n",
            caddy: Caddy::Site("handle_path /old/* {\n\tredir https://www.example.org/new{uri} 301\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /old/a%20b?c=d")
                    .gives(Status, "301")
                    .gives(Header("location"), "https://www.example.org/new/a%20b?c=d"),
                Step::new("GET /other")
                    .gives(Status, "404")
                    .but_caddy("200", "Caddy answers what no directive is for with an empty page"),
            ],
        },
        Convenience {
            name: "a path is rewritten for the back end",
            ours: "[[route]]\npath = \"/api\"\nto = \"http://127.0.0.1:@BACK1\"\nrewrite = \"/v2\"\n",
            caddy: Caddy::Site("handle_path /api/* {\n\trewrite * /v2{uri}\n\treverse_proxy 127.0.0.1:@BACK1\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /api/x?y=1").gives(Status, "200").gives(Target, "GET /v2/x?y=1"),
                Step::new("DELETE /api/a%2Fb").gives(Status, "200").gives(Target, "DELETE /v2/a%2Fb").but_caddy(
                    "DELETE /v2/a/b",
                    "Caddy decodes `%2F` where it rewrites, so that the path has another segment",
                ),
            ],
        },
        Convenience {
            name: "a prefix is left out",
            ours: "[[route]]\npath = \"/api\"\nto = \"http://127.0.0.1:@BACK1\"\nstrip = true\n",
            caddy: Caddy::Site("handle_path /api/* {\n\treverse_proxy 127.0.0.1:@BACK1\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /api/x?y=1").gives(Target, "GET /x?y=1"),
                Step::new("GET /api/").gives(Target, "GET /"),
            ],
        },
        Convenience {
            name: "header fields of answers are removed, set, added",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\n\
                   response-headers = { remove = \"x-powered-by\", set = { x-frame-options = \"DENY\" }, add = { link = \"</a.css>\" } }\n",
            caddy: Caddy::Site(
                "header {\n\t-x-powered-by\n\t>x-frame-options DENY\n\t+link \"</a.css>\"\n}\nreverse_proxy 127.0.0.1:@BACK1\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /chatty")
                    .gives(Status, "200")
                    .gives(Header("x-powered-by"), "none")
                    .gives(Header("x-frame-options"), "DENY")
                    .gives(Header("link"), "</a.css>"),
            ],
        },
        Convenience {
            name: "header fields of requests are removed, set",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\nrequest-headers = { remove = \"cookie\", set = { x-site = \"main\" } }\n",
            caddy: Caddy::Site("reverse_proxy 127.0.0.1:@BACK1 {\n\theader_up -cookie\n\theader_up x-site main\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /")
                    .with("cookie: a=b")
                    .with("x-site: mine")
                    .with("x-other: kept")
                    .gives(Received("cookie"), "none")
                    .gives(Received("x-site"), "main")
                    .gives(Received("x-other"), "kept"),
            ],
        },
        Convenience {
            name: "browsers stay with HTTPS (HSTS)",
            ours: "[[route]]\nfiles = \"www\"\nhsts = \"365 d\"\n",
            caddy: Caddy::Site("header strict-transport-security max-age=31536000\nroot * @DIR/www\nfile_server\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /index.html")
                    .gives(Status, "200")
                    .gives(Header("strict-transport-security"), "max-age=31536000"),
                Step::new("GET /missing")
                    .gives(Status, "404")
                    .gives(Header("strict-transport-security"), "max-age=31536000"),
            ],
        },
        Convenience {
            name: "content is compressed, by type and size",
            ours: "[[route]]\nto = \"http://127.0.0.1:@BACK1\"\n[route.compression]\n",
            caddy: Caddy::Site("encode zstd gzip {\n\tminimum_length 1024\n}\nreverse_proxy 127.0.0.1:@BACK1\n"),
            versions: ALL,
            steps: vec![
                compressed("zstd").gives(Header("content-encoding"), "zstd"),
                compressed("gzip").gives(Header("content-encoding"), "gzip"),
                compressed("gzip;q=0.5, zstd").gives(Header("content-encoding"), "zstd"),
                compressed("br")
                    .gives(Header("content-encoding"), "br")
                    .but_caddy("none", "Caddy's standard modules have no encoder for brotli"),
                compressed("gzip;q=0").gives(Header("content-encoding"), "none"),
                Step::new("GET /picture").accepting("gzip").gives(Header("content-encoding"), "none"),
                Step::new("GET /short")
                    .accepting("gzip")
                    .gives(Header("content-encoding"), "none")
                    .gives(Content, LINE),
            ],
        },
        precompressed(),
        Convenience {
            name: "directories have an index, applications a fallback",
            ours: "[[route]]\nfiles = \"www\"\nindex = [\"start.html\", \"index.html\"]\nfallback = \"app.html\"\n",
            caddy: Caddy::Site(
                "root * @DIR/www\ntry_files {path} {path}/start.html {path}/index.html /app.html\nfile_server {\n\tindex start.html index.html\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /folder/").gives(Status, "200").gives(Content, "start\n"),
                Step::new("GET /").gives(Status, "200").gives(Content, "index\n"),
                Step::new("GET /no/such/page").gives(Status, "200").gives(Content, "app\n"),
                Step::new("GET /plain.txt").gives(Status, "200").gives(Content, "0123456789\n"),
            ],
        },
        Convenience {
            name: "files have parts, types and validators",
            ours: "[[route]]\nfiles = \"www\"\n",
            caddy: Caddy::Site("root * @DIR/www\nfile_server {\n\thide .*\n}\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /plain.txt")
                    .with("range: bytes=2-4")
                    .gives(Status, "206")
                    .gives(Header("content-range"), "bytes 2-4/11")
                    .gives(Content, "234"),
                Step::new("GET /plain.txt")
                    .with("range: bytes=90-")
                    .gives(Status, "416")
                    .gives(Header("content-range"), "bytes */11"),
                Step::new("GET /plain.txt")
                    .with("if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT")
                    .gives(Status, "304"),
                Step::new("HEAD /plain.txt")
                    .gives(Status, "200")
                    .gives(Header("content-length"), "11")
                    .gives(Content, ""),
                Step::new("GET /index.html").gives(Header("content-type"), "text/html; charset=utf-8"),
                Step::new("GET /.hidden").gives(Status, "404"),
                Step::new("GET /../ours.toml").gives(Status, "404"),
                Step::new("POST /plain.txt").gives(Status, "405"),
            ],
        },
        Convenience {
            name: "directories are listed",
            ours: "[[route]]\nfiles = \"www\"\nlisting = true\n",
            caddy: Caddy::Site("root * @DIR/www\nfile_server browse\n"),
            versions: ALL,
            steps: vec![
                Step::new("GET /folder/listed/")
                    .gives(Status, "200")
                    .gives(Header("content-type"), "text/html; charset=utf-8"),
                Step::new("GET /folder/missing/").gives(Status, "404"),
            ],
        },
        Convenience {
            name: "errors have pages",
            ours: "[[route]]\nfiles = \"www\"\nerror-pages = { 404 = \"www/errors/404.html\" }\n[[route]]\npath = \"/down\"\n\
                   to = \"http://127.0.0.1:@DOWN\"\nerror-pages = { 502 = \"www/errors/502.html\" }\n",
            caddy: Caddy::Site(
                "root * @DIR/www\nhandle /down/* {\n\treverse_proxy 127.0.0.1:@DOWN\n}\nhandle {\n\tfile_server\n}\n\
                 handle_errors 404 502 {\n\trewrite * /errors/{err.status_code}.html\n\tfile_server\n}\n",
            ),
            versions: ALL,
            steps: vec![
                Step::new("GET /missing").gives(Status, "404").gives(Content, "nothing here\n"),
                Step::new("GET /down/x").gives(Status, "502").gives(Content, "down\n"),
            ],
        },
    ]
}

fn compressed(accepted: &'static str) -> Step {
    Step::new("GET /page").accepting(accepted).gives(Status, "200").gives(Content, LINE.repeat(LINES))
}

fn precompressed() -> Convenience {
    let asked =
        |coding: &'static str| Step::new("GET /style.css").accepting(coding).gives(Content, "body { margin: 0 }\n");
    Convenience {
        name: "files are served in their compressed form",
        ours: "[[route]]\nfiles = \"www\"\nprecompressed = true\n",
        caddy: Caddy::Site("root * @DIR/www\nfile_server {\n\tprecompressed zstd br gzip\n}\n"),
        versions: ALL,
        steps: vec![
            asked("gzip")
                .gives(Header("content-encoding"), "gzip")
                .gives(Header("content-type"), "text/css; charset=utf-8"),
            asked("identity").gives(Header("content-encoding"), "none"),
        ],
    }
}
