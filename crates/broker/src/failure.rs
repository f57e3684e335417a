//! An error as an answer carries it.

use wire::ErrorCode;

/// An error as an answer carries it: the code, and a message where the API has room for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kafka's code.
    pub code: ErrorCode,
    /// What to show to a person.
    pub message: Option<String>,
}

impl Failure {
    /// With Kafka's own sentence for the code.
    pub fn new(code: ErrorCode) -> Failure {
        Failure { code, message: None }
    }

    /// With a message of its own, of which as much is told as [`wire::Writer`] takes of a message.
    pub fn because(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure { code, message: Some(message.into()) }
    }

    /// The message to answer with; Kafka's sentence for the code where there is none.
    pub fn text(&self) -> wire::Text {
        self.message.clone().map_or_else(|| wire::Text::from_static(self.code.message()), wire::Text::from)
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Failure {
        Failure::new(code)
    }
}
