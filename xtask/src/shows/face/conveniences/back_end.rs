//! Back end of the gateways that are compared: answers with what it was asked.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};

/// Time that a request may be held.
const PATIENCE: Duration = Duration::from_secs(60);
/// Content of `/page` and `/picture`: large enough to be compressed.
pub(super) const LINE: &str = "<p>a line of text that comes again and again</p>\n";
/// Lines of it.
pub(super) const LINES: usize = 200;

/// Requests that wait for their answer at `/hold`.
#[derive(Debug, Default)]
struct Held {
    count: Mutex<(usize, bool)>,
    changed: Condvar,
}

/// HTTP/1.1 server that mirrors requests. Its thread ends with the program.
#[derive(Debug)]
pub(super) struct BackEnd {
    pub(super) port: u16,
    held: Arc<Held>,
}

impl BackEnd {
    /// Starts one that calls itself by this name.
    pub(super) fn start(name: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let held = Arc::new(Held::default());
        let shared = held.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A gateway that goes away leaves nothing to do.
                std::thread::spawn(move || _ = serve(stream, name, &shared));
            }
        });
        Ok(Self { port, held })
    }

    /// Waits until a request is held.
    pub(super) fn holds(&self) -> Result<bool> {
        let count = self.held.count.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.held.changed.wait_timeout_while(count, Duration::from_millis(50), |count| count.0 == 0);
        Ok(wait.map_err(|_| anyhow::anyhow!("the back end has panicked"))?.0.0 > 0)
    }

    /// Answers what is held, and holds nothing from here on or, with `false`, holds again.
    pub(super) fn release(&self, released: bool) {
        self.held.count.lock().unwrap_or_else(PoisonError::into_inner).1 = released;
        self.held.changed.notify_all();
    }
}

/// Request as it came.
struct Asked {
    method: String,
    target: String,
    /// Names in lower case.
    fields: Vec<(String, String)>,
}

fn read(reader: &mut BufReader<TcpStream>) -> Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "a header without its end");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = fields.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let mut content = vec![0; usize::min(length.unwrap_or(0), 1 << 20)];
    reader.read_exact(&mut content)?;
    Ok(Some(Asked { method, target, fields }))
}

fn serve(mut stream: TcpStream, name: &str, held: &Held) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(asked) = read(&mut reader)? {
        let path = asked.target.split('?').next().unwrap_or_default();
        if path == "/hold" {
            hold(held);
        }
        let (kind, further, content) = match path {
            "/page" => ("text/html", "", LINE.repeat(LINES)),
            "/picture" => ("image/png", "", LINE.repeat(LINES)),
            "/short" => ("text/html", "", LINE.to_owned()),
            "/chatty" => ("text/plain", "x-powered-by: secret/1.0\r\nx-frame-options: ALLOWALL\r\n", mirrored(&asked)),
            _ => ("text/plain", "", mirrored(&asked)),
        };
        let content = if asked.method == "HEAD" { String::new() } else { content };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nx-back-end: {name}\r\n{further}content-length: {}\r\n\r\n{content}",
            content.len()
        )?;
    }
    Ok(())
}

fn hold(held: &Held) {
    let mut count = held.count.lock().unwrap_or_else(PoisonError::into_inner);
    count.0 += 1;
    held.changed.notify_all();
    let wait = held.changed.wait_timeout_while(count, PATIENCE, |count| !count.1);
    wait.unwrap_or_else(PoisonError::into_inner).0.0 -= 1;
}

/// Lines of the request: its target, then its fields.
fn mirrored(asked: &Asked) -> String {
    let fields = asked.fields.iter().map(|(name, value)| format!("{name}: {value}\n"));
    format!("{} {}\n{}", asked.method, asked.target, fields.collect::<String>())
}
