//! Back ends of ill will over HTTP/3: the gateway answers, holds little, and serves others.

use http_body_util::BodyExt;
use tiderace::{Connection, SendStream};

use super::{
    Raw, back_end,
    origin::{Origin, Streams, gateway},
};
use crate::site::{full, get, read, text, until, within};

/// Bytes of a back end on a stream.
#[derive(Clone, Copy, Default)]
struct Script {
    once: &'static [u8],
    /// Again and again, as long as somebody takes it.
    again: &'static [u8],
    /// Then the stream ends; otherwise it waits.
    finishes: bool,
}

impl Script {
    async fn say(self, send: &mut SendStream) {
        if send.write_all(self.once).await.is_err() {
            return;
        }
        while !self.again.is_empty() {
            if send.write_all(self.again).await.is_err() {
                return;
            }
        }
        if self.finishes {
            let _ = send.finish();
        }
        let _ = send.stopped().await;
    }
}

/// A case: what is said on the control stream, on the stream of a request, and what a client sees.
struct Case {
    name: &'static str,
    control: Script,
    request: Script,
    /// Opens streams of an unknown type without end.
    opens: bool,
    sees: Sees,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sees {
    Status(u16),
    Broken,
    /// Content that never ends.
    Endless,
}

const HEAD: &[u8] = &[1, 3, 0, 0, 0xd9];

fn cases() -> Vec<Case> {
    let case = |name, once, again, finishes, sees| Case {
        name,
        control: Script::default(),
        request: Script { once, again, finishes },
        opens: false,
        sees,
    };
    let bad = Sees::Status(502);
    vec![
        case("silent", &[], &[], false, Sees::Status(504)),
        case("ended", &[], &[], true, bad),
        // 103 and 100 without end.
        case("hints", &[], &[1, 3, 0, 0, 0xd8], false, bad),
        // Fields of 2^30 bytes, which come.
        case("fields", &[1, 0x80, 0x40, 0, 0], &[b'a'; 1_000], false, bad),
        case("data-first", &[0, 2, b'o', b'k'], &[], false, bad),
        // An index of the static table that does not exist.
        case("qpack", &[1, 4, 0, 0, 0xff, 0x7f], &[], false, bad),
        case("unknown-frames", &[], &[0x21, 0x40, 0x40], false, Sees::Status(504)),
        // A length of 100 bytes, of which 5 come.
        case("short", &[1, 8, 0, 0, 0xd9, 0x54, 3, b'1', b'0', b'0', 0, 5, 1, 2, 3, 4, 5], &[], true, Sees::Broken),
        case("cut-off", &[1, 3, 0, 0, 0xd9, 0, 5, 1], &[], true, Sees::Broken),
        case("endless", HEAD, &[0, 8, 1, 2, 3, 4, 5, 6, 7, 8], false, Sees::Endless),
        // Trailers of 2^30 bytes behind no content.
        case("trailers", &[1, 3, 0, 0, 0xd9, 1, 0x80, 0x40, 0, 0], &[b'a'; 1_000], false, Sees::Broken),
        Case {
            control: Script { once: &[], again: &[7, 1, 0], finishes: false },
            ..case("goaway", &[], &[], false, bad)
        },
        Case { control: Script { once: &[], again: &[], finishes: true }, ..case("control", &[], &[], false, bad) },
        Case {
            // A reserved frame of 2^30 bytes.
            control: Script { once: &[0x21, 0x80, 0x40, 0, 0], again: &[b'a'; 1_000], finishes: false },
            ..case("control-frame", HEAD, &[], true, Sees::Status(200))
        },
        Case { opens: true, ..case("streams", HEAD, &[], true, Sees::Status(200)) },
    ]
}

async fn control(case: &Case, connection: Connection, mut own: SendStream) {
    let opening = async {
        if !case.opens {
            return;
        }
        while let Ok(mut stream) = connection.open_uni().await {
            if stream.write_all(&[0x40, 0x52]).await.is_ok() {
                let _ = stream.write_all(&[7; 1_000]).await;
            }
        }
    };
    tokio::join!(opening, case.control.say(&mut own));
    connection.closed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_back_end_is_a_bad_gateway_and_others_are_served() {
    let good = Origin::start(|_, _| async { http::Response::new(full("ok")) }).await;
    let mut config =
        format!("[[route]]\npath = \"/good\"\nto = \"h3://{}\"\ntls = {{ verify = false }}\n", good.address);
    let mut back_ends = Vec::new();
    for case in cases() {
        let case = std::sync::Arc::new(case);
        let (controls, asked) = (case.clone(), case.clone());
        let back_end = Raw::start(
            move |connection, own| {
                let case = controls.clone();
                async move { control(&case, connection, own).await }
            },
            move |(mut send, mut recv): Streams| {
                let script = asked.request;
                async move {
                    // A request without content has an end.
                    let _ = recv.read_to_end(100_000).await;
                    script.say(&mut send).await;
                }
            },
        )
        .await;
        config += &format!(
            "[[route]]\npath = \"/{}\"\nto = \"h3://{}\"\ntls = {{ verify = false }}\ntimeout = \"{} s\"\nretries = 0\n",
            case.name,
            back_end.address,
            // On a busy machine other answers take their time.
            if case.sees == Sees::Status(504) { 1 } else { 100 }
        );
        back_ends.push((case, back_end));
    }
    let (site, _roots) = gateway("h3-hostile", "", &config);
    let (_endpoint, mut h3) = site.h3().await;
    for (case, _back_end) in &back_ends {
        for _ in 0..3 {
            let answer = within(h3.send(get(&format!("https://localhost/{}", case.name)))).await;
            let sees = match answer {
                Err(_) => Sees::Broken,
                Ok(answer) if answer.status() != 200 => Sees::Status(answer.status().as_u16()),
                Ok(answer) => {
                    let (mut content, mut came) = (answer.into_body(), 0);
                    loop {
                        match within(content.frame()).await {
                            None => break Sees::Status(200),
                            Some(Err(_)) => break Sees::Broken,
                            Some(Ok(frame)) => came += frame.into_data().map_or(0, |data| data.len()),
                        }
                        if came > 1_000_000 {
                            break Sees::Endless;
                        }
                    }
                }
            };
            let log = || read(&site.directory.0.join("access.log")).lines().last().unwrap_or_default().to_owned();
            assert_eq!(sees, case.sees, "{}: {}", case.name, log());
            let held = site.process.status()["memory"]["held"].as_u64().unwrap();
            assert!(held < 4 << 20, "{}: {held}", case.name);
            assert_eq!(text(within(h3.send(get("https://localhost/good"))).await.unwrap()).await, "ok");
        }
    }
    // Nothing of them is left: nobody listens any longer.
    until(|| site.process.status()["back_ends"].as_array().unwrap().iter().all(|one| one["requests"] == 0), true).await;
    assert_eq!(back_end(&site, "protocol"), "h3");
}
