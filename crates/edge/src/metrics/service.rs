//! Service of metrics over plain HTTP.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// Serves what `render` gives at `/metrics`, until the task ends.
pub(crate) async fn serve(listener: TcpListener, render: impl Fn() -> String + Send + Sync + 'static) {
    let render = Arc::new(render);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let render = render.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let render = render.clone();
                async move {
                    let (status, text) = match request.uri().path() {
                        "/metrics" => (200, render()),
                        _ => (404, "the figures are at /metrics\n".to_owned()),
                    };
                    let response = Response::builder()
                        .status(status)
                        .header("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8");
                    Ok::<_, Infallible>(response.body(Full::new(bytes::Bytes::from(text))).expect("all parts are good"))
                }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10));
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
