//! A server of requests whose answers are made in the pass of tiderace's driver, without a task.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use tiderace::{CloseReason, ServedStream, Service, Stats, transport::Handle};
use tokio::sync::oneshot;

use super::{Announcement, tiderace::Tiderace};
use crate::{
    content::Source,
    identity::ServerIdentity,
    job::{Job, REQUEST, RESPONSE},
    meter::{Datagrams, Meter, Role, SideReport},
    stack::{Settings, Stack},
    workload::on_runtime,
};

/// Plays the server of the mode for requests.
pub fn serve(
    job: Job,
    listen: SocketAddr,
    announce: impl FnOnce(&Announcement) -> Result<()> + Send + 'static,
) -> Result<SideReport> {
    on_runtime(async move {
        let identity = ServerIdentity::generate()?;
        let trust = identity.authority.clone();
        let mut stack = Tiderace::<true>::serve(listen, Settings::of(&job), identity)?;
        let (ended, end) = oneshot::channel();
        let mut answers = Some(Answers::new(job, ended));
        stack.endpoint.serve(|_| answers.take().expect("there is one shard"));
        announce(&Announcement::new(stack.address()?, &trust))?;
        let (meter, stats) = end.await.context("the service ended before its connection")?;
        stack.wait_idle().await;
        let socket = stack.endpoint.socket_stats();
        let datagrams = Datagrams {
            send_calls: Some(socket.send_calls),
            receive_calls: Some(socket.receive_calls),
            sent: stats.datagrams_sent,
            received: stats.datagrams_received,
            lost: stats.packets_lost,
        };
        // Each request was compared in full.
        Ok(SideReport {
            content_samples: job.amount,
            datagrams: Some(datagrams),
            socket_buffer: stack.socket_buffer(),
            ..meter.report(Role::Server, job.amount)
        })
    })
}

/// Answers requests that it compares.
struct Answers {
    request: Bytes,
    response: Bytes,
    amount: u64,
    answered: u64,
    meter: Option<Meter>,
    /// Statistics with the last answer.
    stats: Stats,
    ended: Option<oneshot::Sender<(Meter, Stats)>>,
}

impl Answers {
    fn new(job: Job, ended: oneshot::Sender<(Meter, Stats)>) -> Self {
        let source = Source::new();
        Self {
            request: source.bytes_at(0, REQUEST),
            response: source.bytes_at(0, RESPONSE),
            amount: job.amount,
            answered: 0,
            meter: None,
            stats: Stats::default(),
            ended: Some(ended),
        }
    }
}

impl Service for Answers {
    /// The request so far.
    type Stream = Vec<u8>;

    fn stream(&mut self, stream: &mut ServedStream<'_>, kept: &mut Option<Vec<u8>>) {
        let mut whole = None;
        let end = stream.read(|part| match (&mut whole, &mut *kept) {
            (None, None) => whole = Some(part),
            (first, kept) => {
                let kept = kept.get_or_insert_with(Vec::new);
                kept.extend(first.take().unwrap_or_default());
                kept.extend(part);
            }
        });
        if !end.expect("the client resets no stream") {
            kept.get_or_insert_with(Vec::new).extend(whole.unwrap_or_default());
            return;
        }
        let matches = match kept.take() {
            Some(request) => request == self.request && whole.is_none(),
            None => whole.is_some_and(|request| request == self.request),
        };
        assert!(matches, "the client's request is wrong");
        let taken = stream.write_last(&mut self.response.clone()).expect("the client wants its answer");
        assert!(taken, "the send buffer has room for all answers");
        self.answered += 1;
        self.meter.get_or_insert_with(Meter::start);
        if self.answered == self.amount {
            self.stats = stream.connection().state().stats();
        }
    }

    // The last answers are sent and acknowledged by then.
    fn closed(&mut self, _: Handle, _: &CloseReason) {
        if let (Some(mut meter), Some(ended)) = (self.meter.take(), self.ended.take()) {
            meter.stop();
            let _ = ended.send((meter, self.stats));
        }
    }
}
