//! The reasons why client connections end.

use broker::Refused;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Closing {
    #[error("the client closed it")]
    ByClient,
    #[error("the server is stopping")]
    Stopping,
    #[error("a request claims {claimed} bytes, allowed are 1 to {max} (socket.request.max.bytes){hint}")]
    Size { claimed: i32, max: usize, hint: &'static str },
    #[error("the client closed it in the middle of a request")]
    Truncated,
    #[error("{0}")]
    Refused(Refused),
    #[error("{0}")]
    NotLoggedIn(Refused),
    #[error("it did not authenticate within sasl.authentication.timeout.ms")]
    NotAuthenticated,
    #[error("too many connections were not authenticated yet, and this one was for longest")]
    Crowded,
    #[error("it was idle for longer than connections.max.idle.ms")]
    Idle,
    #[error("the rest of a request did not come in time")]
    FrameStalled,
    #[error("the client took nothing of its answer for too long")]
    WriteStalled,
    #[error("answers were still in flight when its time to end was over")]
    DrainTimeout,
    #[error(transparent)]
    Socket(std::io::Error),
}

impl Closing {
    /// Whether the end may interest an operator: a mistake rather than an ordinary end of a connection.
    pub fn is_notable(&self) -> bool {
        match self {
            Closing::Size { .. } | Closing::Refused(_) | Closing::FrameStalled | Closing::WriteStalled => {
                true
            }
            // Any client can cause these at any rate. They are counted instead.
            Closing::NotLoggedIn(_) | Closing::NotAuthenticated | Closing::Crowded => false,
            Closing::ByClient
            | Closing::Stopping
            | Closing::Truncated
            | Closing::Idle
            | Closing::DrainTimeout
            | Closing::Socket(_) => false,
        }
    }
}
