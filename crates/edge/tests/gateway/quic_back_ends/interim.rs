//! Interim responses of back ends (RFC 9110 §15.2), over HTTP/3 and HTTP/1.1, to clients of all versions.

use std::sync::Mutex;

use h3_quic::{InterimResponses, OnInterim, client::SendRequest};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Status and `link` of interim responses.
type Got = Vec<(u16, Option<String>)>;

/// Sends a request, and returns its interim responses and its status.
async fn ask(h3: &mut SendRequest) -> (Got, u16) {
    let got = Arc::new(Mutex::new(Got::new()));
    let to = got.clone();
    let mut request = get("https://localhost/");
    request.extensions_mut().insert(OnInterim::new(move |response| {
        let link = response.headers().get("link").map(|value| value.to_str().unwrap().to_owned());
        for other in ["connection", "x-mine", "alt-svc"] {
            assert!(!response.headers().contains_key(other), "{other}");
        }
        to.lock().unwrap().push((response.status().as_u16(), link));
    }));
    let response = within(h3.send(request)).await.unwrap();
    let status = response.status().as_u16();
    assert_eq!(text(response).await, "page");
    (std::mem::take(&mut got.lock().unwrap()), status)
}

fn hints(number: u32) -> Response<()> {
    let link = format!("</style-{number}.css>; rel=preload");
    Response::builder().status(103).header("link", link).header("alt-svc", "h3=\":1\"").body(()).unwrap()
}

fn expected(count: u32) -> Got {
    (0..count).map(|number| (103, Some(format!("</style-{number}.css>; rel=preload")))).collect()
}

/// A back end over HTTP/3 that sends hints, waits, and answers.
async fn origin() -> Origin {
    Origin::start(|request: Request<RequestBody>, _| {
        let interim = request.extensions().get::<InterimResponses>().unwrap().clone();
        async move {
            interim.send(hints(0)).unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            interim.send(hints(1)).unwrap();
            interim.send(hints(2)).unwrap();
            Response::new(full("page"))
        }
    })
    .await
}

/// A back end over HTTP/1.1 that writes this before each response.
async fn plain(before: &'static str) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 16_384];
                while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {
                    let _ = stream.write_all(before.as_bytes()).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npage").await;
                }
            });
        }
    });
    address
}

/// Clients whose version has no way for them get the response alone.
async fn others_get_the_response(site: &Site) {
    for version in VERSIONS {
        let mut client = Client::new(site, version).await;
        assert_eq!(within(client.get("/")).await.unwrap().status(), 200, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_of_http3_reach_clients_of_http3() {
    let origin = origin().await;
    let (site, _roots) = gateway("interim-h3", &origin.certificate, &route(origin.address, ""));
    let (_endpoint, mut h3) = site.h3().await;
    for _ in 0..3 {
        assert_eq!(ask(&mut h3).await, (expected(3), 200));
    }
    // One that asks for none skips them.
    assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 200);
    others_get_the_response(&site).await;
    let (front, _more_roots) = super::chain::in_front("interim-h3-front", &site, "", "");
    let (_endpoint, mut h3) = front.h3().await;
    assert_eq!(ask(&mut h3).await, (expected(3), 200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_of_http1_reach_clients_of_http3() {
    let hints = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </style-0.css>; rel=preload\r\n\
                 connection: x-mine\r\nx-mine: 1\r\nalt-svc: h3=\":1\"\r\n\r\n";
    let address = plain(hints).await;
    let site = Site::start("interim-h1", &format!("[[route]]\nto = \"http://{address}\"\n"));
    let (_endpoint, mut h3) = site.h3().await;
    let all: Got = [vec![(100, None)], expected(1)].concat();
    for _ in 0..3 {
        assert_eq!(ask(&mut h3).await, (all.clone(), 200));
    }
    others_get_the_response(&site).await;
}
