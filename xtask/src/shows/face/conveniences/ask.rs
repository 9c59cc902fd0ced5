//! Requests to a gateway by programs of users, and what is observed of the answers.

use std::{collections::BTreeSet, fmt, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::back_end::BackEnd;
use crate::shows::Context;

const LIMIT: Duration = Duration::from_secs(60);

/// Version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// HTTP/1.1 in the clear, at the port for redirections.
    Plain,
    /// HTTP/1.1 over TLS.
    Http1,
    Http2,
    /// With `tiderace get`, at both gateways.
    Http3,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "HTTP",
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        })
    }
}

/// Part of an answer, or of what the back end has seen of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `refused` where there is none.
    Status,
    /// Field of the answer; `none` where there is none.
    Header(&'static str),
    /// Content, without its coding.
    Content,
    /// First line of content that the back end has mirrored: method and target.
    Target,
    /// Field of the request that reached the back end.
    Received(&'static str),
    /// Statuses of the answers in their order.
    Statuses,
    /// Number of back ends that have answered.
    BackEnds,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Header(name) => write!(f, "{name}"),
            Self::Content => f.write_str("content"),
            Self::Target => f.write_str("target at the back end"),
            Self::Received(name) => write!(f, "{name} at the back end"),
            Self::Statuses => f.write_str("statuses"),
            Self::BackEnds => f.write_str("back ends that answer"),
        }
    }
}

/// Request, or several that are equal.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) target: &'static str,
    pub(super) host: Option<&'static str>,
    pub(super) fields: Vec<&'static str>,
    /// Coding that is accepted, and undone.
    pub(super) coding: Option<&'static str>,
    /// Show the certificate of a client.
    pub(super) certificate: bool,
    pub(super) times: usize,
    /// Keep cookies from one to the next.
    pub(super) jar: bool,
    /// Ask while a back end holds another request.
    pub(super) beside_held: bool,
}

/// Gateway to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) name: &'a str,
    pub(super) port: u16,
    pub(super) plain: u16,
}

/// Answer as a user sees it.
#[derive(Debug, Default)]
struct Answer {
    status: String,
    fields: Vec<(String, String)>,
    content: String,
}

impl Answer {
    /// Reads header and content as curl and `tiderace get` print them with `-i`.
    fn read(printed: &str) -> Self {
        let mut answer = Self::default();
        let mut rest = printed;
        while let Some((line, after)) = rest.split_once('\n') {
            rest = after;
            let line = line.trim_end();
            if let Some(status) = line.strip_prefix("HTTP/") {
                answer.status = status.split_whitespace().nth(1).unwrap_or_default().to_owned();
            } else if let Some((name, value)) = line.split_once(':') {
                answer.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if line.is_empty() {
                break;
            }
        }
        rest.clone_into(&mut answer.content);
        if answer.status.is_empty() {
            "refused".clone_into(&mut answer.status);
        }
        answer
    }

    fn field(&self, name: &str) -> String {
        let values: Vec<&str> =
            self.fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect();
        if values.is_empty() { "none".to_owned() } else { values.join(" | ") }
    }
}

/// Answers to one [`Ask`].
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<Answer>);

impl Answers {
    /// A part of the first answer, or of all. Ports become words, because each gateway has others.
    pub(super) fn part(&self, part: Part, place: Place<'_>) -> String {
        let Some(first) = self.0.first() else { return "no answer".to_owned() };
        let text = match part {
            Part::Status => first.status.clone(),
            Part::Header(name) => first.field(name),
            Part::Content => first.content.clone(),
            Part::Target => first.content.lines().next().unwrap_or_default().to_owned(),
            Part::Received(name) => {
                let mirrored = format!("HTTP/1.1 200\n{}\n\n", first.content.split_once('\n').unwrap_or_default().1);
                Answer::read(&mirrored).field(name)
            }
            Part::Statuses => self.0.iter().map(|answer| answer.status.as_str()).collect::<Vec<_>>().join(" "),
            Part::BackEnds => {
                let names: BTreeSet<String> = self.0.iter().map(|answer| answer.field("x-back-end")).collect();
                names.len().to_string()
            }
        };
        text.replace(&place.port.to_string(), "PORT").replace(&place.plain.to_string(), "PLAIN")
    }
}

