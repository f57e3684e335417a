//! The only place that maps errors of the lower layers to Kafka's error codes.

use storage::{AdmitError, AppendError, ReadError};
use wire::ErrorCode;

use crate::cluster::admin::AdminError;
use crate::coordinator::Unserved;
use crate::failure::Failure;
use crate::groups::GroupError;
use crate::logs::Lost;
use crate::partition::Elsewhere;
use crate::partition::sequence::SequenceError;
use crate::topics::{MoveError, TopicError};
use crate::transactions::TransactionError;

impl From<AdmitError> for Failure {
    fn from(error: AdmitError) -> Failure {
        let message = error.to_string();
        match error {
            AdmitError::TooLarge { .. } => Failure::because(ErrorCode::MessageTooLarge, message),
            // Kafka takes a full log directory offline and answers with this code. The code is retriable, and here the
            // condition passes by itself.
            AdmitError::Full | AdmitError::Busy => Failure::because(ErrorCode::KafkaStorageError, message),
            // As in Kafka, where too few replicas are in sync. Clients retry on it.
            AdmitError::Unstorable(_) => Failure::because(ErrorCode::NotEnoughReplicas, message),
            AdmitError::Stopped(error) => error.into(),
        }
    }
}

impl From<&Lost> for Failure {
    fn from(lost: &Lost) -> Failure {
        Failure::because(ErrorCode::KafkaStorageError, lost.to_string())
    }
}

impl From<Elsewhere<'_>> for Failure {
    fn from(elsewhere: Elsewhere<'_>) -> Failure {
        match elsewhere {
            Elsewhere::Remote => ErrorCode::NotLeaderOrFollower.into(),
            Elsewhere::Offline(lost) => lost.into(),
        }
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Failure {
        let message = error.to_string();
        match error {
            AppendError::Poisoned(_) => Failure::because(ErrorCode::KafkaStorageError, message),
            AppendError::Closed => Failure::because(ErrorCode::NotLeaderOrFollower, message),
            AppendError::Unstored(_) => Failure::because(ErrorCode::NotEnoughReplicasAfterAppend, message),
        }
    }
}

