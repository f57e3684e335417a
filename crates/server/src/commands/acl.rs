//! `mainstem acl`: list, add, delete.

use clap::ValueEnum;
use client::check;
use serde_json::json;
use wire::Text;
use wire::messages::create_acls_request::AclCreation;
use wire::messages::delete_acls_request::DeleteAclsFilter;
use wire::messages::delete_acls_response::DeleteAclsMatchingAcl;
use wire::messages::{CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest};

use super::cluster::Cluster;
use super::{Table, connect, show};
use crate::arguments::{
    AclAddition, AclFilter, AclVerb, Bootstrap, OperationChoice, Output, PatternChoice, PermissionChoice,
    ResourceChoice,
};

/// In a filter: any type, operation or permission.
const ANY: i8 = 1;
/// The name of the cluster as a resource.
const CLUSTER_NAME: &str = "kafka-cluster";

/// Runs the command against a server.
pub fn acl(bootstrap: &Bootstrap, verb: AclVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        AclVerb::List(filter) => {
            let table = table(&found(&mut cluster, &filter)?);
            show(output, || table.to_text(), || table.to_json())
        }
        AclVerb::Add(asked) => add(&mut cluster, &asked, output),
        AclVerb::Delete { filter, all, dry_run } => {
            if filter.is_all() && !all {
                anyhow::bail!("no option says which ACLs are deleted; --all deletes every one");
            }
            let acls = if dry_run { found(&mut cluster, &filter)? } else { delete(&mut cluster, &filter)? };
            let table = table(&acls);
            let note = if dry_run { "nothing is changed; these would be deleted\n\n" } else { "" };
            show(output, || format!("{note}{}", table.to_text()), || table.to_json())
        }
    }
}

/// One ACL, in Kafka's codes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Acl {
    principal: String,
    resource_type: i8,
    resource: String,
    pattern: i8,
    host: String,
    operation: i8,
    permission: i8,
}

/// The word for a code, or the code.
fn word<T: ValueEnum>(code: i8, code_of: impl Fn(&T) -> i8) -> String {
    let found = T::value_variants().iter().find(|value| code_of(value) == code);
    let named = found.and_then(ValueEnum::to_possible_value);
    named.map_or_else(|| code.to_string(), |value| value.get_name().to_owned())
}

fn table(acls: &[Acl]) -> Table {
    let mut table =
        Table::new(&["PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN"]);
    for acl in acls {
        table.row([
            acl.principal.clone(),
            acl.host.clone(),
            word::<PermissionChoice>(acl.permission, |value| *value as i8),
            word::<OperationChoice>(acl.operation, |value| *value as i8),
            word::<ResourceChoice>(acl.resource_type, |value| *value as i8),
            acl.resource.clone(),
            word::<PatternChoice>(acl.pattern, |value| *value as i8),
        ]);
    }
    table
}

fn of_filter(filter: &AclFilter) -> DeleteAclsFilter {
    let text = |text: &Option<String>| text.as_deref().map(Text::copied);
    DeleteAclsFilter {
        resource_type_filter: filter.resource_type.map_or(ANY, |choice| choice as i8),
        resource_name_filter: text(&filter.name),
        pattern_type_filter: filter.pattern as i8,
        principal_filter: text(&filter.principal),
        host_filter: text(&filter.host),
        operation: filter.operation.map_or(ANY, |choice| choice as i8),
        permission_type: filter.permission.map_or(ANY, |choice| choice as i8),
    }
}

fn found(cluster: &mut Cluster, filter: &AclFilter) -> anyhow::Result<Vec<Acl>> {
    let asked = of_filter(filter);
    let request = DescribeAclsRequest {
        resource_type_filter: asked.resource_type_filter,
        resource_name_filter: asked.resource_name_filter,
        pattern_type_filter: asked.pattern_type_filter,
        principal_filter: asked.principal_filter,
        host_filter: asked.host_filter,
        operation: asked.operation,
        permission_type: asked.permission_type,
    };
    let answer = cluster.any()?.call(&request)?;
    check(answer.error_code, answer.error_message.as_ref())?;
    let mut acls = Vec::new();
    for resource in &answer.resources {
        acls.extend(resource.acls.iter().map(|acl| Acl {
            principal: acl.principal.to_string(),
            resource_type: resource.resource_type,
            resource: resource.resource_name.to_string(),
            pattern: resource.pattern_type,
            host: acl.host.to_string(),
            operation: acl.operation,
            permission: acl.permission_type,
        }));
    }
    acls.sort();
    Ok(acls)
}

/// The operations of a producer or a consumer on each of its resources, as `kafka-acls.sh` gives them.
fn operations(asked: &AclAddition, resource: ResourceChoice) -> Vec<OperationChoice> {
    use OperationChoice::{Create, Describe, Read, Write};
    let mut operations = asked.operations.clone();
    if asked.producer {
        operations.extend_from_slice(match resource {
            ResourceChoice::Topic => &[Write, Describe, Create],
            ResourceChoice::TransactionalId => &[Write, Describe],
            _ => &[],
        });
    }
    if asked.consumer {
        operations.extend_from_slice(match resource {
            ResourceChoice::Topic => &[Read, Describe],
            ResourceChoice::Group => &[Read],
            _ => &[],
        });
    }
    operations.sort_by_key(|operation| *operation as i8);
    operations.dedup();
    operations
}

