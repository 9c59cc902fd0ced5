//! A real Redis behind a gateway in stream mode, and our client in front: its protocol over QUIC streams.

mod gateway;
mod scratch;

use std::time::Duration;

use client::{
    Route, Settings, Trust,
    private::{Channel, PrivateClient},
};

use gateway::{Gateway, redis};
use scratch::Scratch;

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Streams at the same time, each a connection of Redis.
const STREAMS: u32 = 100;

/// A command of Redis as it is sent.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(*word);
        out.extend(b"\r\n");
    }
    out
}

/// Sends these commands on a stream of their own, and returns the answers.
async fn ask(channel: &Channel, commands: &[Vec<u8>]) -> Vec<u8> {
    let (mut send, mut recv) = channel.open_bi().await.unwrap();
    send.write_chunk(commands.concat().into()).await.unwrap();
    let mut answer = Vec::new();
    // Redis closes when it is told to; the end of what is sent would make it forget its answers.
    send.write_chunk(command(&[b"QUIT"]).into()).await.unwrap();
    while let Some(part) = recv.read_chunk(65_536).await.unwrap() {
        answer.extend_from_slice(&part);
    }
    send.finish().unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_redis_speaks_over_quic() {
    let Some((_redis, port)) = redis() else {
        println!("not measured: there is no redis-server");
        return;
    };
    let folder = Scratch::new("redis");
    let made = folder.certificate("127.0.0.1");
    let file = folder.0.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n[[stream]]\nalpn = \"redis\"\nqmux = \"redis-qx\"\n\
         to = \"tcp://127.0.0.1:{port}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let gateway = Gateway::start(&file);
    let settings =
        Settings { trust: Trust::Pem(made.cert.pem().into_bytes()), head_start: LIMIT, ..Settings::default() };
    let client = PrivateClient::new(&settings, b"redis", b"redis-qx").unwrap();
    let channel = client.connect("127.0.0.1", gateway.address.port(), &Route::default()).await.unwrap().channel;
    assert_eq!(channel.protocol(), "quic");
    let large: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ask(&channel, &[command(&[b"SET", b"large", &large])]).await, b"+OK\r\n+OK\r\n");
    let expected = [format!("${}\r\n", large.len()).as_bytes(), &large, b"\r\n+OK\r\n"].concat();
    let answer = ask(&channel, &[command(&[b"GET", b"large"])]).await;
    let right = answer.iter().zip(&expected).take_while(|(got, sent)| got == sent).count();
    println!("measured bytes of a large answer that came back: {right}");
    println!("measured bytes of a large answer: {}", expected.len());
    let mut tasks = Vec::new();
    for number in 0..STREAMS {
        let channel = channel.clone();
        tasks.push(tokio::spawn(async move {
            ask(&channel, &[command(&[b"INCR", b"count"]), command(&[b"ECHO", format!("{number}").as_bytes()])]).await
        }));
    }
    let mut own = 0;
    for (number, task) in tasks.into_iter().enumerate() {
        let answer = String::from_utf8(tokio::time::timeout(LIMIT, task).await.unwrap().unwrap()).unwrap();
        let text = number.to_string();
        own += u32::from(answer.ends_with(&format!("${}\r\n{text}\r\n+OK\r\n", text.len())));
    }
    println!("measured streams that got their own answers: {own}");
    let count = String::from_utf8(ask(&channel, &[command(&[b"GET", b"count"])]).await).unwrap();
    println!("measured commands that Redis counted: {}", count.split("\r\n").nth(1).unwrap());
    assert_eq!((right, answer.len()), (expected.len(), expected.len()), "the value comes back");
    assert_eq!((own, count.as_str()), (STREAMS, "$3\r\n100\r\n+OK\r\n"));
}
