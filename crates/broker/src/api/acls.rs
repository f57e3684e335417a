//! DescribeAcls, CreateAcls, DeleteAcls: answered as Kafka does without an authorizer, that security is disabled. Tools
//! ask, MirrorMaker and Kafka's own tests among them, and go on after this answer, but not without one.

use wire::messages as m;
use wire::messages::create_acls_response::AclCreationResult;
use wire::messages::delete_acls_response::DeleteAclsFilterResult;
use wire::{ErrorCode, Text};

const CODE: i16 = ErrorCode::SecurityDisabled.code();
const WHY: Option<Text> = Some(Text::from_static("No Authorizer is configured."));

/// Answers DescribeAcls.
pub fn describe() -> m::DescribeAclsResponse {
    let why = Some(Text::from_static("No Authorizer is configured on the broker"));
    m::DescribeAclsResponse { error_code: CODE, error_message: why, ..m::DescribeAclsResponse::default() }
}

/// Answers CreateAcls.
pub fn create(request: &m::CreateAclsRequest) -> m::CreateAclsResponse {
    let refused = |_: &_| AclCreationResult { error_code: CODE, error_message: WHY };
    let results = request.creations.iter().map(refused).collect();
    m::CreateAclsResponse { results, ..m::CreateAclsResponse::default() }
}

/// Answers DeleteAcls.
pub fn delete(request: &m::DeleteAclsRequest) -> m::DeleteAclsResponse {
    let refused =
        |_: &_| DeleteAclsFilterResult { error_code: CODE, error_message: WHY, matching_acls: Vec::new() };
    let filter_results = request.filters.iter().map(refused).collect();
    m::DeleteAclsResponse { filter_results, ..m::DeleteAclsResponse::default() }
}
