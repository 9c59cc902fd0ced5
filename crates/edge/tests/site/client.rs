//! A client of any version of HTTP.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use tokio::task::JoinHandle;

use super::{Body, Error, Site, full};

/// Versions, as they are called in logs and metrics.
pub const VERSIONS: [&str; 3] = ["http/1.1", "h2", "h3"];

/// A connection of one version, and what keeps it open.
pub struct Client {
    version: &'static str,
    h1: Option<hyper::client::conn::http1::SendRequest<Body>>,
    h2: Option<hyper::client::conn::http2::SendRequest<Body>>,
    h3: Option<(tiderace::Endpoint, h3_quic::client::SendRequest)>,
    task: Option<JoinHandle<()>>,
}

impl Drop for Client {
    /// The connection goes at once, whatever is on it.
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Client {
    pub async fn new(site: &Site, version: &'static str) -> Self {
        let mut this = Self { version, h1: None, h2: None, h3: None, task: None };
        match version {
            "http/1.1" => {
                let io = hyper_util::rt::TokioIo::new(site.tls(&[b"http/1.1"]).await);
                let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                this.h1 = Some(sender);
                this.task = Some(tokio::spawn(async move { drop(connection.with_upgrades().await) }));
            }
            "h2" => this.h2 = Some(site.h2().await),
            _ => this.h3 = Some(site.h3().await),
        }
        this
    }

    /// Returns whether other requests can follow a cancelled one.
    pub fn is_shared(&self) -> bool {
        self.version != "http/1.1"
    }

    pub fn request(&self, method: Method, path: &str, body: Body) -> Request<Body> {
        let request = Request::builder().method(method);
        match self.version {
            "http/1.1" => request.uri(path).header("host", "localhost").body(body).unwrap(),
            _ => request.uri(format!("https://localhost{path}")).body(body).unwrap(),
        }
    }

    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Body>, Error> {
        if let Some(h1) = &mut self.h1 {
            // The connection may not have seen the end of the answer before.
            h1.ready().await?;
            return Ok(h1.send_request(request).await?.map(|body| body.map_err(Into::into).boxed_unsync()));
        }
        if let Some(h2) = &mut self.h2 {
            return Ok(h2.send_request(request).await?.map(|body| body.map_err(Into::into).boxed_unsync()));
        }
        let (_, h3) = self.h3.as_mut().unwrap();
        Ok(h3.send(request).await?.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    pub async fn get(&mut self, path: &str) -> Result<Response<Body>, Error> {
        self.send(self.request(Method::GET, path, full(""))).await
    }
}
