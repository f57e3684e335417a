//! What a [`super::Fake`] does wrong, and what it noticed about it.

use std::time::Duration;

use wire::ErrorCode;

/// One thing that goes wrong on the way from the log to the consumers, once. The last three happen with honest servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTheWay {
    /// A batch is left out; those after it keep their offsets.
    Drop,
    /// A batch comes again at the same offset.
    Repeat,
    /// Two batches change places, each with its own offsets.
    Reorder,
    /// Two batches change places and offsets, so that they look in order.
    ReorderPatched,
    /// A byte of a record is another; the CRC tells.
    Damage,
    /// A byte of a record is another, and the CRC fits.
    Forge,
    /// From this batch on nothing is delivered, however it was acknowledged.
    HideTail,
    /// The connection ends.
    Close,
    /// The partition answers with an error that does not pass.
    Refuse,
    /// No fetch is answered any more, but all else is.
    Silence,
    /// The last batch of an answer is cut, as where a limit of bytes lies.
    Cut,
    /// The partition answers with an error that passes.
    RefuseForNow,
    /// Sessions are forgotten, as by a server that started anew.
    ForgetSessions,
}

/// One thing that goes wrong when a batch is appended, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAppend {
    /// Another batch, which nobody published, gets into the log before it.
    Invent,
    /// It gets into the log twice, at offsets of its own each.
    Double,
    /// It is refused with this error.
    Refuse(ErrorCode),
    /// It is kept, and then answered with this error.
    KeepAndRefuse(ErrorCode),
}

/// One thing that goes wrong when a produce request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAnswer {
    /// Bytes that are no answer.
    Garbage,
    /// The answer to another request, as its id says.
    WrongId,
    /// No answer to it or anything later on that connection.
    Never,
    /// The connection ends.
    Close,
}

/// No answer to anything for a while.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// After the first produce request.
    pub after: Duration,
    pub length: Duration,
}

/// How a server misbehaves; the default is an honest one.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Every produce answer waits so long, while other requests are taken up.
    pub produce_delay: Duration,
    /// Every fetch answer waits so long once there is data.
    pub fetch_delay: Duration,
    /// Each produce request keeps its connection busy for so long.
    pub produce_work: Duration,
    pub stall: Option<Stall>,
    pub on_the_way: Option<OnTheWay>,
    pub on_append: Option<OnAppend>,
    pub on_answer: Option<OnAnswer>,
    /// Faults strike the first partition with so many batches, or the first connection with so many produce requests.
    pub strike_at: usize,
    /// It knows no fetch sessions (KIP-227) and no ApiVersions but version 0, as old servers.
    pub old: bool,
    /// It sets the timestamps of batches, and with them their CRC (`message.timestamp.type=LogAppendTime`).
    pub log_append_time: bool,
}
