//! DescribeAcls, CreateAcls, DeleteAcls (KIP-140). Without an authorizer they answer SECURITY_DISABLED, as Kafka does.
//! Tools such as MirrorMaker and Kafka's own tests send these requests, continue after this answer, and fail without an
//! answer.

use wire::messages as m;
use wire::messages::create_acls_request::AclCreation;
use wire::messages::create_acls_response::AclCreationResult;
use wire::messages::delete_acls_request::DeleteAclsFilter;
use wire::messages::delete_acls_response::{DeleteAclsFilterResult, DeleteAclsMatchingAcl};
use wire::messages::describe_acls_response::{AclDescription, DescribeAclsResource};
use wire::{ErrorCode, Text};

use crate::failure::Failure;
use crate::request::Request;
use crate::security::acl::{Acl, AclFilter, CLUSTER_NAME, PatternType, Permission};
use crate::security::{Operation, ResourceType, audit};

/// Bound of the ACLs that one request may add, as in Kafka.
const CREATIONS_MAX: usize = 10_000;
/// Bound in bytes of a name, a principal or a host. They are held in memory.
const NAME_BYTES_MAX: usize = 1024;

fn invalid(why: impl Into<Text>) -> Failure {
    Failure::because(ErrorCode::InvalidRequest, why)
}

fn disabled(why: &'static str) -> Failure {
    Failure::because(ErrorCode::SecurityDisabled, why)
}

/// Answers DescribeAcls.
pub async fn describe(request: Request<m::DescribeAclsRequest>) -> m::DescribeAclsResponse {
    let Request { broker, body: request, .. } = &request;
    let filter = AclFilter {
        resource: request.resource_type_filter,
        name: request.resource_name_filter.as_ref().map(ToString::to_string),
        pattern: request.pattern_type_filter,
        principal: request.principal_filter.as_ref().map(ToString::to_string),
        host: request.host_filter.as_ref().map(ToString::to_string),
        operation: request.operation,
        permission: request.permission_type,
    };
    let failure = match broker.authorizer.is_enabled() {
        false => Some(disabled("No Authorizer is configured on the broker")),
        true => filter.problem().map(invalid),
    };
    if let Some(failure) = failure {
        return m::DescribeAclsResponse {
            error_code: failure.code.code(),
            error_message: Some(failure.text()),
            ..m::DescribeAclsResponse::default()
        };
    }
    let mut resources: Vec<DescribeAclsResource> = Vec::new();
    for acl in broker.authorizer.list(&filter) {
        let description = AclDescription {
            principal: acl.principal.clone().into(),
            host: acl.host.clone().into(),
            operation: acl.operation.code(),
            permission_type: acl.permission.code(),
        };
        // The ACLs are ordered by resource.
        let same = |last: &&mut DescribeAclsResource| {
            last.resource_type == acl.resource.code()
                && last.pattern_type == acl.pattern.code()
                && last.resource_name.as_str() == acl.name
        };
        match resources.last_mut().filter(same) {
            Some(resource) => resource.acls.push(description),
            None => resources.push(DescribeAclsResource {
                resource_type: acl.resource.code(),
                resource_name: acl.name.clone().into(),
                pattern_type: acl.pattern.code(),
                acls: vec![description],
            }),
        }
    }
    m::DescribeAclsResponse {
        error_message: Some(Text::EMPTY),
        resources,
        ..m::DescribeAclsResponse::default()
    }
}

/// Checks an ACL to add. The error messages are Kafka's.
fn acl_of(creation: &AclCreation) -> Result<Acl, Failure> {
    let resource = ResourceType::of(creation.resource_type).ok_or_else(|| invalid("Invalid resourceType"))?;
    let name = creation.resource_name.as_str();
    if resource == ResourceType::Cluster && name != CLUSTER_NAME {
        return Err(invalid(format!("The only valid name for the CLUSTER resource is {CLUSTER_NAME}")));
    }
    if name.is_empty() {
        return Err(invalid("Invalid empty resource name"));
    }
    let texts = [name, creation.principal.as_str(), creation.host.as_str()];
    if texts.iter().any(|text| text.len() > NAME_BYTES_MAX) {
        return Err(invalid(format!("Names, principals and hosts may have {NAME_BYTES_MAX} bytes at most")));
    }
    let principal = creation.principal.as_str();
    if !principal.split_once(':').is_some_and(|(kind, name)| !kind.is_empty() && !name.is_empty()) {
        return Err(invalid(format!(
            "Could not parse principal from `{principal}` (no colon is present separating the principal type from the principal name)"
        )));
    }
    Ok(Acl {
        resource,
        name: name.to_owned(),
        pattern: PatternType::of(creation.resource_pattern_type)
            .ok_or_else(|| invalid("Invalid patternType"))?,
        principal: principal.to_owned(),
        host: creation.host.to_string(),
        operation: Operation::of(creation.operation).ok_or_else(|| invalid("Invalid operation"))?,
        permission: Permission::of(creation.permission_type)
            .ok_or_else(|| invalid("Invalid permissionType"))?,
    })
}

