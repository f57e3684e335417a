//! Kafka's errors, and the errors that end a session.

use std::fmt;
use std::ops::RangeInclusive;

use wire::{DecodeError, EncodeError, ErrorCode, Text};

/// An error in a server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaError {
    /// The error code, which may be unknown here.
    pub code: i16,
    /// The server's own message, if the response has a field for it.
    pub message: Option<String>,
}

impl std::error::Error for KafkaError {}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known(), &self.message) {
            (Some(known), None) => write!(f, "{}: {}", known.name(), known.message()),
            (_, Some(message)) => write!(f, "{}: {message}", error_name(self.code)),
            (None, None) => f.write_str(&error_name(self.code)),
        }
    }
}

impl KafkaError {
    /// The code, or `None` for a code of a newer Kafka.
    pub fn known(&self) -> Option<ErrorCode> {
        ErrorCode::from_code(self.code)
    }

    /// Whether the same request may succeed later.
    pub fn is_retriable(&self) -> bool {
        self.known().is_some_and(ErrorCode::is_retriable)
    }
}

/// Kafka's name of an error code, or its number.
pub fn error_name(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |error| error.name().to_owned())
}

/// Checks the error code of a response.
///
/// # Errors
/// The error of `code`, if it is not zero. An empty `message` counts as none.
pub fn check(code: i16, message: Option<&Text>) -> Result<(), KafkaError> {
    if code == ErrorCode::None.code() {
        return Ok(());
    }
    let message = message.filter(|message| !message.is_empty()).map(ToString::to_string);
    Err(KafkaError { code, message })
}

/// The reason why a session cannot go on. Callers print the address of the server in front, which the session does not know.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The bytes are not a message of this version.
    #[error("answered what cannot be read: {0}")]
    Garbled(#[from] DecodeError),
    /// The frame is too large, or has the correlation id of another request.
    #[error("answered out of order; is it a Kafka server?")]
    OutOfOrder,
    /// Client and server have no version in common.
    #[error(
        "speaks {api} in versions {} to {}, needed is one of {} to {}",
        theirs.0, theirs.1, ours.start(), ours.end()
    )]
    Version {
        /// Kafka's name of the API.
        api: &'static str,
        /// The server's lowest and highest version.
        theirs: (i16, i16),
        /// [`crate::Request::OURS`].
        ours: RangeInclusive<i16>,
    },
    /// The server's ApiVersions response does not have the API.
    #[error("does not know {api}")]
    UnknownApi {
        /// Kafka's name of the API.
        api: &'static str,
    },
    /// The server refused the credentials, or the client refused the server's proof.
    #[error("refused the log-in: {0}")]
    LogIn(String),
    /// A response to a request of the opening has an error code.
    #[error("answered {api} with {error}")]
    Answer {
        /// Kafka's name of the API.
        api: &'static str,
        /// The error.
        error: KafkaError,
    },
    /// A field is too long, or missing in the version.
    #[error("cannot be asked in a version that it speaks: {0}")]
    Encode(#[from] EncodeError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kafkas_names() {
        let error = check(36, None).unwrap_err();
        assert_eq!(error.to_string(), "TOPIC_ALREADY_EXISTS: Topic with this name already exists.");
        let error = check(37, Some(&Text::from_static("too many"))).unwrap_err();
        assert_eq!(error.to_string(), "INVALID_PARTITIONS: too many");
        assert_eq!(check(31_000, None).unwrap_err().to_string(), "error 31000");
        assert_eq!(check(31_000, Some(&Text::from_static("x"))).unwrap_err().to_string(), "error 31000: x");
        check(0, Some(&Text::from_static("fine"))).unwrap();
        assert_eq!((error_name(36).as_str(), error_name(-7).as_str()), ("TOPIC_ALREADY_EXISTS", "error -7"));
    }
}
