//! The faults of a [`super::Fake`], and its observations of their effects.

use std::time::Duration;

use wire::ErrorCode;

/// A fault between the log and the consumers, which happens once. The last three also happen with honest servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTheWay {
    /// A batch is left out. The batches behind it keep their offsets.
    Drop,
    /// A batch is repeated at the same offset.
    Repeat,
    /// Two batches change places and keep their offsets.
    Reorder,
    /// Two batches change places and offsets, so that they seem to be in order.
    ReorderPatched,
    /// A byte of a record is changed. The CRC does not match.
    Damage,
    /// A byte of a record is changed, and the CRC matches.
    Forge,
    /// No batch from this one on is delivered, although it was acknowledged.
    HideTail,
    /// The connection is closed.
    Close,
    /// The partition answers with an error that is not retriable.
    Refuse,
    /// No fetch is answered any more, but other requests are.
    Silence,
    /// The last batch of an answer is cut, as at a byte limit.
    Cut,
    /// The partition answers with a retriable error.
    RefuseForNow,
    /// Sessions are forgotten, as by a restarted server.
    ForgetSessions,
}

/// A fault during the append of a batch, which happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAppend {
    /// A batch that was never published is appended before it.
    Invent,
    /// The batch is appended twice, at different offsets.
    Double,
    /// The batch is refused with this error.
    Refuse(ErrorCode),
    /// The batch is kept, and then answered with this error.
    KeepAndRefuse(ErrorCode),
}

/// A fault in the answer to a produce request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAnswer {
    /// The answer consists of random bytes.
    Garbage,
    /// The answer has the id of another request.
    WrongId,
    /// Neither this request nor any later one of the connection is answered.
    Never,
    /// The connection is closed.
    Close,
}

/// Nothing is answered for a while.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Time after the first produce request.
    pub after: Duration,
    pub length: Duration,
}

/// The faults of a server. The default is an honest server.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Delay of every produce answer. Other requests are handled in the meantime.
    pub produce_delay: Duration,
    /// Delay of every fetch answer once there is data.
    pub fetch_delay: Duration,
    /// Time for which each produce request keeps its connection busy.
    pub produce_work: Duration,
    pub stall: Option<Stall>,
    pub on_the_way: Option<OnTheWay>,
    pub on_append: Option<OnAppend>,
    pub on_answer: Option<OnAnswer>,
    /// Faults strike the first partition with this number of batches, or the first connection with this number of
    /// produce requests.
    pub strike_at: usize,
    /// The server knows no fetch sessions (KIP-227) and only version 0 of ApiVersions, like old servers.
    pub old: bool,
    /// The server sets the timestamps of batches, and with them their CRC (`message.timestamp.type=LogAppendTime`).
    pub log_append_time: bool,
}
