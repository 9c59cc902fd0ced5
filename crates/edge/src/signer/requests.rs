//! Requests of a gateway, and their answers.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use rustls::SignatureScheme;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_rustls::server::TlsStream;

use super::{
    counters::Counters,
    state::{Current, PrivateKey, Shared},
    token::{Operation, TokenKey},
};
use crate::remote_signer::protocol::{Answer, Keys, MAX_FRAME, Request, is_handshake, next_frame};

/// Requests that one task signs one after the other.
const BATCH: usize = 8;

/// Answers the requests of a connection until the gateway closes it.
pub(super) async fn serve(stream: TlsStream<TcpStream>, current: &Current, shared: &Arc<Shared>) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let mut hello = Vec::new();
    Keys(current.keys.keys().copied().collect()).encode(&mut hello);
    // Bounded by the permits of requests: each answer has that of its request.
    let (answers, written) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(current.waiting));
    let writing = tokio::spawn(write(writer, hello, written));
    let read = read(reader, shared, &permits, &answers).await;
    drop(answers);
    if read.is_ok() {
        // What was asked before the gateway closed is answered.
        let _ = writing.await;
    } else {
        writing.abort();
    }
    read
}

/// Way of answers to the connection, with the permits of their requests.
type Answers = mpsc::UnboundedSender<(Vec<u8>, OwnedSemaphorePermit)>;

async fn read(
    mut reader: ReadHalf<TlsStream<TcpStream>>,
    shared: &Arc<Shared>,
    permits: &Arc<Semaphore>,
    answers: &Answers,
) -> io::Result<()> {
    let mut input = Vec::new();
    let most = BATCH.min(permits.available_permits());
    loop {
        if reader.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let malformed = |error| {
            shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
            io::Error::other(error)
        };
        let (mut taken, mut batch) = (0, Vec::new());
        loop {
            let frame = next_frame(&input[taken..], MAX_FRAME).map_err(malformed)?;
            if let Some((content, len)) = frame {
                batch.push(Request::decode(content).map_err(malformed)?);
                taken += len;
            }
            let is_last = frame.is_none();
            if batch.len() == most || is_last && !batch.is_empty() {
                let requests = std::mem::take(&mut batch);
                let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
                let Ok(permit) = permits.clone().acquire_many_owned(count).await else { return Ok(()) };
                let (shared, answers) = (shared.clone(), answers.clone());
                tokio::spawn(async move { answer_all(&requests, &shared, permit, &answers) });
            }
            if is_last {
                break;
            }
        }
        input.drain(..taken);
    }
}

/// Answers requests. Signatures of a token are made apart: a slow device delays no other key.
fn answer_all(requests: &[Request], shared: &Arc<Shared>, mut permit: OwnedSemaphorePermit, answers: &Answers) {
    let current = shared.current();
    let mut out = Vec::new();
    for request in requests {
        match answer(request, &current) {
            Answered::Now(answer) => write_answer(request.number, &answer, &shared.counters, &mut out),
            Answered::ByToken(key, operation) => {
                let Some(permit) = permit.split(1) else { continue };
                let (number, shared, answers) = (request.number, shared.clone(), answers.clone());
                tokio::spawn(async move {
                    let answer = key.sign(operation).await.map_or(Answer::Failed, Answer::Signature);
                    let mut out = Vec::new();
                    write_answer(number, &answer, &shared.counters, &mut out);
                    // The connection may be gone.
                    let _ = answers.send((out, permit));
                });
            }
        }
    }
    if !out.is_empty() {
        let _ = answers.send((out, permit));
    }
}

fn write_answer(number: u32, answer: &Answer, counters: &Counters, out: &mut Vec<u8>) {
    let counter = match answer {
        Answer::Signature(_) => &counters.signed,
        Answer::UnknownKey => &counters.unknown_key,
        Answer::Refused => &counters.refused,
        Answer::Failed => &counters.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    answer.encode(number, out);
}

enum Answered {
    Now(Answer),
    ByToken(Arc<TokenKey>, Operation),
}

fn answer(request: &Request, current: &Current) -> Answered {
    let Some(key) = current.keys.get(&request.key) else { return Answered::Now(Answer::UnknownKey) };
    if !is_handshake(&request.message) {
        return Answered::Now(Answer::Refused);
    }
    let scheme = SignatureScheme::from(request.scheme);
    match key {
        PrivateKey::Here(key) => {
            let signer = key.key.choose_scheme(&[scheme]);
            let signature = signer.and_then(|signer| signer.sign(&request.message).ok());
            Answered::Now(signature.map_or(Answer::Refused, Answer::Signature))
        }
        PrivateKey::InToken(key) => match key.operation(scheme, &request.message) {
            Some(operation) => Answered::ByToken(key.clone(), operation),
            None => Answered::Now(Answer::Refused),
        },
    }
}

/// Writes what is ready together.
async fn write(
    mut writer: WriteHalf<TlsStream<TcpStream>>,
    hello: Vec<u8>,
    mut answers: mpsc::UnboundedReceiver<(Vec<u8>, OwnedSemaphorePermit)>,
) -> io::Result<()> {
    writer.write_all(&hello).await?;
    writer.flush().await?;
    while let Some((mut out, permit)) = answers.recv().await {
        let mut permits = vec![permit];
        while let Ok((more, permit)) = answers.try_recv() {
            out.extend(more);
            permits.push(permit);
        }
        writer.write_all(&out).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rustls::{ServerConfig, sign::CertifiedKey};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{
        certificate::provider,
        remote_signer::{key_id, protocol::KeyId},
    };

    #[test]
    fn only_handshakes_with_a_known_key_are_signed() {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let certified = CertifiedKey::from_der(vec![made.cert.der().clone()], key, provider()).unwrap();
        let id = key_id(made.cert.der()).unwrap();
        let own = Arc::new(rustls::sign::SingleCertAndKey::from(certified.clone()));
        let tls =
            ServerConfig::builder_with_provider(provider().clone()).with_safe_default_protocol_versions().unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls.with_no_client_auth().with_cert_resolver(own)));
        let keys = HashMap::from([(id, PrivateKey::Here(Arc::new(certified)))]);
        let current = Current { keys, token: None, tls, connections: 1, waiting: 1 };
        let message = [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[7; 32]].concat();
        let good = Request { number: 1, key: id, scheme: SignatureScheme::ECDSA_NISTP256_SHA256.into(), message };
        let answer = |request: &Request| match super::answer(request, &current) {
            Answered::Now(answer) => answer,
            Answered::ByToken(..) => panic!("there is no token"),
        };
        let Answer::Signature(signature) = answer(&good) else { panic!("not signed") };
        let verified = {
            use x509_parser::prelude::{FromDer, X509Certificate};
            let (_, parsed) = X509Certificate::from_der(made.cert.der()).unwrap();
            let point = parsed.public_key().subject_public_key.data.to_vec();
            aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1, point)
                .verify(&good.message, &signature)
        };
        assert!(verified.is_ok());
        let other_key = Request { key: KeyId::of(b"other"), ..good.clone() };
        assert_eq!(answer(&other_key), Answer::UnknownKey);
        for refused in [
            Request { message: b"a text".to_vec(), ..good.clone() },
            Request { scheme: SignatureScheme::RSA_PSS_SHA256.into(), ..good },
        ] {
            assert_eq!(answer(&refused), Answer::Refused);
        }
    }
}
