//! A small Kafka server in memory with configurable faults, to test what a load generator notices.
//!
//! Each connection has a reading and a writing thread, so that an answer may wait while further requests are handled.
//! The server keeps everything until the test's process ends. It knows a single broker, itself, and no group protocol.

pub mod answers;
pub mod faults;
pub mod fetching;
pub mod log;
pub mod producing;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use wire::frame::{RequestHeader, decode_request_header, encode_response};
use wire::{ApiKey, Bytes, Message, Reader};

use faults::Faults;
use fetching::Session;
use log::Log;

/// The state shared by all connections.
pub struct Shared {
    address: SocketAddr,
    faults: Faults,
    state: Mutex<State>,
    /// Notified after an append.
    news: Condvar,
    /// The time of the first produce request.
    begun: OnceLock<Instant>,
}

#[derive(Default)]
pub struct State {
    /// The logs by topic, including removed topics.
    pub topics: BTreeMap<String, Vec<Log>>,
    pub removed: Vec<String>,
    pub sessions: HashMap<i32, Session>,
    /// The id of the newest session.
    pub sessions_begun: i32,
    pub producers: i64,
    /// The partition (or the address) that a fault struck, and the offset there.
    pub struck: Option<(String, i64)>,
    /// Committed offsets, by group, topic and partition.
    pub commits: BTreeMap<(String, String, i32), i64>,
}

/// A frame for the client. Without a frame, the connection stays open and silent.
pub struct Answer {
    pub frame: Option<Bytes>,
    pub not_before: Instant,
}

/// The reaction to a request.
pub enum Reply {
    Answer(Answer),
    /// A produce request without acknowledgements has no answer.
    Nothing,
    Close,
}

/// A listening server.
pub struct Fake {
    shared: Arc<Shared>,
}

impl Fake {
    pub fn start(faults: Faults) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let shared = Arc::new(Shared {
            address: listener.local_addr().expect("it listens"),
            faults,
            state: Mutex::default(),
            news: Condvar::new(),
            begun: OnceLock::new(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = accepting.clone();
                thread::spawn(move || shared.serve(stream));
            }
        });
        Fake { shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panicked with it")
    }

    fn serve(&self, mut input: TcpStream) {
        input.set_nodelay(true).expect("it is a socket");
        let output = input.try_clone().expect("there are descriptors");
        let (answers, waiting) = channel();
        thread::scope(|scope| {
            scope.spawn(|| self.write(waiting, output));
            self.read(&mut input, &answers);
            drop(answers);
        });
    }

    /// Handles requests until either side closes the connection.
    fn read(&self, input: &mut TcpStream, answers: &Sender<Answer>) {
        let mut produced = 0;
        loop {
            let mut size = [0; 4];
            if input.read_exact(&mut size).is_err() {
                return;
            }
            let mut frame = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("not below 0")];
            if input.read_exact(&mut frame).is_err() {
                return;
            }
            self.wait_for_stall();
            match self.reply(Bytes::from(frame), &mut produced) {
                Reply::Answer(answer) => drop(answers.send(answer)),
                Reply::Nothing => {}
                Reply::Close => {
                    let _ = input.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }

    fn write(&self, waiting: Receiver<Answer>, mut output: TcpStream) {
        for answer in waiting {
            thread::sleep(answer.not_before.saturating_duration_since(Instant::now()));
            self.wait_for_stall();
            let Some(frame) = answer.frame else { return };
            if output.write_all(&frame).is_err() {
                return;
            }
        }
    }

    /// Returns when no stall is in progress.
    fn wait_for_stall(&self) {
        let (Some(stall), Some(begun)) = (self.faults.stall, self.begun.get()) else { return };
        let (from, now) = (*begun + stall.after, Instant::now());
        if now >= from {
            thread::sleep((from + stall.length).saturating_duration_since(now));
        }
    }

    fn reply(&self, frame: Bytes, produced: &mut usize) -> Reply {
        let mut reader = Reader::new(frame);
        let header = decode_request_header(&mut reader).expect("the client writes headers");
        match header.api_key {
            ApiKey::Produce => {
                self.begun.get_or_init(Instant::now);
                *produced += 1;
                thread::sleep(self.faults.produce_work);
                self.produce(&header, &decoded(&mut reader, &header), *produced)
            }
            ApiKey::Fetch => self.fetch(&header, &decoded(&mut reader, &header)),
            _ => self.other(&header, &mut reader),
        }
    }
}

/// The message of a request.
fn decoded<M: Message>(reader: &mut Reader, header: &RequestHeader) -> M {
    M::decode(reader, header.version).expect("the client writes messages")
}

/// An answer that may be sent after `delay`.
fn answer<M: Message>(header: &RequestHeader, message: &M, delay: Duration) -> Answer {
    let frame = encode_response(header.correlation_id, header.api_key, header.version, message);
    let frame = frame.expect("the version has all fields").to_bytes();
    Answer { frame: Some(frame), not_before: Instant::now() + delay }
}