/// Asks a gateway. `program` is ours, for HTTP/3.
pub(super) fn ask(
    context: &Context,
    (scratch, program): (&Path, &Path),
    place: Place<'_>,
    version: Version,
    ask: &Ask,
    back_ends: &[BackEnd],
) -> Result<Answers> {
    let command =
        || if version == Version::Http3 { get(program, place, ask) } else { curl(scratch, place, version, ask) };
    let run = |command: &mut Command| -> Result<Answer> {
        let name = format!("face-conveniences-{}-ask", place.name);
        let ended = context.commands.run(&name, command.current_dir(scratch), LIMIT)?;
        Ok(Answer::read(&ended.stdout))
    };
    let _ = std::fs::remove_file(scratch.join("jar"));
    if !ask.beside_held {
        return Ok(Answers((0..ask.times.max(1)).map(|_| run(&mut command())).collect::<Result<_>>()?));
    }
    let mut holding = if version == Version::Http3 {
        get(program, place, &Ask { target: "/hold", ..ask.clone() })
    } else {
        curl(scratch, place, version, &Ask { target: "/hold", ..ask.clone() })
    };
    for back_end in back_ends {
        back_end.release(false);
    }
    let held = context.commands.start(&format!("face-conveniences-{}-held", place.name), &mut holding)?;
    // Which one it is depends on the gateway.
    let begun = std::time::Instant::now();
    while !back_ends.iter().map(BackEnd::holds).collect::<Result<Vec<_>>>()?.contains(&true) {
        anyhow::ensure!(begun.elapsed() < LIMIT, "no back end holds a request");
    }
    let answers = (0..ask.times.max(1)).map(|_| run(&mut command())).collect::<Result<_>>();
    for back_end in back_ends {
        back_end.release(true);
    }
    drop(held);
    Ok(Answers(answers?))
}

fn host(ask: &Ask) -> &'static str {
    ask.host.unwrap_or("localhost")
}

fn curl(scratch: &Path, place: Place<'_>, version: Version, ask: &Ask) -> Command {
    let mut command = Command::new("curl");
    let (scheme, port) = if version == Version::Plain { ("http", place.plain) } else { ("https", place.port) };
    command.args(["--silent", "--include", "--insecure", "--max-time", "30", "--noproxy", "*"]);
    command.arg(if version == Version::Http2 { "--http2" } else { "--http1.1" });
    command.arg("--resolve").arg(format!("{}:{port}:127.0.0.1", host(ask)));
    match ask.method {
        "HEAD" => _ = command.arg("--head"),
        method => _ = command.args(["--request", method]),
    }
    if let Some(coding) = ask.coding {
        command.args(["--compressed", "-H", &format!("accept-encoding: {coding}")]);
    }
    for field in &ask.fields {
        command.args(["-H", field]);
    }
    if ask.certificate {
        command.args(["--cert", "client.pem", "--key", "client-key.pem"]);
    }
    if ask.jar {
        command.args(["--cookie", "jar", "--cookie-jar", "jar"]);
    }
    command.arg(format!("{scheme}://{}:{port}{}", host(ask), ask.target)).current_dir(scratch);
    command
}

fn get(program: &Path, place: Place<'_>, ask: &Ask) -> Command {
    let mut command = Command::new(program);
    command.args(["get", "--http3", "--silent", "--include", "--insecure", "--resolve"]);
    command.arg(format!("{}:{}:127.0.0.1", host(ask), place.port));
    match ask.method {
        "HEAD" => _ = command.arg("--head"),
        method => _ = command.args(["--request", method]),
    }
    if let Some(coding) = ask.coding {
        command.args(["--compressed", "-H", &format!("accept-encoding: {coding}")]);
    }
    for field in &ask.fields {
        command.args(["-H", field]);
    }
    command.arg(format!("https://{}:{}{}", host(ask), place.port, ask.target));
    command
}

/// Waits until a gateway answers over TCP.
pub(super) fn ready(place: Place<'_>) -> Result<()> {
    crate::shows::edge_servers::wait(place.port).with_context(|| format!("{} does not start", place.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_are_printed() {
        let place = Place { name: "ours", port: 4433, plain: 8080 };
        let curl =
            "HTTP/2 301 \r\nlocation: https://localhost:4433/a\r\nVary: a\r\nvary: b\r\n\r\nGET /x\nx-site: main\n";
        let answers = Answers(vec![Answer::read(curl), Answer::read("")]);
        let part = |part| answers.part(part, place);
        assert_eq!(part(Part::Status), "301");
        assert_eq!(part(Part::Statuses), "301 refused");
        assert_eq!(part(Part::Header("location")), "https://localhost:PORT/a");
        assert_eq!(part(Part::Header("vary")), "a | b");
        assert_eq!(part(Part::Header("etag")), "none");
        assert_eq!(part(Part::Target), "GET /x");
        assert_eq!(part(Part::Received("x-site")), "main");
        assert_eq!(part(Part::Received("cookie")), "none");
        assert_eq!(Answers::default().part(Part::Status, place), "no answer");
    }
}
