//! `tiderace lab new`: a scenario file from options, or from answers at a terminal.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{BufRead, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use lab::{
    plan::Plan,
    scenario::{QueueSize, Scenario, parse},
};
use units::{Bitrate, DataSize, Probability, duration_text};

use crate::{failure::Failure, stdout::write_out};

/// Create a scenario file, and print the command that runs it.
///
/// Options that are left out take their defaults. At a terminal, the command asks if --rate or --rtt is missing. It checks the file
/// before it writes it. docs/lab.md has all settings of scenario files.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab new
  tiderace lab new train --rate 20M --rtt 50ms --loss 5% --burst 6 --connections 20
  tiderace lab new api --rate 5M --rtt 80ms --loss 1% --workload requests --size 20kB
  tiderace lab new codes --rate 10M --rtt 60ms --loss 3% --workload datagrams --packet-rate 500 \\
      --contender bbr3 --contender bbr3+repair --contender bbr3+rlc:1/5:40")]
pub(super) struct NewArgs {
    /// Name of the scenario; the file is NAME.toml in this directory
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Rate from servers to clients, in bits per second, such as 20M
    #[arg(long, value_name = "RATE")]
    rate: Option<Bitrate>,
    /// Rate from clients to servers [default: the same]
    #[arg(long, value_name = "RATE")]
    up_rate: Option<Bitrate>,
    /// Round-trip time of the empty path, such as 50ms
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    rtt: Option<Duration>,
    /// Packet loss in both directions, such as 1% [default: none]
    #[arg(long, value_name = "SHARE")]
    loss: Option<Probability>,
    /// Mean length of bursts of loss, in packets; 1 is independent loss [default: 1]
    #[arg(long, value_name = "PACKETS")]
    burst: Option<f64>,
    /// Queue of each direction, in bytes or in rate x round trip [default: 1BDP, at least 15kB]
    #[arg(long, value_name = "SIZE")]
    queue: Option<QueueSize>,
    /// Additional delay, drawn for each packet up to this
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    jitter: Option<Duration>,
    /// Connections that share the path [default: 1]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Workload of the connections [default: bulk]
    #[arg(long, value_name = "KIND")]
    workload: Option<Kind>,
    /// Response of each request or flow [default: 20kB]
    #[arg(long, value_name = "SIZE")]
    size: Option<DataSize>,
    /// Datagrams per second, all connections together [default: 500]
    #[arg(long, value_name = "N")]
    packet_rate: Option<u32>,
    /// Clients send the data
    #[arg(long)]
    upload: bool,
    /// Measured time [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    duration: Option<Duration>,
    /// Seeds, each a run of every contender [default: 10]
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Congestion controller, with +repair for forward error correction where the path needs it, or with a code such as
    /// +rlc:1/5:40; may be repeated [default: cubic bbr3 auto auto+repair]
    #[arg(long, value_name = "NAME[+CODE]")]
    contender: Vec<String>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

impl NewArgs {
    /// Datagrams per second that were asked for.
    pub(super) const fn packet_rate(&self) -> Option<u32> {
        self.packet_rate
    }
}

/// Scenario that options make, and the text of its file.
pub(super) struct Text {
    pub(super) text: String,
    pub(super) scenario: Scenario,
}

/// Makes a scenario from options alone.
///
/// # Errors
/// When rate or RTT is missing, or the scenario cannot be run.
pub(super) fn text_of(args: &NewArgs) -> Result<Text, Failure> {
    let (Some(rate), Some(rtt)) = (args.rate, args.rtt) else {
        return Err(Failure::new("a scenario needs --rate and --rtt")
            .hint("for example `tiderace lab new my-path --rate 20M --rtt 50ms --loss 1%`"));
    };
    let answers = given(args, rate, rtt);
    let text = scenario(args, &answers);
    let parsed = parse(&text, &answers.name)?;
    Plan::new(parsed.clone())?;
    Ok(Text { text, scenario: parsed })
}

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Bulk,
    Requests,
    Flows,
    Datagrams,
    Video,
    Page,
    Feed,
    Webtransport,
    Tunnel,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Requests => "requests",
            Self::Flows => "flows",
            Self::Datagrams => "datagrams",
            Self::Video => "video",
            Self::Page => "page",
            Self::Feed => "feed",
            Self::Webtransport => "webtransport",
            Self::Tunnel => "tunnel",
        }
    }
}

