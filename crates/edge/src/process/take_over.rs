//! Newer process of an upgrade: builds the gateway on the sockets of the older one, and serves when that has stopped.

use std::{
    io,
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Origin, Process, ProcessError};
use crate::{
    keys,
    upgrade::{
        PROTOCOL, TakenOver, UpgradeError,
        channel::{Channel, is_gone},
        messages::{Answer, Built, Commit, Hello, OLDEST, Serving, Taken},
        siblings::SiblingProcess,
    },
};

/// The older process answers within this time, or is stuck: it decides how long this one may take.
const PATIENCE: Duration = Duration::from_secs(600);

impl Process {
    /// Starts the gateway of the configuration in `file` on the sockets of the process at the other end of `stream`, which started
    /// this one, and returns when it serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`start`](Self::start), or when the older process refuses. It continues then.
    pub fn take_over(file: &Path, stream: UnixStream) -> Result<Arc<Self>, ProcessError> {
        let channel = Channel::new(stream);
        let built = Self::build_on(file, &channel);
        let (process, taken, siblings) = match built {
            Ok(built) => built,
            Err(error) => {
                let failed =
                    Built::Failed { error: error.to_string(), hint: error.hint(), cause: error.refusal_cause() };
                // It may be gone, and then nobody has to know.
                let _ = channel.send(&failed);
                return Err(error);
            }
        };
        let broken = |error: io::Error| match is_gone(&error) {
            true => UpgradeError::Broken(io::Error::new(error.kind(), "the process that serves has given this one up")),
            false => UpgradeError::Broken(error),
        };
        channel.send(&Built::Ready(taken)).map_err(broken)?;
        let commit: Commit = channel.receive().map_err(broken)?;
        process.listeners.open_missing()?;
        process.siblings.set_handshakes(commit.handshakes);
        *process.siblings.all() = siblings.into_iter().map(Arc::new).collect();
        process.shared.persistent.strikes.begin_after_another(keys::now());
        if let Err(error) = process.shared.persistent.devices.commence(commit.tunnels) {
            tracing::error!("the TUN devices cannot be read: {error}");
        }
        process.commence();
        if let Err(error) = channel.send(&Serving {}) {
            tracing::warn!("the process before this one is gone: {error}");
        }
        tracing::info!("process {} serves", process.number());
        Ok(process)
    }

    fn build_on(file: &Path, channel: &Channel) -> Result<(Arc<Self>, Taken, Vec<SiblingProcess>), ProcessError> {
        let broken = UpgradeError::Broken;
        channel.set_deadline(Instant::now() + PATIENCE).map_err(broken)?;
        let hello = Hello { from: OLDEST, to: PROTOCOL, program: env!("CARGO_PKG_VERSION").to_owned() };
        channel.send(&hello).map_err(broken)?;
        let offer = match channel.receive().map_err(broken)? {
            Answer::Offer(offer) => offer,
            Answer::Refused(error) => return Err(UpgradeError::NotOffered(error).into()),
        };
        let descriptors = channel.receive_descriptors(offer.descriptors()).map_err(broken)?;
        let mut offered = TakenOver::new(*offer, descriptors, channel.stream()).map_err(broken)?;
        let siblings = std::mem::take(&mut offered.siblings);
        let addresses: Vec<_> = offered.addresses.keys().copied().collect();
        let plain: Vec<_> = offered.plain.keys().copied().collect();
        let admin = offered.admin.is_some();
        let mut devices: Vec<_> = offered.devices.keys().cloned().collect();
        let process = Self::build(file, Origin::TakenOver(&mut offered))?;
        let left = process.shared.persistent.devices.give_back();
        devices.retain(|name| !left.contains(name));
        let taken = Taken {
            addresses: addresses.into_iter().filter(|address| !offered.addresses.contains_key(address)).collect(),
            plain: plain.into_iter().filter(|address| !offered.plain.contains_key(address)).collect(),
            admin: admin && offered.admin.is_none(),
            devices,
        };
        Ok((process, taken, siblings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{ConfigCause, ConfigError},
        upgrade::{RefusalCause, messages::Offer},
        worker_panics::PanicHistory,
    };

    /// Starts a program without a configuration file, to which an older process gives `answer`. Returns its error, and its next message.
    async fn take_over(answer: Answer) -> (ProcessError, Option<Built>) {
        let (older, newer) = UnixStream::pair().unwrap();
        let older = tokio::task::spawn_blocking(move || {
            let channel = Channel::new(older);
            let hello: Hello = channel.receive().unwrap();
            assert_eq!((hello.from, hello.to), (OLDEST, PROTOCOL));
            channel.send(&answer).unwrap();
            channel.receive().ok()
        });
        let newer = tokio::task::spawn_blocking(|| Process::take_over(Path::new("/nowhere/edge.toml"), newer).err());
        (newer.await.unwrap().unwrap(), older.await.unwrap())
    }

    #[tokio::test]
    async fn who_refuses_is_told_apart() {
        let (error, _) = take_over(Answer::Refused("no version in common".to_owned())).await;
        let ProcessError::Upgrade(UpgradeError::NotOffered(text)) = &error else { panic!("{error:?}") };
        assert_eq!(text, "no version in common");
        assert!(error.hint().unwrap().contains("restart the service"));

        let offer = Offer {
            protocol: PROTOCOL,
            process: 2,
            generation: 1,
            id_key: [0; 16],
            routable: None,
            routable_before: Vec::new(),
            read_by_others: false,
            ring: tiderace::KeyRing::single([7; 32]).to_text(),
            configuration: 1,
            sockets: 1,
            addresses: Vec::new(),
            alone: Vec::new(),
            plain: Vec::new(),
            admin: None,
            metrics: None,
            siblings: Vec::new(),
            panics: PanicHistory::default(),
            devices: Vec::new(),
            steered: Vec::new(),
        };
        let (error, built) = take_over(Answer::Offer(Box::new(offer))).await;
        assert!(
            matches!(error, ProcessError::Config(ConfigError { cause: ConfigCause::Unreadable(_), .. })),
            "{error:?}"
        );
        let Some(Built::Failed { cause, error, .. }) = built else { panic!("{built:?}") };
        assert_eq!(cause, RefusalCause::Configuration);
        assert!(error.contains("/nowhere/edge.toml"), "{error}");
    }

    #[test]
    fn programs_of_the_same_protocol_may_know_other_causes() {
        for (text, expected) in [
            (r#"{"failed":{"error":"e","hint":null}}"#, RefusalCause::Unknown),
            (r#"{"failed":{"error":"e","hint":null,"cause":"weather"}}"#, RefusalCause::Unknown),
            (r#"{"failed":{"error":"e","hint":null,"cause":"listener"}}"#, RefusalCause::Listener),
        ] {
            let Built::Failed { cause, .. } = serde_json::from_str(text).unwrap() else { panic!("{text}") };
            assert_eq!(cause, expected, "{text}");
        }
    }
}
