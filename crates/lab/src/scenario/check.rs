//! Checks of scenarios: ranges, and fields that belong together.

use netem::LinkConfig;
use units::{DataSize, Duration, duration_text};

use super::{BroadcastTraffic, Direction, FeedTraffic, PageTraffic, Scenario, Traffic, VideoTraffic, Workload};

/// A field whose value makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field as in the file, for example `path.down.queue`.
    pub field: String,
    /// Fault of the field.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
}

/// Longest one-way delay: beyond it the handshake timers, not the path, decide what happens.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Longest run in virtual time.
const RUN_MAX: Duration = Duration::from_secs(3_600);
/// Shortest time that is worth measuring.
const RUN_MIN: Duration = Duration::from_millis(10);

pub(super) fn fault(field: &str, message: impl Into<String>) -> Fault {
    Fault { field: field.to_owned(), message: message.into(), hint: None }
}

impl Fault {
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Scenario {
    /// Checks whether the scenario can be run.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn check(&self) -> Result<(), Fault> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(allowed) {
            let message = format!("`{}` is not a name", self.name);
            return Err(fault("name", message).hint("use up to 64 lower-case letters, digits and hyphens"));
        }
        check_link("path.down", &self.path.down)?;
        if let Some(up) = &self.path.up {
            check_link("path.up", up)?;
        }
        if let Some(nat) = &self.path.nat
            && !nat.timeout_max.is_zero()
            && nat.timeout_max < nat.timeout
        {
            let text = |span| duration_text::display(span);
            let message = format!("{} is less than `timeout`, {}", text(nat.timeout_max), text(nat.timeout));
            return Err(fault("path.nat.timeout-max", message));
        }
        self.traffic.check()?;
        let bottleneck = self.loaded_link();
        if matches!(self.traffic.workload, Workload::Bulk | Workload::Tunnel)
            && !bottleneck.has_rate()
            && bottleneck.policer.is_none()
        {
            let field = match self.traffic.direction {
                Direction::Upload if self.path.up.is_some() => "path.up.rate",
                _ => "path.down.rate",
            };
            return Err(fault(field, "bulk traffic needs a bottleneck: without a rate it would send without end")
                .hint("add for example `rate = \"20 Mbit/s\"` and `queue = \"125 kB\"`"));
        }
        self.check_run()?;
        self.check_programs()?;
        self.thresholds.iter().enumerate().try_for_each(|(index, threshold)| threshold.check(index))
    }

    fn check_run(&self) -> Result<(), Fault> {
        let run = &self.run;
        let text = duration_text::display;
        if run.duration < RUN_MIN || run.duration > RUN_MAX {
            let message = format!("{} is out of range: {} to {}", text(run.duration), text(RUN_MIN), text(RUN_MAX));
            return Err(fault("run.duration", message));
        }
        if run.warmup > RUN_MAX {
            return Err(fault("run.warmup", format!("{} is more than {}", text(run.warmup), text(RUN_MAX))));
        }
        if self.traffic.start_spread > run.warmup + run.duration {
            return Err(fault("traffic.start-spread", "connections would start after the run has ended")
                .hint(format!("the run takes {} with its warm-up", text(run.warmup + run.duration))));
        }
        if run.seeds == 0 || run.seeds > 1_000 {
            return Err(fault("run.seeds", format!("{} is out of range: 1 to 1000", run.seeds)));
        }
        if run.seed.checked_add(u64::from(run.seeds)).is_none() {
            return Err(fault("run.seed", "the seeds after it would not fit into 64 bits"));
        }
        let congestion = &self.contenders.congestion;
        let selection = &self.contenders;
        let others = selection.stacks.len() + selection.commands.len() + selection.rivals.len();
        if congestion.is_empty() && self.contenders.profiles.is_empty() && others == 0 {
            return Err(fault("contenders.congestion", "nobody is compared").hint("name at least one controller"));
        }
        for (i, name) in congestion.iter().enumerate() {
            if congestion[..i].contains(name) {
                return Err(fault("contenders.congestion", format!("`{name}` is named twice")));
            }
        }
        let stacks = &self.contenders.stacks;
        for (i, name) in stacks.iter().enumerate() {
            if stacks[..i].contains(name) {
                return Err(fault("contenders.stacks", format!("`{name}` is named twice")));
            }
        }
        if !self.contenders.rivals.is_empty() && self.traffic.connections < 2 {
            return Err(fault("contenders.rivals", "rivals need two connections at least")
                .hint("set `connections` in [traffic]: those with even numbers are the first rival's"));
        }
        if self.contenders.beside.is_some()
            && (!self.traffic.connections.is_multiple_of(2) || !self.contenders.rivals.is_empty())
        {
            return Err(fault("contenders.beside", "needs an even number of connections, and no other rivals")
                .hint("those with even numbers are the contender's, the others of the one beside it"));
        }
        let ack = &self.contenders.ack;
        if ack.is_empty() {
            return Err(fault("contenders.ack", "nobody is compared").hint("name at least one policy, such as `off`"));
        }
        let tunnel = &self.contenders.tunnel;
        if tunnel.is_empty() {
            return Err(fault("contenders.tunnel", "nobody is compared").hint("name at least one, such as `none`"));
        }
        for (i, one) in tunnel.iter().enumerate() {
            if tunnel[..i].contains(one) {
                return Err(fault("contenders.tunnel", format!("`{}` is named twice", one.name())));
            }
        }
        for (i, policy) in ack.iter().enumerate() {
            if ack[..i].contains(policy) {
                return Err(fault("contenders.ack", format!("`{policy}` is named twice")));
            }
        }
        Ok(())
    }
}