/// The ACLs that are asked for.
fn additions(asked: &AclAddition) -> anyhow::Result<Vec<Acl>> {
    let cluster = if asked.cluster { vec![CLUSTER_NAME.to_owned()] } else { Vec::new() };
    let resources = [
        (ResourceChoice::Topic, &asked.topics),
        (ResourceChoice::Group, &asked.groups),
        (ResourceChoice::Cluster, &cluster),
        (ResourceChoice::TransactionalId, &asked.transactional_ids),
        (ResourceChoice::DelegationToken, &asked.delegation_tokens),
        (ResourceChoice::User, &asked.users),
    ];
    let permission = if asked.deny { PermissionChoice::Deny } else { PermissionChoice::Allow };
    let mut acls = Vec::new();
    for (resource_type, names) in resources {
        // The cluster has one name, and no beginning of it.
        let prefixed = asked.prefixed && resource_type != ResourceChoice::Cluster;
        let pattern = if prefixed { PatternChoice::Prefixed } else { PatternChoice::Literal };
        for resource in names {
            for operation in operations(asked, resource_type) {
                acls.extend(asked.principals.iter().map(|principal| Acl {
                    principal: principal.clone(),
                    resource_type: resource_type as i8,
                    resource: resource.clone(),
                    pattern: pattern as i8,
                    host: asked.host.clone(),
                    operation: operation as i8,
                    permission: permission as i8,
                }));
            }
        }
    }
    if acls.is_empty() {
        anyhow::bail!(
            "name a resource: --topic, --group, --cluster, --transactional-id, --user or --delegation-token"
        );
    }
    acls.sort();
    Ok(acls)
}

fn add(cluster: &mut Cluster, asked: &AclAddition, output: Output) -> anyhow::Result<()> {
    let acls = additions(asked)?;
    let creation = |acl: &Acl| AclCreation {
        resource_type: acl.resource_type,
        resource_name: Text::copied(&acl.resource),
        resource_pattern_type: acl.pattern,
        principal: Text::copied(&acl.principal),
        host: Text::copied(&acl.host),
        operation: acl.operation,
        permission_type: acl.permission,
    };
    let request = CreateAclsRequest { creations: acls.iter().map(creation).collect() };
    for result in &cluster.controller()?.call(&request)?.results {
        check(result.error_code, result.error_message.as_ref())?;
    }
    let table = table(&acls);
    show(output, || table.to_text(), || json!({"added": table.to_json()}))
}

fn delete(cluster: &mut Cluster, filter: &AclFilter) -> anyhow::Result<Vec<Acl>> {
    let request = DeleteAclsRequest { filters: vec![of_filter(filter)] };
    let mut acls = Vec::new();
    for result in &cluster.controller()?.call(&request)?.filter_results {
        check(result.error_code, result.error_message.as_ref())?;
        for deleted in &result.matching_acls {
            check(deleted.error_code, deleted.error_message.as_ref())?;
            acls.push(of_deleted(deleted));
        }
    }
    acls.sort();
    Ok(acls)
}

fn of_deleted(acl: &DeleteAclsMatchingAcl) -> Acl {
    Acl {
        principal: acl.principal.to_string(),
        resource_type: acl.resource_type,
        resource: acl.resource_name.to_string(),
        pattern: acl.pattern_type,
        host: acl.host.to_string(),
        operation: acl.operation,
        permission: acl.permission_type,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> AclAddition {
        AclAddition {
            principals: vec!["User:a".into(), "User:b".into()],
            operations: Vec::new(),
            topics: vec!["t".into()],
            groups: Vec::new(),
            transactional_ids: Vec::new(),
            users: Vec::new(),
            delegation_tokens: Vec::new(),
            cluster: false,
            prefixed: false,
            host: "*".into(),
            deny: false,
            producer: false,
            consumer: false,
        }
    }

    #[test]
    fn producers_and_consumers_get_what_kafkas_tool_gives_them() {
        let words = |asked: &AclAddition| -> Vec<String> {
            let acls = additions(asked).unwrap();
            acls.iter()
                .filter(|acl| acl.principal == "User:a")
                .map(|acl| {
                    let resource = word::<ResourceChoice>(acl.resource_type, |value| *value as i8);
                    let operation = word::<OperationChoice>(acl.operation, |value| *value as i8);
                    format!("{resource} {} {operation} {}", acl.resource, acl.pattern)
                })
                .collect()
        };
        let producer =
            AclAddition { producer: true, transactional_ids: vec!["x".into()], prefixed: true, ..asked() };
        assert_eq!(
            words(&producer),
            [
                "topic t write 4",
                "topic t create 4",
                "topic t describe 4",
                "transactional-id x write 4",
                "transactional-id x describe 4",
            ]
        );
        let consumer = AclAddition { consumer: true, groups: vec!["g".into()], ..asked() };
        assert_eq!(words(&consumer), ["topic t read 3", "topic t describe 3", "group g read 3"]);
        let cluster = AclAddition {
            operations: vec![OperationChoice::Alter],
            cluster: true,
            topics: Vec::new(),
            prefixed: true,
            ..asked()
        };
        assert_eq!(words(&cluster), ["cluster kafka-cluster alter 3"]);
        assert_eq!(additions(&cluster).unwrap().len(), 2);
        assert!(additions(&AclAddition { cluster: false, ..cluster }).is_err());
        assert_eq!(word::<ResourceChoice>(99, |value| *value as i8), "99");
    }
}
