//! A name server with a given zone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// What the server says of a name.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    /// Addresses of both families.
    Addresses(Vec<IpAddr>),
    /// Addresses that change with each question: the first of the list, then the second, and so on.
    Rebinding(Vec<Ipv4Addr>),
    /// Another name, and the address of that.
    Alias(&'static str, Ipv4Addr),
    /// An error.
    Code(u8),
    /// Nothing at all.
    Silence,
}

/// `NXDOMAIN`
pub(super) const NO_SUCH_NAME: u8 = 3;
/// `SERVFAIL`
pub(super) const SERVER_FAILURE: u8 = 2;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;

/// Longest answer that goes over UDP. A longer one is cut, and asked for again over TCP.
const UDP_BYTES_MAX: usize = 512;

pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    zone: Arc<Zone>,
    serving: [JoinHandle<()>; 2],
}

struct Zone {
    entries: HashMap<String, Entry>,
    asked: Mutex<Vec<String>>,
    times_asked: Mutex<HashMap<String, usize>>,
}

impl NameServer {
    pub(super) async fn start(zone: &[(&str, Entry)]) -> Self {
        let entries: HashMap<_, _> =
            zone.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        let zone = Arc::new(Zone { entries, asked: Mutex::default(), times_asked: Mutex::default() });
        // A port that is free for both protocols is not found at once on a busy machine.
        let (socket, listener) = loop {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
            if let Ok(listener) = TcpListener::bind(socket.local_addr().expect("it is bound")).await {
                break (socket, listener);
            }
        };
        let address = socket.local_addr().expect("it is bound");
        let serving = [
            tokio::spawn(serve_udp(socket, Arc::clone(&zone))),
            tokio::spawn(serve_tcp(listener, Arc::clone(&zone))),
        ];
        Self { address, zone, serving }
    }

    /// The names asked for, each with its type, in any order.
    pub(super) fn asked(&self) -> Vec<String> {
        let mut asked = self.zone.asked.lock().expect("nobody panicked").clone();
        asked.sort();
        asked
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

async fn serve_udp(socket: UdpSocket, zone: Arc<Zone>) {
    const CUT: u8 = 0x02;
    let mut question = [0; 1500];
    loop {
        let (length, from) = socket.recv_from(&mut question).await.expect("the socket is open");
        let Some(mut answer) = zone.answer(&question[..length]) else { continue };
        if answer.len() > UDP_BYTES_MAX {
            let (_, _, end) = parse(&question[..length]);
            answer.truncate(end);
            answer[2] |= CUT;
            answer[6..8].fill(0);
        }
        socket.send_to(&answer, from).await.expect("the client listens");
    }
}

async fn serve_tcp(listener: TcpListener, zone: Arc<Zone>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        while let Ok(length) = stream.read_u16().await {
            let mut question = vec![0; length.into()];
            stream.read_exact(&mut question).await.expect("a whole question");
            let Some(answer) = zone.answer(&question) else { continue };
            let length = u16::try_from(answer.len()).expect("fits into a message");
            stream
                .write_all(&[&length.to_be_bytes()[..], &answer].concat())
                .await
                .expect("the client listens");
        }
    }
}

impl Zone {
    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let (name, kind, end) = parse(question);
        let kind_name = if kind == TYPE_A { "A" } else { "AAAA" };
        self.asked.lock().expect("nobody panicked").push(format!("{name} {kind_name}"));
        let (mut code, mut records) = (0, vec![]);
        match self.entries.get(&name) {
            Some(Entry::Addresses(addresses)) => {
                records.extend(addresses.iter().filter_map(|address| record(kind, *address)));
            }
            Some(Entry::Rebinding(addresses)) if kind == TYPE_A => {
                let mut times_asked = self.times_asked.lock().expect("nobody panicked");
                let times = times_asked.entry(name).or_default();
                records.extend(record(kind, addresses[*times % addresses.len()].into()));
                *times += 1;
            }
            Some(Entry::Alias(alias, address)) if kind == TYPE_A => {
                records.push((TYPE_CNAME, None, encoded(alias)));
                records.push((TYPE_A, Some(encoded(alias)), address.octets().to_vec()));
            }
            Some(Entry::Alias(..) | Entry::Rebinding(_)) => {}
            Some(Entry::Code(given)) => code = *given,
            Some(Entry::Silence) => return None,
            None => code = NO_SUCH_NAME,
        }
        Some(message(&question[..end], code, &records))
    }
}

/// Type, owner (the question's name if absent), data.
type Record = (u16, Option<Vec<u8>>, Vec<u8>);

fn record(kind: u16, address: IpAddr) -> Option<Record> {
    match (kind, address) {
        (TYPE_A, IpAddr::V4(v4)) => Some((kind, None, v4.octets().to_vec())),
        (TYPE_AAAA, IpAddr::V6(v6)) => Some((kind, None, v6.octets().to_vec())),
        _ => None,
    }
}

/// The question's name, its type, and where it ends.
fn parse(question: &[u8]) -> (String, u16, usize) {
    let mut at = 12;
    let mut name = String::new();
    while question[at] != 0 {
        let label = &question[at + 1..][..question[at].into()];
        name.push_str(&String::from_utf8_lossy(label));
        name.push('.');
        at += 1 + label.len();
    }
    (name, u16::from_be_bytes([question[at + 1], question[at + 2]]), at + 5)
}

fn message(question: &[u8], code: u8, records: &[Record]) -> Vec<u8> {
    const POINTER_TO_QUESTION: [u8; 2] = [0xc0, 12];
    let mut message = question[..2].to_vec();
    // A recursive server's response to a recursive question; one question.
    message.extend([0x81, 0x80 | code, 0, 1]);
    message.extend(u16::try_from(records.len()).expect("few records").to_be_bytes());
    message.extend([0, 0, 0, 0]);
    message.extend(&question[12..]);
    for (kind, owner, data) in records {
        message.extend(owner.as_deref().unwrap_or(&POINTER_TO_QUESTION));
        message.extend(kind.to_be_bytes());
        // Class IN, not to be kept.
        message.extend([0, 1, 0, 0, 0, 0]);
        message.extend(u16::try_from(data.len()).expect("short data").to_be_bytes());
        message.extend(data);
    }
    message
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = vec![];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a short label"));
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}
