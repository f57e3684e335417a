//! Requests whose fields depend on the version.

use wire::messages::delete_topics_request::DeleteTopicState;
use wire::messages::{DeleteTopicsRequest, FindCoordinatorRequest, FindCoordinatorResponse};
use wire::{ErrorCode, Text};

use crate::error::{KafkaError, check};
use crate::session::address;

/// The first version of FindCoordinator with a list of keys (KIP-699). Older versions have one key.
const MANY_COORDINATORS: i16 = 4;
/// The first version of DeleteTopics with a list of topics by name or id (KIP-516). Older versions have a list of names.
const TOPICS_BY_ID: i16 = 6;

/// What has a coordinator, by Kafka's key types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Coordinated {
    /// A group.
    Group = 0,
    /// A transactional id.
    TransactionalId = 1,
}

/// The coordinator of a group or a transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// The id of the broker.
    pub node: i32,
    /// The broker's `host:port`.
    pub address: String,
}

/// The request for the coordinator of `key`.
pub fn find_coordinator(version: i16, of: Coordinated, key: &Text) -> FindCoordinatorRequest {
    let key_type = of as i8;
    if version < MANY_COORDINATORS {
        FindCoordinatorRequest { key: key.clone(), key_type, ..FindCoordinatorRequest::default() }
    } else {
        FindCoordinatorRequest {
            coordinator_keys: vec![key.clone()],
            key_type,
            ..FindCoordinatorRequest::default()
        }
    }
}

/// The coordinator in a response of this version.
///
/// # Errors
/// The error of the response. COORDINATOR_NOT_AVAILABLE if the response has no coordinator.
pub fn coordinator_of(version: i16, answer: &FindCoordinatorResponse) -> Result<Coordinator, KafkaError> {
    if version < MANY_COORDINATORS {
        check(answer.error_code, answer.error_message.as_ref())?;
        return Ok(Coordinator { node: answer.node_id, address: address(&answer.host, answer.port) });
    }
    let missing = KafkaError { code: ErrorCode::CoordinatorNotAvailable.code(), message: None };
    let found = answer.coordinators.first().ok_or(missing)?;
    check(found.error_code, found.error_message.as_ref())?;
    Ok(Coordinator { node: found.node_id, address: address(&found.host, found.port) })
}

/// The request to delete topics by name.
pub fn delete_topics<'a>(
    version: i16,
    names: impl IntoIterator<Item = &'a str>,
    timeout_ms: i32,
) -> DeleteTopicsRequest {
    let names = names.into_iter().map(Text::copied);
    if version < TOPICS_BY_ID {
        let topic_names = names.collect();
        DeleteTopicsRequest { topic_names, timeout_ms, ..DeleteTopicsRequest::default() }
    } else {
        let topic = |name| DeleteTopicState { name: Some(name), ..DeleteTopicState::default() };
        let topics = names.map(topic).collect();
        DeleteTopicsRequest { topics, timeout_ms, ..DeleteTopicsRequest::default() }
    }
}

#[cfg(test)]
mod tests {
    use wire::messages::find_coordinator_response::Coordinator as Found;
    use wire::{ApiKey, frame};

    use super::*;
    use crate::request::Request;

    fn encodes<Q: Request>(version: i16, request: &Q, api: ApiKey) {
        frame::encode_request(api, version, 1, None, request)
            .unwrap_or_else(|error| panic!("{} {version}: {error}", Q::NAME));
    }

    #[test]
    fn every_version_can_be_written() {
        let group = Text::from_static("g");
        for version in FindCoordinatorRequest::OURS {
            let request = find_coordinator(version, Coordinated::Group, &group);
            encodes(version, &request, ApiKey::FindCoordinator);
        }
        for version in DeleteTopicsRequest::OURS {
            let request = delete_topics(version, ["a", "b"], 5);
            encodes(version, &request, ApiKey::DeleteTopics);
            assert_eq!(request.topics.len() + request.topic_names.len(), 2);
        }
    }

    #[test]
    fn coordinators_are_read_from_both_forms() {
        let old = FindCoordinatorResponse {
            node_id: 3,
            host: Text::from_static("h"),
            port: 9,
            ..FindCoordinatorResponse::default()
        };
        assert_eq!(coordinator_of(3, &old), Ok(Coordinator { node: 3, address: "h:9".into() }));
        let found =
            Found { node_id: 4, host: Text::from_static("::1"), port: 8, error_code: 0, ..Found::default() };
        let new = FindCoordinatorResponse { coordinators: vec![found], ..FindCoordinatorResponse::default() };
        assert_eq!(coordinator_of(4, &new), Ok(Coordinator { node: 4, address: "[::1]:8".into() }));
        let code = |version, answer: &FindCoordinatorResponse| {
            coordinator_of(version, answer).unwrap_err().known().unwrap()
        };
        let none = FindCoordinatorResponse::default();
        assert_eq!(code(6, &none), ErrorCode::CoordinatorNotAvailable);
        let refused = FindCoordinatorResponse { error_code: 30, ..FindCoordinatorResponse::default() };
        assert_eq!(code(0, &refused), ErrorCode::GroupAuthorizationFailed);
    }
}
