//! An error in an answer.

use wire::{ErrorCode, Text};

/// An error in an answer: Kafka's code, and a message if the API has a field for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kafka's error code.
    pub code: ErrorCode,
    /// A message for people. Many answers may share it.
    pub message: Option<Text>,
}

impl Failure {
    /// A failure with Kafka's own message for the code.
    pub fn new(code: ErrorCode) -> Failure {
        Failure { code, message: None }
    }

    /// A failure with a specific message. [`wire::Writer`] cuts a long message.
    pub fn because(code: ErrorCode, message: impl Into<Text>) -> Failure {
        Failure { code, message: Some(message.into()) }
    }

    /// The message for the answer. Without a specific message, Kafka's message for the code.
    pub fn text(&self) -> Text {
        self.message.clone().unwrap_or(Text::from_static(self.code.message()))
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Failure {
        Failure::new(code)
    }
}
