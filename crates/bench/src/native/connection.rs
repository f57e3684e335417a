//! A connection of the native engine: frames out, frames in, in order.
//!
//! Sending never waits: frames go into a queue that a task of the connection writes. Its length is bounded by who sends,
//! who has a bounded number of requests in flight. Receiving reads one frame at a time into memory that is used again
//! once nothing of the last frame is kept.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use sasl::Mechanism;
use sasl::scram::{Client, ClientError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use wire::messages::{
    ApiVersionsRequest, ApiVersionsResponse, SaslAuthenticateRequest, SaslAuthenticateResponse,
    SaslHandshakeRequest, SaslHandshakeResponse,
};
use wire::{ApiKey, Bytes, Chunks, DecodeError, EncodeError, ErrorCode, Message, Reader, Text, frame};

use crate::security::{Credentials, Security};

const CLIENT_ID: &str = "mainstem-bench";
/// For opening a connection, with all that is said on it before the first request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For one answer outside of the load: longer than a server is given to make topics.
const CALL_TIMEOUT: Duration = Duration::from_secs(130);
/// Larger answers are not believed.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Why a server cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("lost the connection to {address}: {error}")]
    Lost { address: String, error: io::Error },
    #[error("{address} answered what cannot be read: {error}")]
    Garbled { address: String, error: DecodeError },
    #[error("{address} answered out of order; is it a Kafka server?")]
    OutOfOrder { address: String },
    #[error("{address} has no version of {api} that is spoken here ({} to {})", ours.start(), ours.end())]
    Version { address: String, api: &'static str, ours: RangeInclusive<i16> },
    #[error("{address} refused the log-in: {why}")]
    LogIn { address: String, why: String },
    #[error("a request cannot be written: {0}")]
    Encode(#[from] EncodeError),
    #[error("{address} answered {api} with {}", error_name(*.code))]
    Answer { address: String, api: &'static str, code: i16 },
}

/// Kafka's name of an error code.
pub fn error_name(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |error| error.name().to_owned())
}

/// A request and the versions of it that the engine writes.
pub trait Request: Message {
    type Answer: Message;
    const API: ApiKey;
    const OURS: RangeInclusive<i16>;
}

macro_rules! requests {
    ($($api:ident $request:ident $answer:ident $ours:expr;)*) => {
        $(impl Request for wire::messages::$request {
            type Answer = wire::messages::$answer;
            const API: ApiKey = ApiKey::$api;
            const OURS: RangeInclusive<i16> = $ours;
        })*
    };
}

// Where an upper bound is below Kafka's newest version, the next one names topics by id.
requests! {
    Metadata MetadataRequest MetadataResponse 4..=12;
    CreateTopics CreateTopicsRequest CreateTopicsResponse 4..=7;
    ListOffsets ListOffsetsRequest ListOffsetsResponse 1..=7;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse 1..=5;
    InitProducerId InitProducerIdRequest InitProducerIdResponse 0..=5;
    Produce ProduceRequest ProduceResponse 3..=12;
    Fetch FetchRequest FetchResponse 7..=12;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse 0..=3;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse 2..=8;
    SaslHandshake SaslHandshakeRequest SaslHandshakeResponse 1..=1;
    SaslAuthenticate SaslAuthenticateRequest SaslAuthenticateResponse 0..=2;
}

type Input = Box<dyn AsyncRead + Unpin>;
type Output = Box<dyn AsyncWrite + Unpin>;

/// The half that sends; clones share the connection.
#[derive(Clone)]
pub struct Sender {
    queue: Rc<Queue>,
    versions: Rc<HashMap<i16, (i16, i16)>>,
    address: Rc<str>,
}

#[derive(Default)]
struct Queue {
    frames: RefCell<VecDeque<Chunks>>,
    news: Notify,
    correlation_id: Cell<i32>,
    /// Ids of the requests whose answers are to come, in their order.
    awaited: RefCell<VecDeque<i32>>,
    closed: Cell<bool>,
}

impl Queue {
    /// The oldest frames, of so many parts as one system call takes; one at least if there is any.
    fn take_some(&self) -> Vec<Chunks> {
        /// Some allow fewer than Linux, which takes 1024.
        const PARTS_MAX: usize = 256;
        let mut frames = self.frames.borrow_mut();
        let mut parts = 0;
        let fit = |frame: &&Chunks| {
            parts += frame.parts.len();
            parts <= PARTS_MAX
        };
        let count = frames.iter().take_while(fit).count().max(1).min(frames.len());
        frames.drain(..count).collect()
    }
}

/// The half that receives.
pub struct Receiver {
    input: Input,
    buffer: BytesMut,
    queue: Rc<Queue>,
    address: Rc<str>,
}

/// Connects, with TLS and a log-in where they are asked for, and asks which versions the server speaks. Has to be called
/// inside of a `LocalSet`.
pub async fn connect(address: &str, security: &Security) -> Result<(Sender, Receiver), ConnectionError> {
    let failed = |error| ConnectionError::Connect { address: address.into(), error };
    let introduced = tokio::time::timeout(CONNECT_TIMEOUT, introduce(address, security)).await;
    introduced.unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))
}