/// Answers from which a scenario file is written.
#[derive(Clone, Debug)]
struct Answers {
    name: String,
    rate: Bitrate,
    rtt: Duration,
    loss: Probability,
    burst: f64,
    connections: u32,
    workload: Kind,
    contenders: Vec<String>,
}

pub(super) fn new(args: &NewArgs) -> Result<ExitCode, Failure> {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let answers = match (args.rate, args.rtt) {
        (Some(rate), Some(rtt)) => given(args, rate, rtt),
        _ if terminal => asked(args, &mut std::io::stdin().lock(), &mut std::io::stdout())?,
        _ => {
            return Err(Failure::new("a scenario needs --rate and --rtt")
                .hint("for example `tiderace lab new my-path --rate 20M --rtt 50ms --loss 1%`"));
        }
    };
    let text = scenario(args, &answers);
    let path = PathBuf::from(format!("{}.toml", answers.name));
    // The same checks that `lab run` makes, before there is a file.
    Plan::new(parse(&text, &answers.name)?)?;
    let mut file = create(&path, args.force)?;
    file.write_all(text.as_bytes())
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    write_out(&format!("{} is written. Run it:\n\n  tiderace lab run {0}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn create(path: &std::path::Path, force: bool) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(path).map_err(|error| {
        let failure = Failure::new(format_args!("cannot create {}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => failure.hint("choose another NAME, or replace it with --force"),
            _ => failure,
        }
    })
}

/// Bytes of the shortest queue that is chosen: the bandwidth-delay product of a short path has no room for a burst.
const SHORTEST: u64 = 15_000;

const CONTENDERS: [&str; 4] = ["cubic", "bbr3", "auto", "auto+repair"];

/// The answers that the options give, with the usual values for the rest.
fn given(args: &NewArgs, rate: Bitrate, rtt: Duration) -> Answers {
    let usual = || CONTENDERS.map(str::to_owned).to_vec();
    Answers {
        name: args.name.clone().unwrap_or_else(|| "my-path".to_owned()),
        rate,
        rtt,
        loss: args.loss.unwrap_or(Probability::ZERO),
        burst: args.burst.unwrap_or(1.0),
        connections: args.connections.unwrap_or(1),
        workload: args.workload.unwrap_or(Kind::Bulk),
        contenders: if args.contender.is_empty() { usual() } else { args.contender.clone() },
    }
}

/// Asks for values that the options do not set. An empty line takes the value in brackets.
fn asked(args: &NewArgs, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<Answers, Failure> {
    let mut ask = Asking { input, output };
    let name = match &args.name {
        Some(name) => name.clone(),
        None => ask.until("Name of the scenario", "my-path", |text| Ok::<_, String>(text.to_owned()))?,
    };
    let rate = match args.rate {
        Some(rate) => rate,
        None => ask.until("Rate to the clients", "20M", str::parse)?,
    };
    let rtt = match args.rtt {
        Some(rtt) => rtt,
        None => ask.until("Round-trip time", "50ms", duration_text::parse)?,
    };
    let mut answers = given(args, rate, rtt);
    answers.name = name;
    if args.loss.is_none() {
        answers.loss = ask.until("Packet loss", "1%", str::parse::<Probability>)?;
    }
    if args.burst.is_none() && answers.loss != Probability::ZERO {
        answers.burst = ask.until("Packets lost in a row, on average", "1", str::parse::<f64>)?;
    }
    if args.connections.is_none() {
        answers.connections = ask.until("Connections", "4", str::parse::<u32>)?;
    }
    if args.workload.is_none() {
        let kinds: Vec<&str> = Kind::value_variants().iter().map(|kind| kind.name()).collect();
        let question = format!("What they carry ({})", kinds.join(", "));
        answers.workload = ask.until(&question, "bulk", |text| Kind::from_str(text, true))?;
    }
    if args.contender.is_empty() {
        let split = |text: &str| {
            let names: Vec<String> =
                text.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
            if names.is_empty() { Err("name at least one".to_owned()) } else { Ok(names) }
        };
        answers.contenders = ask.until("Contenders", &CONTENDERS.join(" "), split)?;
    }
    Ok(answers)
}

/// Questions and answers.
struct Asking<'a> {
    input: &'a mut dyn BufRead,
    output: &'a mut dyn Write,
}

impl Asking<'_> {
    /// Asks until the answer can be read.
    fn until<T, E: std::fmt::Display>(
        &mut self,
        question: &str,
        usual: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, Failure> {
        let broken = |error: std::io::Error| Failure::new(format_args!("cannot ask: {error}"));
        loop {
            write!(self.output, "{question} [{usual}]: ").and_then(|()| self.output.flush()).map_err(broken)?;
            let mut line = String::new();
            if self.input.read_line(&mut line).map_err(broken)? == 0 {
                return Err(Failure::new("the answers ended early; nothing is written"));
            }
            let answer = if line.trim().is_empty() { usual } else { line.trim() };
            match read(answer) {
                Ok(value) => return Ok(value),
                Err(error) => writeln!(self.output, "{error}").map_err(broken)?,
            }
        }
    }
}

/// The text of the file.
fn scenario(args: &NewArgs, answers: &Answers) -> String {
    let Answers { rate, rtt, loss, burst, connections, .. } = answers;
    let law = match (loss.get() > 0.0, *burst > 1.0) {
        (false, _) => "\"none\"".to_owned(),
        (true, false) => format!("\"{loss}\""),
        (true, true) => format!("{{ burst = {{ mean = \"{loss}\", length = {burst:?} }} }}"),
    };
    let rtt_text = duration_text::display(*rtt).to_string();
    let traffic = if *connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") };
    let title = format!(
        "{}: {rate}, {rtt_text}, {} loss, {traffic}",
        answers.workload.name(),
        if loss.get() > 0.0 { loss.to_string() } else { "no".to_owned() }
    );
    let mut out = String::new();
    let name = &answers.name;
    let _ = write!(
        out,
        "# Run it: tiderace lab run {name}.toml\nname = {}\ntitle = {}\nabout = \"\"\"\nMade by `tiderace lab new`.\n\"\"\"\n",
        quoted(name),
        quoted(&title)
    );
    let queue = |rate: Bitrate| match args.queue {
        Some(queue) => queue.in_bytes(rate, *rtt).as_bytes(),
        None => QueueSize::Bdp(1.0).in_bytes(rate, *rtt).as_bytes().max(SHORTEST),
    };
    for (table, note, rate) in
        [("down", "from servers to clients", *rate), ("up", "from clients to servers", args.up_rate.unwrap_or(*rate))]
    {
        let bytes = queue(rate);
        let delay = duration_text::display(*rtt / 2);
        let _ = write!(
            out,
            "\n[path.{table}]  # {note}\nrate = \"{rate}\"\nqueue = \"{bytes} B\"\ndelay = \"{delay}\"  # one way\nloss = {law}\n"
        );
        if let Some(jitter) = args.jitter {
            let _ = writeln!(out, "jitter = \"{}\"", duration_text::display(jitter));
        }
    }
    let _ = write!(out, "\n[traffic]\nworkload = \"{}\"\nconnections = {connections}\n", answers.workload.name());
    if args.upload {
        out += "direction = \"upload\"\n";
    }
    if matches!(answers.workload, Kind::Requests | Kind::Flows) {
        let size = args.size.map_or_else(|| "20 kB".to_owned(), |size| format!("{} B", size.as_bytes()));
        let _ = writeln!(out, "response-size = \"{size}\"");
    }
    if answers.workload == Kind::Datagrams {
        let _ = writeln!(out, "packet-rate = {}", args.packet_rate.unwrap_or(500));
    }
    // Connections that start together move in step. Flows and pages come and go during all of the run.
    let duration = args.duration.unwrap_or(Duration::from_secs(20));
    let comes_and_goes = matches!(answers.workload, Kind::Flows | Kind::Page);
    let spread = if comes_and_goes { duration / 2 } else { Duration::from_millis(500).min(duration) };
    if *connections > 1 {
        let _ = writeln!(out, "start-spread = \"{}\"", duration_text::display(spread));
    }
    let warmup = if comes_and_goes { Duration::ZERO } else { Duration::from_secs(4).max(*rtt * 20) };
    let _ = write!(
        out,
        "\n[run]\nwarmup = \"{}\"  # no figure counts it\nduration = \"{}\"\nseeds = {}\n",
        duration_text::display(warmup),
        duration_text::display(duration),
        args.seeds.unwrap_or(10)
    );
    out += &contenders(&answers.contenders);
    out
}

/// The table of contenders: controllers alone, and profiles for those with repair.
fn contenders(names: &[String]) -> String {
    let (mut plain, mut profiles) = (Vec::new(), Vec::new());
    for name in names {
        match name.split_once('+') {
            None => plain.push(quoted(name)),
            Some((controller, code)) => {
                let code = if code == "repair" { "auto" } else { code };
                profiles.push(format!(
                    "    {{ name = {}, congestion = {}, fec = {} }},\n",
                    quoted(name),
                    quoted(controller),
                    quoted(code)
                ));
            }
        }
    }
    let mut out = format!("\n[contenders]\ncongestion = [{}]\n", plain.join(", "));
    if !profiles.is_empty() {
        let _ = writeln!(out, "profiles = [\n{}]", profiles.concat());
    }
    out
}

/// A string of TOML; JSON's escapes are among those of TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> NewArgs {
        NewArgs::try_parse_from([&["new"], options].concat()).unwrap()
    }

    fn made(options: &[&str]) -> lab::scenario::Scenario {
        let args = args(options);
        let text = scenario(&args, &given(&args, args.rate.unwrap(), args.rtt.unwrap()));
        let scenario = parse(&text, "new").unwrap_or_else(|error| panic!("{error}\n{text}"));
        Plan::new(scenario.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        scenario
    }

    #[test]
    fn options_make_a_scenario() {
        let scenario = made(&[
            "train",
            "--rate",
            "20M",
            "--rtt",
            "50ms",
            "--loss",
            "5%",
            "--connections",
            "20",
            "--contender",
            "cubic",
            "--contender",
            "bbr3",
            "--contender",
            "bbr3+rlc:1/5:40",
        ]);
        let link = &scenario.path.down;
        assert_eq!((scenario.name.as_str(), link.rate), ("train", Some(Bitrate::from_mbps(20))));
        assert_eq!((link.loss.mean(), scenario.path.base_rtt()), (0.05, Duration::from_millis(50)));
        assert_eq!((link.queue.bytes(), scenario.traffic.connections), (Some(DataSize::from_bytes(125_000)), 20));
        let contenders = lab::roster::contenders(&scenario.contenders).unwrap();
        let names: Vec<String> = contenders.iter().map(|contender| contender.identity().name).collect();
        assert_eq!(names, ["tiderace cubic", "tiderace bbr3", "tiderace bbr3+rlc:1/5:40"]);
    }

    #[test]
    fn every_workload_and_every_corner_is_a_scenario() {
        for kind in Kind::value_variants() {
            let base = ["x", "--rate", "1500kbit/s", "--rtt", "600ms", "--workload", kind.name()];
            assert_eq!(made(&base).contenders.profiles.len(), 1, "the usual contenders");
            made(&[&base[..], &["--loss", "0.5%", "--burst", "6", "--jitter", "3ms", "--connections", "7"]].concat());
            made(&[&base[..], &["--duration", "1s", "--seeds", "2", "--queue", "20kB", "--up-rate", "64k"]].concat());
        }
        assert_eq!(
            made(&["x", "--rate", "8M", "--rtt", "1ms"]).path.down.queue.bytes().map(DataSize::as_bytes),
            Some(15_000)
        );
        assert_eq!(made(&["x", "--rate", "1G", "--rtt", "100us", "--upload"]).path.base_rtt().as_micros(), 100);
    }

    #[test]
    fn questions_are_asked_until_they_are_answered() {
        let mut output = Vec::new();
        let mut input = &b"\n8M\nsoon\n80ms\n2%\n3\n\nrequests\ncubic, bbr3+repair\n"[..];
        let answers = asked(&args(&["--seeds", "6"]), &mut input, &mut output).unwrap();
        assert_eq!((answers.name.as_str(), answers.rate), ("my-path", Bitrate::from_mbps(8)));
        assert_eq!((answers.rtt.as_millis(), answers.loss.get(), answers.connections), (80, 0.02, 4));
        assert_eq!((answers.workload, answers.burst), (Kind::Requests, 3.0));
        assert_eq!(answers.contenders, ["cubic", "bbr3+repair"]);
        assert_eq!(String::from_utf8(output).unwrap().matches("Round-trip time [50ms]: ").count(), 2);
        assert!(asked(&args(&[]), &mut &b"name\n"[..], &mut Vec::new()).is_err(), "the answers end");
    }
}
