//! DescribeGroups, ListGroups, DeleteGroups.

use std::collections::HashSet;

use wire::messages::delete_groups_response::{DeletableGroupResult, DeleteGroupsResponse};
use wire::messages::describe_groups_response::{
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use wire::messages::list_groups_response::{ListGroupsResponse, ListedGroup};
use wire::messages::{DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::groups::{CONSUMER_PROTOCOL_TYPE, Group, GroupDescription, State};
use crate::request::Request;
use crate::request::error_codes::unserved_code;
use crate::security::{Operation, ResourceType, audit};

/// Types of groups.
const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";
/// From this version on, a group that does not exist is an error (KIP-1043).
const NOT_FOUND_FROM_VERSION: i16 = 6;

/// Answers DescribeGroups.
pub async fn describe(request: Request<DescribeGroupsRequest>) -> DescribeGroupsResponse {
    let version = request.version;
    let Request { broker, caller, body: request, .. } = &request;
    let describe_one = |id: &Text| {
        if let Err(error) = broker.authorizer.group(caller, Operation::Describe, id) {
            return DescribedGroup {
                error_code: error.code(),
                group_id: id.clone(),
                authorized_operations: i32::MIN,
                error_message: None,
                ..DescribedGroup::default()
            };
        }
        let operations = operations(broker, caller, id, request.include_authorized_operations);
        let describe = |group: &Group| {
            (group.state() != State::Dead).then(|| (group.describe(), group.consumer().is_some()))
        };
        let found = broker.coordinator.find(id);
        let unserved = found.as_ref().err().copied();
        let found = found.ok().flatten().and_then(|entry| entry.with(describe));
        let is_consumer = found.as_ref().is_some_and(|(_, is_consumer)| *is_consumer);
        let found = found.filter(|_| !is_consumer).map(|(group, _)| group);
        let mut described = DescribedGroup {
            group_id: id.clone(),
            group_state: Text::from_static(State::Dead.name()),
            authorized_operations: operations,
            error_message: None,
            ..DescribedGroup::default()
        };
        match found {
            _ if let Some(unserved) = unserved => described.error_code = unserved_code(unserved).code(),
            Some(group) => describe_into(&mut described, group),
            None if version >= NOT_FOUND_FROM_VERSION => {
                described.error_code = ErrorCode::GroupIdNotFound.code();
                let why = if is_consumer { "is not a classic group" } else { "not found" };
                described.error_message = Some(Text::from(format!("Group {id} {why}.")));
            }
            None => {}
        }
        if described.error_code != 0 {
            described.authorized_operations = i32::MIN;
        }
        described
    };
    // A repeated group is described once, so that the size of the answer stays proportional to the request.
    let mut named = HashSet::new();
    let asked = request.groups.iter().filter(|id| named.insert(*id));
    DescribeGroupsResponse { groups: asked.map(describe_one).collect(), ..DescribeGroupsResponse::default() }
}

/// The operations that the caller may do on a group, if the request asks for them (KIP-430).
pub fn operations(broker: &Broker, caller: &Caller, id: &str, asked: bool) -> i32 {
    if asked { broker.authorizer.operations(caller, ResourceType::Group, id) } else { i32::MIN }
}

fn describe_into(described: &mut DescribedGroup, group: GroupDescription) {
    let member = |member: crate::groups::MemberDescription| DescribedGroupMember {
        member_id: member.member_id.into(),
        group_instance_id: member.instance_id.map(Text::from),
        client_id: member.client_id.into(),
        client_host: member.client_host.into(),
        member_metadata: member.metadata,
        member_assignment: member.assignment,
    };
    described.group_state = Text::from_static(group.state.name());
    described.protocol_type = group.protocol_type.into();
    described.protocol_data = group.protocol.into();
    described.members = group.members.into_iter().map(member).collect();
}

/// Answers ListGroups. The filters by state (KIP-518) and type (KIP-848) ignore case.
pub async fn list(request: Request<ListGroupsRequest>) -> ListGroupsResponse {
    let Request { broker, caller, body: request, .. } = &request;
    let all = broker.authorizer.shows_cluster(caller, Operation::Describe);
    let shown =
        |id: &str| all || broker.authorizer.shows(caller, Operation::Describe, ResourceType::Group, id);
    let is_in = |filter: &[Text], word: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.as_str().eq_ignore_ascii_case(word))
    };
    // As in Kafka, the list of a coordinator that is still loading would be incomplete.
    if broker.coordinator.is_loading() {
        let error_code = ErrorCode::CoordinatorLoadInProgress.code();
        return ListGroupsResponse { error_code, ..ListGroupsResponse::default() };
    }
    let groups = broker
        .coordinator
        .all()
        .into_iter()
        .filter(|entry| shown(entry.id()))
        .filter_map(|entry| {
            let (state, protocol_type, kind) = entry.with(|group| match group.consumer() {
                Some(_) if group.state() == State::Dead => (State::Dead.name(), String::new(), CONSUMER),
                Some(consumer) => (consumer.state().name(), CONSUMER_PROTOCOL_TYPE.to_owned(), CONSUMER),
                None => (group.state().name(), group.describe().protocol_type, CLASSIC),
            });
            let listed = is_in(&request.states_filter, state) && is_in(&request.types_filter, kind);
            (listed && state != State::Dead.name()).then(|| ListedGroup {
                group_id: Text::from(entry.id().to_owned()),
                protocol_type: protocol_type.into(),
                group_state: Text::from_static(state),
                group_type: Text::from_static(kind),
            })
        })
        .collect();
    ListGroupsResponse { groups, ..ListGroupsResponse::default() }
}

/// Answers DeleteGroups.
pub async fn delete(
    Request { broker, caller, body: request, .. }: Request<DeleteGroupsRequest>,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    // Each group is deleted once, however often the request names it.
    let mut named = HashSet::new();
    for group_id in request.groups_names.into_iter().filter(|id| named.insert(id.clone())) {
        let allowed = broker.authorizer.group(&caller, Operation::Delete, &group_id);
        let result = match broker.coordinator.find(&group_id) {
            _ if let Err(error) = allowed => Err(Failure::new(error)),
            Err(unserved) => Err(Failure::new(unserved_code(unserved))),
            Ok(None) => Err(Failure::new(ErrorCode::GroupIdNotFound)),
            Ok(Some(entry)) => broker.coordinator.delete(&entry).await.map_err(Failure::from),
        };
        if result.is_ok() {
            audit::changed(&caller.origin, "deleted group", &group_id, "");
        }
        results.push(DeletableGroupResult {
            group_id,
            error_code: result.as_ref().err().map_or(0, |failure| failure.code.code()),
            ..DeletableGroupResult::default()
        });
    }
    DeleteGroupsResponse { results, ..DeleteGroupsResponse::default() }
}
