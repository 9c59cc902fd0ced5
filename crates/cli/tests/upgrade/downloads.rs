//! Downloads that outlive several generations of the gateway.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;

use crate::{
    clients::{Site, get},
    fleet::{LARGE, large},
    load::{Load, is_unprocessed},
    mix::Kind,
};

/// Upgrades during each download.
pub(crate) const UPGRADES: u64 = 6;
/// Interval in which a client that waits reads something: `limits.read-timeout` is longer.
const READ: Duration = Duration::from_secs(10);
/// Content that a client over HTTP/2 has announced room for, at most: it may have arrived and not been read.
const HTTP2_WINDOW: usize = 2 << 20;

static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(large);

/// Counters of downloads.
#[derive(Clone, Default)]
pub(crate) struct Downloads {
    /// Downloads that were complete and correct.
    complete: Arc<AtomicU64>,
    /// Those of them whose content was not sent completely after [`UPGRADES`] upgrades.
    long: Arc<AtomicU64>,
}

impl Downloads {
    /// Prints the counters. Returns the number of those that outlived [`UPGRADES`] upgrades.
    pub(crate) fn print(&self) -> u64 {
        let [complete, long] = [&self.complete, &self.long].map(|counter| counter.load(Ordering::Relaxed));
        println!("measured downloads: {complete}");
        println!("measured downloads through six upgrades: {long}");
        long
    }

    /// Downloads one after the other until the load stops, the last one to its end.
    pub(crate) async fn run(self, load: Load, site: Site, kind: Kind) {
        while load.goes_on() {
            let one = Download { load: &load, until: load.upgrades() + UPGRADES };
            let outcome = match kind {
                Kind::Http2 => one.over_http2(&site).await,
                _ => one.over_http3(&site).await,
            };
            match outcome {
                Ok(is_long) => {
                    load.answered();
                    self.complete.fetch_add(1, Ordering::Relaxed);
                    self.long.fetch_add(is_long.into(), Ordering::Relaxed);
                }
                Err(why) => load.failed(format!("download, {kind:?}"), &why),
            }
        }
    }
}

struct Download<'a> {
    load: &'a Load,
    /// Upgrades after which it may end.
    until: u64,
}

impl Download<'_> {
    async fn over_http3(&self, site: &Site) -> Result<bool, String> {
        let mut quic = self.load.http3(site).await?;
        let response = quic.h3.send(get("large")).await.map_err(|error| error.to_string())?;
        let connection = quic.connection.clone();
        let read =
            self.read(response, |_| connection.stats().is_some_and(|stats| stats.stream_bytes_received < LARGE as u64));
        let outcome = read.await;
        if let Some(reason) = connection.close_reason() {
            self.load.lost("download", &format!("{reason:?}"));
        }
        outcome
    }

    async fn over_http2(&self, site: &Site) -> Result<bool, String> {
        let response = loop {
            match site.h2().await.send_request(get("large")).await {
                Ok(response) => break response,
                Err(error) if is_unprocessed(&error) => {}
                Err(error) => return Err(format!("{error:?}")),
            }
        };
        self.read(response, |read| read + HTTP2_WINDOW < LARGE).await
    }

    fn may_end(&self) -> bool {
        !self.load.goes_on() || self.load.upgrades() >= self.until
    }

    /// Reads a body slowly, and at once when it may end. Returns whether some of it waited at the server until then: `waits` tells that
    /// from the bytes read.
    async fn read<B>(&self, response: Response<B>, waits: impl Fn(usize) -> bool) -> Result<bool, String>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Debug,
    {
        let (status, mut body, mut all) = (response.status(), response.into_body(), Vec::new());
        let mut has_lasted = None;
        while let Some(frame) = body.frame().await {
            all.extend_from_slice(
                &frame.map_err(|error| format!("{} bytes: {error:?}", all.len()))?.into_data().unwrap(),
            );
            if !self.may_end() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let since = Instant::now();
            while !self.may_end() && all.len() >= LARGE / 2 && since.elapsed() < READ {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if self.may_end() {
                has_lasted.get_or_insert_with(|| self.load.upgrades() >= self.until && waits(all.len()));
            }
        }
        if status != 200 || all != *CONTENT {
            return Err(format!("{status}, {} bytes", all.len()));
        }
        Ok(has_lasted == Some(true))
    }
}