async fn introduce(address: &str, security: &Security) -> Result<(Sender, Receiver), ConnectionError> {
    let failed = |error| ConnectionError::Connect { address: address.into(), error };
    let (input, mut output) = open(address, security).await.map_err(failed)?;
    let queue = Rc::new(Queue::default());
    let address: Rc<str> = address.into();
    let mut receiver =
        Receiver { input, buffer: BytesMut::new(), queue: queue.clone(), address: address.clone() };
    let writing = queue.clone();
    tokio::task::spawn_local(async move {
        // Whoever receives learns of the failure by the connection's end.
        let _ = write_frames(&writing, &mut output).await;
        let _ = output.shutdown().await;
    });
    let mut sender = Sender { queue, versions: Rc::new(HashMap::new()), address };
    let versions = ask_versions(&mut sender, &mut receiver).await?;
    sender.versions = Rc::new(versions);
    if let Some(credentials) = &security.credentials {
        log_in(&sender, &mut receiver, credentials).await?;
    }
    Ok((sender, receiver))
}

async fn open(address: &str, security: &Security) -> io::Result<(Input, Output)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let Some(config) = &security.tls else {
        let (input, output) = stream.into_split();
        return Ok((Box::new(input), Box::new(output)));
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await?;
    let (input, output) = tokio::io::split(stream);
    Ok((Box::new(input), Box::new(output)))
}

/// What is queued goes out together: with small requests a system call for each is what a connection would cost most.
async fn write_frames(queue: &Queue, output: &mut Output) -> io::Result<()> {
    loop {
        let frames = queue.take_some();
        if !frames.is_empty() {
            write_parts(frames.iter().flat_map(|frame| &frame.parts), output).await?;
        } else if queue.closed.get() {
            return Ok(());
        } else {
            output.flush().await?;
            queue.news.notified().await;
        }
    }
}

async fn write_parts(parts: impl Iterator<Item = &Bytes>, output: &mut Output) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = output.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

async fn ask_versions(
    sender: &mut Sender,
    receiver: &mut Receiver,
) -> Result<HashMap<i16, (i16, i16)>, ConnectionError> {
    let request = ApiVersionsRequest {
        client_software_name: Text::from_static(CLIENT_ID),
        client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
        ..ApiVersionsRequest::default()
    };
    // A server that does not know version 3 answers that with version 0.
    for version in [3, 0] {
        sender.send_as(ApiKey::ApiVersions, version, &request)?;
        let mut reader = receiver.answer(ApiKey::ApiVersions, version).await?;
        let body = reader.take(reader.remaining()).map_err(|error| receiver.garbled(error))?;
        let refused = body.starts_with(&ErrorCode::UnsupportedVersion.code().to_be_bytes());
        if refused && version > 0 {
            continue;
        }
        let answer = ApiVersionsResponse::decode(&mut Reader::new(body), version)
            .map_err(|error| receiver.garbled(error))?;
        sender.expect_none(answer.error_code, "ApiVersions")?;
        return Ok(answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect());
    }
    unreachable!("version 0 is not refused");
}

async fn log_in(
    sender: &Sender,
    receiver: &mut Receiver,
    credentials: &Credentials,
) -> Result<(), ConnectionError> {
    let refused = |why: String| ConnectionError::LogIn { address: sender.address.to_string(), why };
    let mechanism = Text::copied(credentials.mechanism.name());
    let answer: SaslHandshakeResponse = call(sender, receiver, &SaslHandshakeRequest { mechanism }).await?;
    if answer.error_code != 0 {
        let offered: Vec<String> = answer.mechanisms.iter().map(ToString::to_string).collect();
        let wanted = credentials.mechanism.name();
        return Err(refused(format!("it takes {}, not {wanted}", offered.join(", "))));
    }
    let Mechanism::Scram(hash) = credentials.mechanism else {
        let token = format!("\0{}\0{}", credentials.user, credentials.password);
        authenticate(sender, receiver, token).await?;
        return Ok(());
    };
    let garbled = |error: ClientError| refused(error.to_string());
    let nonce: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
    let mut scram = Client::new(hash, &credentials.user, &credentials.password, nonce);
    let first = authenticate(sender, receiver, scram.first()).await?;
    let last = authenticate(sender, receiver, scram.last(&first).map_err(garbled)?).await?;
    scram.check(&last).map_err(garbled)
}

async fn authenticate(
    sender: &Sender,
    receiver: &mut Receiver,
    token: String,
) -> Result<String, ConnectionError> {
    let request = SaslAuthenticateRequest { auth_bytes: Bytes::from(token) };
    let answer: SaslAuthenticateResponse = call(sender, receiver, &request).await?;
    if answer.error_code != 0 {
        let why =
            answer.error_message.map_or_else(|| error_name(answer.error_code), |message| message.to_string());
        return Err(ConnectionError::LogIn { address: sender.address.to_string(), why });
    }
    Ok(String::from_utf8_lossy(&answer.auth_bytes).into_owned())
}

