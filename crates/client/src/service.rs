//! Client as a service of `tower`, for use below its layers.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tiderace::EarlyData;
use tower_service::Service;

use crate::{
    body::BodyError,
    fetch::{Client, FetchError, Fetched, ResponseBody, Route},
};

/// Evidence of the route that a response of the [service](Service) took: an extension of the response. A [`Route`] among the extensions
/// of the
/// request chooses the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// `h3`, `h2` or `http/1.1`.
    pub protocol: &'static str,
    /// From the call to the response's fields.
    pub first_byte: Duration,
    /// Outcome of early data.
    pub early_data: EarlyData,
    /// The connection was there before.
    pub reused: bool,
}

impl<B> Service<Request<B>> for Client
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<ResponseBody>;
    type Error = FetchError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, FetchError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), FetchError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let client = self.clone();
        Box::pin(async move {
            let route = request.extensions().get::<Route>().cloned().unwrap_or_default();
            let Fetched { mut response, protocol, first_byte, early_data, reused, .. } =
                client.send(request, &route).await?;
            response.extensions_mut().insert(Evidence { protocol, first_byte, early_data, reused });
            Ok(response)
        })
    }
}
