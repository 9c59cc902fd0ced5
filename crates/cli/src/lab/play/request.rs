//! Requests of the page: names and values of a query, read as the options of `tiderace lab new`, within limits.

use std::time::Duration;

use clap::Parser as _;
use lab::{contender::Contender, scenario::Scenario};
use url::form_urlencoded;

use super::super::new::{NewArgs, Text, text_of};

/// Options that a query may have; `seed` and `upload` come beside them.
const OPTIONS: [&str; 12] = [
    "rate",
    "rtt",
    "loss",
    "burst",
    "queue",
    "jitter",
    "connections",
    "workload",
    "size",
    "packet-rate",
    "duration",
    "contender",
];
/// Bits that may pass for each contender: rate times the time of the run.
const WORK: f64 = 2e9;
/// Contenders that a picture has room for.
const CONTENDERS: usize = 4;
const CONNECTIONS: u32 = 50;
const LONGEST_RTT: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes of the longest queue.
const QUEUE: u64 = 20_000_000;
const PACKET_RATE: u32 = 5_000;

/// Scenario that was asked for, ready to run.
pub(super) struct Asked {
    pub(super) text: String,
    pub(super) scenario: Scenario,
    pub(super) contenders: Vec<Box<dyn Contender>>,
}

impl Asked {
    /// Reads a query.
    ///
    /// # Errors
    /// Fault, in words for the page.
    pub(super) fn read(query: &str) -> Result<Self, String> {
        let (mut options, mut seed) = (vec!["new".to_owned(), "play".to_owned()], 1);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "seed" => seed = value.parse::<u32>().map_err(|_| format!("`{value}` is no seed"))?,
                "upload" if value == "1" => options.push("--upload".to_owned()),
                "upload" => {}
                name if OPTIONS.contains(&name) => options.push(format!("--{name}={value}")),
                name => return Err(format!("there is no setting `{name}`")),
            }
        }
        options.push("--seeds=10".to_owned());
        let args = NewArgs::try_parse_from(options).map_err(|error| said(&error))?;
        let Text { text, scenario } = text_of(&args).map_err(|failure| failure.message().to_owned())?;
        within(&args, &scenario)?;
        let contenders = lab::roster::contenders(&scenario.contenders).map_err(|fault| fault.message)?;
        if contenders.len() > CONTENDERS {
            return Err(format!("the page has room for {CONTENDERS} contenders"));
        }
        let mut scenario = scenario;
        (scenario.run.seed, scenario.run.seeds) = (u64::from(seed), 1);
        Ok(Self { text, scenario, contenders })
    }
}

/// The first line of a complaint about an option.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Refuses what would keep this machine busy.
fn within(args: &NewArgs, scenario: &Scenario) -> Result<(), String> {
    let (path, traffic) = (&scenario.path, &scenario.traffic);
    let seconds = scenario.run.end().as_secs_f64();
    let rate = path.down.mean_rate().map_or(f64::INFINITY, |rate| rate.as_bps() as f64);
    if traffic.connections > CONNECTIONS {
        return Err(format!("{} connections; the page runs {CONNECTIONS} at most", traffic.connections));
    }
    if path.base_rtt() > LONGEST_RTT {
        return Err("an RTT of more than 2 s".to_owned());
    }
    if scenario.run.duration > LONGEST {
        return Err("more than 60 s are measured".to_owned());
    }
    if path.down.queue.bytes().is_none_or(|bytes| bytes.as_bytes() > QUEUE) {
        return Err("a queue of more than 20 MB".to_owned());
    }
    if args.packet_rate().is_some_and(|rate| rate > PACKET_RATE) {
        return Err(format!("more than {PACKET_RATE} datagrams per second"));
    }
    if rate * seconds > WORK {
        let fits = WORK / rate;
        return Err(format!(
            "{seconds:.0} s at {:.0} Mbit/s are too much for the page ({fits:.0} s would do, the start included): measure a shorter time, or use \
             `tiderace lab run`",
            rate / 1e6
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str =
        "rate=20M&rtt=50ms&loss=1%25&queue=1BDP&connections=4&duration=5s&contender=cubic&contender=auto%2Brepair";

    fn wrong(query: &str) -> String {
        Asked::read(query).err().unwrap_or_else(|| panic!("{query} is taken"))
    }

    #[test]
    fn a_query_is_a_scenario() {
        let asked = Asked::read(&format!("{USUAL}&seed=7")).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((asked.scenario.run.seed, asked.scenario.run.seeds, asked.contenders.len()), (7, 1, 2));
        // The file decides with many seeds.
        let file = lab::scenario::parse(&asked.text, "play").unwrap();
        assert_eq!((file.run.seeds, file.traffic.connections), (10, 4));
        assert_eq!(file.path, asked.scenario.path);
    }

    #[test]
    fn what_would_keep_the_machine_busy_is_refused() {
        let with = |more: &str| wrong(&format!("{USUAL}&{more}"));
        assert!(wrong("rate=1G&rtt=50ms").contains("too much for the page"));
        assert!(wrong(&USUAL.replace("connections=4", "connections=51")).contains("50 at most"));
        assert!(wrong(&USUAL.replace("rtt=50ms", "rtt=3s")).contains("RTT"));
        assert!(wrong(&USUAL.replace("duration=5s", "duration=61s")).contains("60 s"));
        assert!(wrong(&USUAL.replace("1BDP", "21MB")).contains("queue"));
        assert!(with("workload=datagrams&packet-rate=5001").contains("datagrams"));
        assert!(with("contender=bbr3&contender=bbr1&contender=bbr2").contains("room for 4"));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        assert!(wrong("rate=20M").contains("--rate and --rtt"));
        assert!(wrong("rate=soon&rtt=50ms").contains("soon"));
        assert!(wrong("rate=20M&rtt=50ms&contender=best").contains("best"));
        assert!(wrong("rate=20M&rtt=50ms&force=1").contains("`force`"));
        assert!(wrong("rate=20M&rtt=50ms&seed=-1").contains("-1"));
        assert!(wrong("rate=20M&rtt=50ms&rate=30M").contains("rate"));
    }
}