impl Traffic {
    fn check(&self) -> Result<(), Fault> {
        for (field, value) in [("traffic.connections", self.connections), ("traffic.streams", self.streams)] {
            if value == 0 || value > 1_000 {
                return Err(fault(field, format!("{value} is out of range: 1 to 1000")));
            }
        }
        let belongs = |field: &str, present: bool, to: Workload, word: &str| {
            let shared = to == Workload::Requests && self.workload == Workload::Flows
                || to == Workload::Datagrams && self.workload == Workload::Messages;
            if present && self.workload != to && !shared {
                return Err(fault(field, format!("only `workload = \"{word}\"` has this field")));
            }
            Ok(())
        };
        belongs("traffic.request-size", self.request_size.is_some(), Workload::Requests, "requests")?;
        belongs("traffic.response-size", self.response_size.is_some(), Workload::Requests, "requests")?;
        let warm = self.warm_bytes.is_some() && self.workload == Workload::Flows;
        belongs("traffic.warm-bytes", self.warm_bytes.is_some(), Workload::Requests, "requests")?;
        if warm {
            return Err(fault("traffic.warm-bytes", "a flow has no request before the one that is measured"));
        }
        belongs("traffic.datagram-rate", self.datagram_rate.is_some(), Workload::Datagrams, "datagrams")?;
        belongs("traffic.packet-rate", self.packet_rate.is_some(), Workload::Datagrams, "datagrams")?;
        belongs("traffic.datagram-size", self.datagram_size.is_some(), Workload::Datagrams, "datagrams")?;
        belongs("traffic.video", self.video.is_some(), Workload::Video, "video")?;
        belongs("traffic.page", self.page.is_some(), Workload::Page, "page")?;
        belongs("traffic.feed", self.feed.is_some(), Workload::Feed, "feed")?;
        let is_broadcast = self.webtransport.is_some();
        belongs("traffic.webtransport", is_broadcast, Workload::Webtransport, "webtransport")?;
        let scripted = matches!(self.workload, Workload::Video | Workload::Page | Workload::Feed);
        if scripted && self.direction == Direction::Upload {
            return Err(fault("traffic.direction", "this workload is what clients download"));
        }
        if (scripted || self.workload == Workload::Webtransport) && self.streams != 1 {
            return Err(fault("traffic.streams", "this workload opens a stream for each object by itself"));
        }
        match self.workload {
            Workload::Bulk | Workload::Tunnel => Ok(()),
            Workload::Video => self.video().check(),
            Workload::Page => self.page().check(),
            Workload::Feed => self.feed().check(),
            Workload::Webtransport => self.webtransport().check(),
            Workload::Flows if self.streams != 1 => {
                Err(fault("traffic.streams", "a flow is one request on one stream"))
            }
            Workload::Requests | Workload::Flows => {
                if self.response_size.is_none() {
                    return Err(fault("traffic.response-size", "requests need the size of their response")
                        .hint("add for example `response-size = \"20 kB\"`"));
                }
                range("traffic.request-size", self.request_size(), 1, 1 << 30)?;
                self.warm_bytes.map_or(Ok(()), |bytes| range("traffic.warm-bytes", bytes, 1, 1 << 30))?;
                range("traffic.response-size", self.response_size(), 1, 1 << 30)
            }
            Workload::Datagrams | Workload::Messages => {
                if let Some(rate) = self.packet_rate
                    && (self.datagram_rate.is_some() || rate == 0 || rate > 1_000_000)
                {
                    let message = "takes the place of `datagram-rate` and lies between 1 and 1000000 per second";
                    return Err(fault("traffic.packet-rate", message));
                }
                match self.datagram_rate {
                    None if self.packet_rate.is_some() => {}
                    None => {
                        return Err(fault("traffic.datagram-rate", "datagrams need a rate")
                            .hint("add for example `datagram-rate = \"1 Mbit/s\"`"));
                    }
                    Some(rate) if rate.as_bps() < 1_000 || rate.as_bps() > 10_000_000_000 => {
                        let message = format!("{rate} is out of range: 1 kbit/s to 10 Gbit/s");
                        return Err(fault("traffic.datagram-rate", message));
                    }
                    Some(_) => {}
                }
                let most = if self.workload == Workload::Messages { 60_000 } else { 1_150 };
                range("traffic.datagram-size", self.datagram_size(), 16, most)
            }
        }
    }