/// Answers CreateAcls once the ACLs are durable.
pub async fn create(
    Request { broker, caller, body: request, .. }: Request<m::CreateAclsRequest>,
) -> m::CreateAclsResponse {
    let mut results: Vec<Result<Acl, Failure>> = match broker.authorizer.is_enabled() {
        false => request.creations.iter().map(|_| Err(disabled("No Authorizer is configured."))).collect(),
        true if request.creations.len() > CREATIONS_MAX => {
            let why =
                format!("Unable to perform excessively large batch operation of more than {CREATIONS_MAX}");
            let failure = Failure::because(ErrorCode::PolicyViolation, why);
            request.creations.iter().map(|_| Err(failure.clone())).collect()
        }
        true => request.creations.iter().map(acl_of).collect(),
    };
    let new: Vec<Acl> = results.iter().flatten().cloned().collect();
    let added = broker.blocking(move |broker| broker.authorizer.add(&new)).await;
    if let Err(error) = added {
        let failure = Failure::from(error);
        results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(failure.clone()));
    }
    for acl in results.iter().flatten() {
        audit::changed(&caller.origin, "added an ACL", &acl.name, &format!("{acl:?}"));
    }
    let result = |result: Result<Acl, Failure>| {
        let failure = result.err();
        AclCreationResult {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: Some(failure.map_or(Text::EMPTY, |failure| failure.text())),
        }
    };
    m::CreateAclsResponse {
        results: results.into_iter().map(result).collect(),
        ..m::CreateAclsResponse::default()
    }
}

fn filter_of(filter: &DeleteAclsFilter) -> AclFilter {
    AclFilter {
        resource: filter.resource_type_filter,
        name: filter.resource_name_filter.as_ref().map(ToString::to_string),
        pattern: filter.pattern_type_filter,
        principal: filter.principal_filter.as_ref().map(ToString::to_string),
        host: filter.host_filter.as_ref().map(ToString::to_string),
        operation: filter.operation,
        permission: filter.permission_type,
    }
}

/// Answers DeleteAcls once the removal is durable.
pub async fn delete(
    Request { broker, caller, body: request, .. }: Request<m::DeleteAclsRequest>,
) -> m::DeleteAclsResponse {
    let mut results: Vec<Result<Vec<Acl>, Failure>> = Vec::with_capacity(request.filters.len());
    if broker.authorizer.is_enabled() {
        let filters: Vec<AclFilter> = request.filters.iter().map(filter_of).collect();
        let wrong: Vec<Option<&str>> = filters.iter().map(AclFilter::problem).collect();
        let right = filters.iter().zip(&wrong).filter(|(_, wrong)| wrong.is_none());
        let right: Vec<AclFilter> = right.map(|(filter, _)| filter.clone()).collect();
        let removed = broker.blocking(move |broker| broker.authorizer.remove(&right)).await;
        let mut removed = removed.map(Vec::into_iter).map_err(Failure::from);
        results.extend(wrong.into_iter().map(|wrong| match (wrong, &mut removed) {
            (Some(why), _) => Err(invalid(why)),
            (None, Ok(removed)) => Ok(removed.next().unwrap_or_default()),
            (None, Err(failure)) => Err(failure.clone()),
        }));
    } else {
        results.extend(request.filters.iter().map(|_| Err(disabled("No Authorizer is configured."))));
    }
    for acl in results.iter().flatten().flatten() {
        audit::changed(&caller.origin, "removed an ACL", &acl.name, &format!("{acl:?}"));
    }
    let matching = |acl: Acl| DeleteAclsMatchingAcl {
        error_message: None,
        resource_type: acl.resource.code(),
        resource_name: acl.name.into(),
        pattern_type: acl.pattern.code(),
        principal: acl.principal.into(),
        host: acl.host.into(),
        operation: acl.operation.code(),
        permission_type: acl.permission.code(),
        ..DeleteAclsMatchingAcl::default()
    };
    let result = |result: Result<Vec<Acl>, Failure>| match result {
        Ok(acls) => DeleteAclsFilterResult {
            error_message: None,
            matching_acls: acls.into_iter().map(matching).collect(),
            ..DeleteAclsFilterResult::default()
        },
        Err(failure) => DeleteAclsFilterResult {
            error_code: failure.code.code(),
            error_message: Some(failure.text()),
            matching_acls: Vec::new(),
        },
    };
    m::DeleteAclsResponse {
        filter_results: results.into_iter().map(result).collect(),
        ..m::DeleteAclsResponse::default()
    }
}
