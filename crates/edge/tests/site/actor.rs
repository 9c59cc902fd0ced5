//! A back end that does what the first segment of the path says, and tells who has come.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, channel::Channel};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Notify,
    task::JoinHandle,
};

use super::{Body, Error, full, within};

/// Bytes of `/big` and `/trailers`.
pub const BIG: usize = 200_000;

/// Paths of requests that have come.
#[derive(Default)]
pub struct Seen {
    paths: Mutex<HashSet<String>>,
    changed: Notify,
}

impl Seen {
    pub fn has(&self, path: &str) -> bool {
        self.paths.lock().unwrap().contains(path)
    }

    /// Waits for a request.
    pub async fn wait(&self, path: &str) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if self.has(path) {
                    return;
                }
                changed.await;
            }
        };
        within(waiting).await;
    }
}

pub struct Actor {
    pub url: String,
    pub seen: Arc<Seen>,
    task: JoinHandle<()>,
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Actor {
    /// One that speaks HTTP/1.1, or HTTP/2 without TLS.
    pub async fn start(h2: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let seeing = seen.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let seen = seeing.clone();
                        let service = service_fn(move |request| act(request, seen.clone()));
                        let io = TokioIo::new(accepted.unwrap().0);
                        connections.spawn(async move {
                            if h2 {
                                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                                let _ = builder.serve_connection(io, service).await;
                            } else {
                                let builder = hyper::server::conn::http1::Builder::new();
                                let _ = builder.serve_connection(io, service).with_upgrades().await;
                            }
                        });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        let scheme = if h2 { "h2c" } else { "http" };
        Self { url: format!("{scheme}://{address}"), seen, task }
    }
}

/// Begins an answer that continues as `rest` says.
fn streaming<F>(rest: impl FnOnce(http_body_util::channel::Sender<Bytes, Error>) -> F) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, body) = Channel::<Bytes, Error>::new(1);
    tokio::spawn(rest(sender));
    Response::new(body.boxed_unsync())
}

async fn act(mut request: Request<Incoming>, seen: Arc<Seen>) -> Result<Response<Body>, &'static str> {
    let path = request.uri().path().to_owned();
    seen.paths.lock().unwrap().insert(path.clone());
    seen.changed.notify_waiters();
    Ok(match path.split('/').nth(1).unwrap_or_default() {
        "none" => Response::builder().status(204).body(full("")).unwrap(),
        "same" => Response::builder().status(304).header("etag", "\"1\"").body(full("")).unwrap(),
        "error" => Response::builder().status(500).body(full("no")).unwrap(),
        "big" => Response::new(full(vec![b'x'; BIG])),
        "trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let body = Full::new(Bytes::from(vec![b'x'; BIG])).with_trailers(std::future::ready(Some(Ok(trailers))));
            Response::new(body.map_err(|never: Infallible| match never {}).boxed_unsync())
        }
        "upload" => {
            let Ok(content) = request.into_body().collect().await else { return Err("the content breaks off") };
            seen.paths.lock().unwrap().insert(format!("{path}#whole"));
            Response::new(full(content.to_bytes().len().to_string()))
        }
        // Nothing ever comes.
        "hang" => std::future::pending().await,
        // Something comes, and then nothing.
        "stall" => streaming(|mut sender| async move {
            let _ = sender.send_data(Bytes::from_static(b"something")).await;
            std::future::pending::<()>().await;
        }),
        "endless" => streaming(|mut sender| async move {
            while sender.send_data(Bytes::from_static(&[b'x'; 16_384])).await.is_ok() {}
        }),
        "close" => return Err("closes"),
        "cut" => streaming(|mut sender| async move {
            let _ = sender.send_data(Bytes::from_static(b"something")).await;
            sender.abort("cut".into());
        }),
        "switch" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(stream) = upgrade.await else { return };
                let mut stream = TokioIo::new(stream);
                let mut buffer = [0; 4_096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
                let _ = stream.shutdown().await;
            });
            let response = Response::builder().status(101).header("connection", "upgrade");
            response.header("upgrade", "websocket").body(full("")).unwrap()
        }
        _ => Response::new(full("ok")),
    })
}