    /// The video, with defaults for settings that the scenario leaves out.
    pub fn video(&self) -> VideoTraffic {
        self.video.clone().unwrap_or_default()
    }

    /// The page.
    pub fn page(&self) -> PageTraffic {
        self.page.unwrap_or_default()
    }

    /// The feed.
    pub fn feed(&self) -> FeedTraffic {
        self.feed.unwrap_or_default()
    }

    /// The live broadcast.
    pub fn webtransport(&self) -> BroadcastTraffic {
        self.webtransport.unwrap_or_default()
    }

    /// Bytes of each request.
    pub fn request_size(&self) -> DataSize {
        self.request_size.unwrap_or(DataSize::from_bytes(200))
    }

    /// Bytes of each response; zero for workloads without.
    pub fn response_size(&self) -> DataSize {
        self.response_size.unwrap_or_default()
    }

    /// Interval between a connection's datagrams.
    pub fn datagram_interval(&self) -> Option<Duration> {
        let all = |rate: u32| Duration::from_secs(1) * self.connections / rate.max(1);
        self.packet_rate.map(all).or_else(|| self.datagram_rate.map(|rate| rate.time_for(self.datagram_size())))
    }

    /// Payload of each datagram.
    pub fn datagram_size(&self) -> DataSize {
        self.datagram_size.unwrap_or(DataSize::from_bytes(1_000))
    }
}

fn range(field: &str, size: DataSize, min: u64, max: u64) -> Result<(), Fault> {
    if (min..=max).contains(&size.as_bytes()) {
        return Ok(());
    }
    let (min, max) = (DataSize::from_bytes(min), DataSize::from_bytes(max));
    Err(fault(field, format!("{size} is out of range: {min} to {max}")))
}

/// The link model checks what contradicts itself; what is checked here is whether a QUIC connection could use it.
fn check_link(prefix: &str, link: &LinkConfig) -> Result<(), Fault> {
    let field = |name: &str| format!("{prefix}.{name}");
    if let Some(rate) = link.rate
        && !(1_000..=100_000_000_000).contains(&rate.as_bps())
    {
        return Err(fault(&field("rate"), format!("{rate} is out of range: 1 kbit/s to 100 Gbit/s")));
    }
    let packet = u64::from(link.mtu.unwrap_or(1_500));
    if let Some(bytes) = link.queue.bytes()
        && bytes.as_bytes() < packet
    {
        return Err(fault(&field("queue"), format!("{bytes} has no room for one packet of {packet} bytes"))
            .hint("a queue of one bandwidth-delay product is rate × round-trip time / 8"));
    }
    if link.delay > DELAY_MAX {
        let message =
            format!("{} is more than {}", duration_text::display(link.delay), duration_text::display(DELAY_MAX));
        return Err(fault(&field("delay"), message));
    }
    if link.loss.mean() > 0.9 {
        return Err(fault(&field("loss"), "nothing gets through reliably beyond 90 % loss"));
    }
    if link.corrupt.get() > 0.9 {
        return Err(fault(&field("corrupt"), "nothing gets through reliably beyond 90 % corruption"));
    }
    link.check().map_err(|error| fault(&field(blamed(&error)), error.to_string()))
}

/// The field that an error of the link model is about.
fn blamed(error: &netem::ConfigError) -> &'static str {
    use netem::ConfigError as E;
    match error {
        E::ZeroRate | E::QueueWithoutRate | E::TwoRates => "rate",
        E::RateWithoutQueue | E::ZeroCodel => "queue",
        E::ImpossibleBurst { .. } | E::FrozenChain | E::ImpossibleGroup { .. } => "loss",
        E::TraceNotRead(_) => "rate-trace",
        E::TinyPolicer => "policer",
        E::BadQuantiles => "jitter-quantiles",
        E::BadChange => "changes",
        E::BadOutage => "outages",
        E::ReorderWithoutDelay => "reorder",
        E::NoJitter => "jitter",
        E::BadVaryingRate => "varying-rate",
        E::TinyMtu(_) => "mtu",
    }
}