impl From<SequenceError> for Failure {
    fn from(error: SequenceError) -> Failure {
        let message = error.to_string();
        match error {
            SequenceError::OutOfOrder { .. } => {
                Failure::because(ErrorCode::OutOfOrderSequenceNumber, message)
            }
            SequenceError::Moved => Failure::because(ErrorCode::NotLeaderOrFollower, message),
            SequenceError::Undecided => Failure::because(ErrorCode::KafkaStorageError, message),
            SequenceError::Coordinator { .. } => {
                Failure::because(ErrorCode::TransactionCoordinatorFenced, message)
            }
            SequenceError::Epoch { .. } => Failure::because(ErrorCode::InvalidProducerEpoch, message),
            // Clients of all versions retry on this code.
            SequenceError::AnotherTransaction { .. } => {
                Failure::because(ErrorCode::NotEnoughReplicas, message)
            }
            SequenceError::NotInTransaction { .. } | SequenceError::NotTransactional { .. } => {
                Failure::because(ErrorCode::InvalidTxnState, message)
            }
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let message = error.to_string();
        match error {
            ReadError::OutOfRange { .. } => Failure::because(ErrorCode::OffsetOutOfRange, message),
            ReadError::Deleted => Failure::because(ErrorCode::UnknownTopicOrPartition, message),
            ReadError::Damaged { .. } | ReadError::Io(_) => {
                Failure::because(ErrorCode::KafkaStorageError, message)
            }
            ReadError::Closed => Failure::because(ErrorCode::NotLeaderOrFollower, message),
        }
    }
}

impl From<TopicError> for Failure {
    fn from(error: TopicError) -> Failure {
        let message = error.to_string();
        let code = match error {
            TopicError::Exists(_) => ErrorCode::TopicAlreadyExists,
            TopicError::Unknown => ErrorCode::UnknownTopicOrPartition,
            TopicError::Name(_) => ErrorCode::InvalidTopicException,
            TopicError::Prohibited => ErrorCode::InvalidRequest,
            TopicError::Partitions(_) => ErrorCode::InvalidPartitions,
            TopicError::Config(_) => ErrorCode::InvalidConfig,
            TopicError::NoLog(_) | TopicError::Offsets => ErrorCode::KafkaStorageError,
            TopicError::Meta(error) => return error.into(),
        };
        Failure::because(code, message)
    }
}

impl From<MoveError> for Failure {
    fn from(error: MoveError) -> Failure {
        let message = error.to_string();
        match error {
            MoveError::Topic(error) => error.into(),
            MoveError::NoLog(_) | MoveError::Epochs => {
                Failure::because(ErrorCode::InvalidReplicaAssignment, message)
            }
            MoveError::NoMove => ErrorCode::NoReassignmentInProgress.into(),
        }
    }
}

impl From<meta::MetaError> for Failure {
    fn from(error: meta::MetaError) -> Failure {
        let message = error.to_string();
        tracing::error!(message, "a change of the metadata failed");
        Failure::because(ErrorCode::KafkaStorageError, message)
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let message = error.to_string();
        let code = match error {
            AdminError::NotRegistered(_) => ErrorCode::BrokerIdNotRegistered,
            AdminError::Meta(error) => return error.into(),
            AdminError::Alive(_)
            | AdminError::NotAlive(_)
            | AdminError::Drained(_)
            | AdminError::NoLog(_)
            | AdminError::Open(_)
            | AdminError::HasCopy(_) => ErrorCode::InvalidRequest,
        };
        Failure::because(code, message)
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Failure {
        Failure::because(group_code(error), error.to_string())
    }
}

/// The code for an error of the transaction coordinator.
pub fn transaction_code(error: TransactionError) -> ErrorCode {
    match error {
        TransactionError::ProducerIdMapping => ErrorCode::InvalidProducerIdMapping,
        TransactionError::Fenced => ErrorCode::ProducerFenced,
        TransactionError::InvalidState => ErrorCode::InvalidTxnState,
        TransactionError::Concurrent => ErrorCode::ConcurrentTransactions,
        TransactionError::NotInTransaction => ErrorCode::TransactionAbortable,
        TransactionError::Timeout => ErrorCode::InvalidTransactionTimeout,
        TransactionError::NotAvailable => ErrorCode::CoordinatorNotAvailable,
    }
}

/// The code for a key that this broker does not coordinate. Kafka answers NOT_COORDINATOR also if the records of the
/// key are in a lost log directory.
pub fn unserved_code(unserved: Unserved) -> ErrorCode {
    match unserved {
        Unserved::Elsewhere | Unserved::Unavailable => ErrorCode::NotCoordinator,
        Unserved::Loading => ErrorCode::CoordinatorLoadInProgress,
    }
}

/// The code for an error of the group coordinator.
pub fn group_code(error: GroupError) -> ErrorCode {
    match error {
        GroupError::MemberIdRequired => ErrorCode::MemberIdRequired,
        GroupError::InvalidSessionTimeout => ErrorCode::InvalidSessionTimeout,
        GroupError::GroupMaxSizeReached => ErrorCode::GroupMaxSizeReached,
        GroupError::InconsistentGroupProtocol => ErrorCode::InconsistentGroupProtocol,
        GroupError::UnknownMemberId => ErrorCode::UnknownMemberId,
        GroupError::FencedInstanceId => ErrorCode::FencedInstanceId,
        GroupError::IllegalGeneration => ErrorCode::IllegalGeneration,
        GroupError::RebalanceInProgress => ErrorCode::RebalanceInProgress,
        GroupError::CoordinatorNotAvailable => ErrorCode::CoordinatorNotAvailable,
        GroupError::NotCoordinator => ErrorCode::NotCoordinator,
        GroupError::CoordinatorLoadInProgress => ErrorCode::CoordinatorLoadInProgress,
        GroupError::UnknownServer => ErrorCode::UnknownServerError,
        GroupError::NonEmptyGroup => ErrorCode::NonEmptyGroup,
        GroupError::GroupIdNotFound => ErrorCode::GroupIdNotFound,
        GroupError::InvalidRequest => ErrorCode::InvalidRequest,
        GroupError::FencedMemberEpoch => ErrorCode::FencedMemberEpoch,
        GroupError::StaleMemberEpoch => ErrorCode::StaleMemberEpoch,
        GroupError::UnreleasedInstanceId => ErrorCode::UnreleasedInstanceId,
        GroupError::UnsupportedAssignor => ErrorCode::UnsupportedAssignor,
        GroupError::InvalidRegularExpression => ErrorCode::InvalidRegularExpression,
        GroupError::OffsetMetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
        GroupError::GroupSubscribedToTopic => ErrorCode::GroupSubscribedToTopic,
    }
}