/// Asks and waits for the answer; nothing else may be in flight.
pub async fn call<Q: Request>(
    sender: &Sender,
    receiver: &mut Receiver,
    request: &Q,
) -> Result<Q::Answer, ConnectionError> {
    let version = sender.send(request)?;
    match tokio::time::timeout(CALL_TIMEOUT, receiver.receive::<Q>(version)).await {
        Ok(answer) => answer,
        Err(_) => {
            let address = sender.address.to_string();
            Err(ConnectionError::Lost { address, error: io::ErrorKind::TimedOut.into() })
        }
    }
}

impl Sender {
    /// Queues a request in the highest version that both speak, and returns that version.
    pub fn send<Q: Request>(&self, request: &Q) -> Result<i16, ConnectionError> {
        let version = self.version::<Q>()?;
        self.send_as(Q::API, version, request)?;
        Ok(version)
    }

    /// As [`Sender::send`], a request that is never answered: produce without acknowledgements.
    pub fn send_unanswered<Q: Request>(&self, request: &Q) -> Result<(), ConnectionError> {
        self.queue_frame(Q::API, self.version::<Q>()?, request)?;
        Ok(())
    }

    pub fn version<Q: Request>(&self) -> Result<i16, ConnectionError> {
        let missing = || ConnectionError::Version {
            address: self.address.to_string(),
            api: Q::API.name(),
            ours: Q::OURS,
        };
        let &(lowest, highest) = self.versions.get(&Q::API.code()).ok_or_else(missing)?;
        let version = highest.min(*Q::OURS.end());
        if version < lowest || version < *Q::OURS.start() { Err(missing()) } else { Ok(version) }
    }

    fn send_as<M: Message>(&self, api: ApiKey, version: i16, request: &M) -> Result<(), ConnectionError> {
        let id = self.queue_frame(api, version, request)?;
        self.queue.awaited.borrow_mut().push_back(id);
        Ok(())
    }

    /// Returns the request's id.
    fn queue_frame<M: Message>(
        &self,
        api: ApiKey,
        version: i16,
        request: &M,
    ) -> Result<i32, ConnectionError> {
        let id = self.queue.correlation_id.get();
        self.queue.correlation_id.set(id.wrapping_add(1));
        let client = Text::from_static(CLIENT_ID);
        let frame = frame::encode_request(api, version, id, Some(&client), request)?;
        self.queue.frames.borrow_mut().push_back(frame);
        self.queue.news.notify_one();
        Ok(id)
    }

    fn expect_none(&self, code: i16, api: &'static str) -> Result<(), ConnectionError> {
        if code == 0 {
            Ok(())
        } else {
            Err(ConnectionError::Answer { address: self.address.to_string(), api, code })
        }
    }

    /// Frames that are not written yet.
    pub fn queued(&self) -> usize {
        self.queue.frames.borrow().len()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends the connection once all that was queued is written.
    pub fn close(&self) {
        self.queue.closed.set(true);
        self.queue.news.notify_one();
    }
}

impl Receiver {
    /// The answer to the oldest request in flight, which was one of `Q` in `version`.
    pub async fn receive<Q: Request>(&mut self, version: i16) -> Result<Q::Answer, ConnectionError> {
        let mut reader = self.answer(Q::API, version).await?;
        Q::Answer::decode(&mut reader, version).map_err(|error| self.garbled(error))
    }

    async fn answer(&mut self, api: ApiKey, version: i16) -> Result<Reader, ConnectionError> {
        let mut reader = Reader::new(self.frame().await?);
        let id =
            frame::decode_response_header(&mut reader, api, version).map_err(|error| self.garbled(error))?;
        // Latencies are counted by this order: the answer to another request would be credited to this one.
        if self.queue.awaited.borrow_mut().pop_front() != Some(id) {
            return Err(ConnectionError::OutOfOrder { address: self.address.to_string() });
        }
        Ok(reader)
    }

    /// The next frame, without its size.
    async fn frame(&mut self) -> Result<Bytes, ConnectionError> {
        self.fill(4).await?;
        let size = self.buffer.split_to(4);
        let size = i32::from_be_bytes([size[0], size[1], size[2], size[3]]);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > ANSWER_BYTES_MAX {
            return Err(ConnectionError::OutOfOrder { address: self.address.to_string() });
        }
        self.fill(size).await?;
        Ok(self.buffer.split_to(size).freeze())
    }

    async fn fill(&mut self, bytes: usize) -> Result<(), ConnectionError> {
        const READ_BYTES: usize = 64 * 1024;
        while self.buffer.len() < bytes {
            // One reservation for a whole frame: a piecewise one would move what is there already.
            self.buffer.reserve((bytes - self.buffer.len()).max(READ_BYTES));
            let lost = |error| ConnectionError::Lost { address: self.address.to_string(), error };
            if self.input.read_buf(&mut self.buffer).await.map_err(lost)? == 0 {
                return Err(lost(io::Error::other("the server closed it")));
            }
        }
        Ok(())
    }

    pub fn garbled(&self, error: DecodeError) -> ConnectionError {
        ConnectionError::Garbled { address: self.address.to_string(), error }
    }
}
