//! A name server that knows a few records.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{
            A, AAAA, HTTPS,
            svcb::{Alpn, IpHint, SVCB, SvcParamKey, SvcParamValue},
        },
    },
};
use tokio::net::UdpSocket;

type Records = BTreeMap<(String, RecordType), Vec<RData>>;

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    records: Arc<Mutex<Records>>,
    /// Queried names, in lower case, with the type.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let this = Self { address: socket.local_addr().unwrap(), records: Arc::default(), asked: Arc::default() };
        let serves = this.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4_096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
                socket.send_to(&serves.answer(question).to_vec().unwrap(), from).await.unwrap();
            }
        });
        this
    }

    fn answer(&self, question: Message) -> Message {
        let mut answer = Message::new(question.metadata.id, MessageType::Response, question.metadata.op_code);
        answer.metadata.recursion_available = true;
        for query in &question.queries {
            let name = query.name().to_ascii().to_ascii_lowercase();
            self.asked.lock().unwrap().push(format!("{name} {}", query.query_type()));
            let records = self.records.lock().unwrap();
            for data in records.get(&(name.clone(), query.query_type())).into_iter().flatten() {
                answer.add_answer(Record::from_rdata(query.name().clone(), 60, data.clone()));
            }
            if !records.keys().any(|(known, _)| *known == name) {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            answer.add_query(query.clone());
        }
        answer
    }

    fn add(&self, name: &str, kind: RecordType, data: RData) -> &Self {
        self.records.lock().unwrap().entry((name.to_owned(), kind)).or_default().push(data);
        self
    }

    pub(crate) fn address_of(&self, name: &str, address: &str) -> &Self {
        match address.parse().unwrap() {
            std::net::IpAddr::V4(ip) => self.add(name, RecordType::A, RData::A(A(ip))),
            std::net::IpAddr::V6(ip) => self.add(name, RecordType::AAAA, RData::AAAA(AAAA(ip))),
        }
    }

    pub(crate) fn https(
        &self,
        name: &str,
        priority: u16,
        target: &str,
        params: &[(SvcParamKey, SvcParamValue)],
    ) -> &Self {
        let record = SVCB::new(priority, Name::from_ascii(target).unwrap(), params.to_vec());
        self.add(name, RecordType::HTTPS, RData::HTTPS(HTTPS(record)))
    }

    pub(crate) fn was_asked(&self, what: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == what)
    }
}

pub(crate) fn alpn(names: &[&str]) -> (SvcParamKey, SvcParamValue) {
    (SvcParamKey::Alpn, SvcParamValue::Alpn(Alpn(names.iter().map(|name| (*name).to_owned()).collect())))
}

pub(crate) fn port(port: u16) -> (SvcParamKey, SvcParamValue) {
    (SvcParamKey::Port, SvcParamValue::Port(port))
}

pub(crate) fn hint(address: &str) -> (SvcParamKey, SvcParamValue) {
    hints(vec![address.parse().unwrap()])
}

pub(crate) fn hints(addresses: Vec<std::net::Ipv4Addr>) -> (SvcParamKey, SvcParamValue) {
    (SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(addresses.into_iter().map(A).collect())))
}
