//! What an administrator changes through one broker of a cluster acts on the others. A part of `cluster.rs`.

use std::num::NonZeroU32;

use broker::{Listener, Origin, Principal};
use sasl::scram::{Hash, salted_password};

use super::*;

/// The time within which a change acts.
const SOON: Duration = Duration::from_secs(1);
/// Requests between the brokers have the principal of clients that have not authenticated.
const SETTINGS: &[(&str, &str)] = &[
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:ANONYMOUS"),
];
const ANONYMOUS: &str = "ANONYMOUS";

/// Codes in requests: types of resources, operations, permissions, and what matches any of them.
const ANY: i8 = 1;
const OF_TOPIC: i8 = 2;
const OF_BROKER: i8 = 4;
const LITERAL: i8 = 3;
const WRITE: i8 = 4;
const DENY: i8 = 2;
const ALLOW: i8 = 3;
const SET: i8 = 0;
const DELETE: i8 = 1;
const SHA256: i8 = 1;

const PASSWORD: &str = "secret";
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).unwrap();

fn connect_as(broker: &Arc<Broker>, user: &str) -> Connection {
    let address = "10.0.0.1:5000".parse().unwrap();
    broker.connect(Origin {
        principal: Principal::user(user),
        peer: address,
        local: address,
        listener: Arc::new(Listener { name: "PLAINTEXT".into(), advertised: None }),
    })
}

fn text(text: &str) -> Text {
    Text::copied(text)
}

/// Waits until each of these brokers shows a change that was just made. All of them have [`SOON`].
async fn soon(what: &str, brokers: &[i32], shows: impl AsyncFn(i32) -> bool) {
    let until = Instant::now() + SOON;
    for broker in brokers {
        while !shows(*broker).await {
            assert!(Instant::now() < until, "broker {broker} does not have it: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_changed_through_one_broker_acts_on_the_others() {
    let mut cluster = cluster_with(SETTINGS).await;
    // Every broker knows the topic.
    cluster.produce().await;
    for writer in 1..=3 {
        let others: Vec<i32> = (1..=3).filter(|node| *node != writer).collect();
        let user = format!("user-{writer}");
        acls(&cluster, writer, &others, &user).await;
        users(&cluster, writer, &others, &user).await;
        quotas(&cluster, writer, &others, &user).await;
        settings(&cluster, writer, &others).await;
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// The error and the throttle time of a record of this size for a partition that the broker leads. Repeated while clients would
/// repeat it.
async fn produce_as(cluster: &Cluster, node: i32, user: &str, bytes: usize) -> (ErrorCode, i32) {
    use m::produce_request::{PartitionProduceData, TopicProduceData};
    let until = Instant::now() + PATIENCE;
    loop {
        let leaders = cluster.leaders().await;
        let led = (0..).zip(&leaders).find(|(_, (leader, _))| *leader == node);
        if let Some((index, _)) = led {
            let records = Some(batch(&"x".repeat(bytes)).into());
            let topic = TopicProduceData {
                name: Text::from_static(TOPIC),
                partition_data: vec![PartitionProduceData { index, records }],
                ..Default::default()
            };
            let topic_data = vec![topic];
            let request =
                m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data, transactional_id: None };
            let mut client = connect_as(&cluster.brokers[&node], user);
            let answer: m::ProduceResponse = call(&mut client, 12, &request).await;
            let error = answer.responses[0].partition_responses[0].error_code;
            if !may_be_retried(error) {
                return (ErrorCode::from_code(error).unwrap(), answer.throttle_time_ms);
            }
        }
        assert!(Instant::now() < until, "broker {node} takes no record: {leaders:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn acls(cluster: &Cluster, writer: i32, others: &[i32], user: &str) {
    let mut client = connect(&cluster.brokers[&writer]);
    let principal = text(&format!("User:{user}"));
    let allowed = async |node: i32| {
        let (error, _) = produce_as(cluster, node, user, 1).await;
        assert!(matches!(error, ErrorCode::None | ErrorCode::TopicAuthorizationFailed), "{error:?}");
        error == ErrorCode::None
    };
    let listed = async |node: i32| {
        let request = m::DescribeAclsRequest {
            resource_type_filter: ANY,
            resource_name_filter: None,
            pattern_type_filter: ANY,
            principal_filter: Some(principal.clone()),
            host_filter: None,
            operation: ANY,
            permission_type: ANY,
        };
        let mut client = connect(&cluster.brokers[&node]);
        let answer: m::DescribeAclsResponse = call(&mut client, 3, &request).await;
        assert_eq!(answer.error_code, 0);
        answer.resources.iter().map(|of| of.acls.len()).sum::<usize>()
    };
    for node in others {
        assert!(!allowed(*node).await && listed(*node).await == 0);
    }
    for (permission_type, count) in [(ALLOW, 1), (DENY, 2)] {
        let creation = m::create_acls_request::AclCreation {
            resource_type: OF_TOPIC,
            resource_name: Text::from_static(TOPIC),
            resource_pattern_type: LITERAL,
            principal: principal.clone(),
            host: Text::from_static("*"),
            operation: WRITE,
            permission_type,
        };
        let request = m::CreateAclsRequest { creations: vec![creation] };
        let answer: m::CreateAclsResponse = call(&mut client, 3, &request).await;
        assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
        let allows = permission_type == ALLOW;
        let shows = async |node| allowed(node).await == allows && listed(node).await == count;
        soon("a new ACL", others, shows).await;
    }
    let filter = m::delete_acls_request::DeleteAclsFilter {
        resource_type_filter: ANY,
        resource_name_filter: None,
        pattern_type_filter: ANY,
        principal_filter: Some(principal.clone()),
        host_filter: None,
        operation: ANY,
        permission_type: DENY,
    };
    let request = m::DeleteAclsRequest { filters: vec![filter] };
    let answer: m::DeleteAclsResponse = call(&mut client, 3, &request).await;
    assert_eq!(answer.filter_results[0].matching_acls.len(), 1, "{answer:?}");
    soon("the end of an ACL", others, async |node| allowed(node).await && listed(node).await == 1).await;
}

async fn users(cluster: &Cluster, writer: i32, others: &[i32], user: &str) {
    use m::alter_user_scram_credentials_request::{ScramCredentialDeletion, ScramCredentialUpsertion};
    use m::describe_user_scram_credentials_request::UserName;
    let mut client = connect(&cluster.brokers[&writer]);
    let mut alter = async |request: m::AlterUserScramCredentialsRequest| {
        let answer: m::AlterUserScramCredentialsResponse = call(&mut client, 0, &request).await;
        assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
    };
    // The iterations of the password, as the broker tells them and as it would use them.
    let known = async |node: i32| {
        let request =
            m::DescribeUserScramCredentialsRequest { users: Some(vec![UserName { name: text(user) }]) };
        let broker = &cluster.brokers[&node];
        let answer: m::DescribeUserScramCredentialsResponse = call(&mut connect(broker), 0, &request).await;
        let told: Vec<i32> = answer.results[0].credential_infos.iter().map(|of| of.iterations).collect();
        (told, broker.users().find(Hash::Sha256, user))
    };
    let upsertion = ScramCredentialUpsertion {
        name: text(user),
        mechanism: SHA256,
        iterations: 4096,
        salt: Bytes::from_static(b"salt"),
        salted_password: salted_password(Hash::Sha256, PASSWORD, b"salt", ITERATIONS).into(),
    };
    alter(m::AlterUserScramCredentialsRequest { upsertions: vec![upsertion], ..Default::default() }).await;
    let shows = async |node| {
        let (told, credential) = known(node).await;
        told == [4096] && credential.is_some_and(|credential| credential.is_of(Hash::Sha256, PASSWORD))
    };
    soon("a new password", others, shows).await;
    let deletion = ScramCredentialDeletion { name: text(user), mechanism: SHA256 };
    alter(m::AlterUserScramCredentialsRequest { deletions: vec![deletion], ..Default::default() }).await;
    let shows = async |node| {
        let (told, credential) = known(node).await;
        told.is_empty() && credential.is_none()
    };
    soon("the end of a password", others, shows).await;
}

/// The user may write to the topic.
async fn quotas(cluster: &Cluster, writer: i32, others: &[i32], user: &str) {
    use m::alter_client_quotas_request::{EntityData, EntryData, OpData};
    const BYTE_RATE: f64 = 1000.0;
    let mut client = connect(&cluster.brokers[&writer]);
    // The quota as the broker tells it, and whether a client has to wait for it.
    let known = async |node: i32| {
        let request = m::DescribeClientQuotasRequest::default();
        let mut client = connect(&cluster.brokers[&node]);
        let answer: m::DescribeClientQuotasResponse = call(&mut client, 1, &request).await;
        let entries = answer.entries.unwrap();
        let of_user = entries.iter().filter(|of| of.entity[0].entity_name.as_ref().unwrap() == user);
        let told: Vec<f64> = of_user.flat_map(|of| &of.values).map(|of| of.value).collect();
        let (error, throttle_ms) = produce_as(cluster, node, user, 100_000).await;
        assert_eq!(error, ErrorCode::None);
        (told, throttle_ms > 0)
    };
    for value in [Some(BYTE_RATE), None] {
        let entity = EntityData { entity_type: text("user"), entity_name: Some(text(user)) };
        let remove = value.is_none();
        let op = OpData { key: text("producer_byte_rate"), value: value.unwrap_or_default(), remove };
        let entries = vec![EntryData { entity: vec![entity], ops: vec![op] }];
        let request = m::AlterClientQuotasRequest { entries, validate_only: false };
        let answer: m::AlterClientQuotasResponse = call(&mut client, 1, &request).await;
        assert_eq!(answer.entries[0].error_code, 0, "{answer:?}");
        let expected = (Vec::from_iter(value), value.is_some());
        soon("a quota", others, async |node| known(node).await == expected).await;
    }
}

/// Of all brokers, of one broker, and of a topic.
async fn settings(cluster: &Cluster, writer: i32, others: &[i32]) {
    const OF_ALL: &str = "message.max.bytes";
    const IN_TOPIC: &str = "max.message.bytes";
    const LARGE: usize = 4000;
    let admin = &cluster.brokers[&writer];
    // Whether the broker takes a large batch.
    let takes = async |node: i32| {
        let (error, _) = produce_as(cluster, node, ANONYMOUS, LARGE).await;
        assert!(matches!(error, ErrorCode::None | ErrorCode::MessageTooLarge), "{error:?}");
        error == ErrorCode::None
    };
    let limit = async |node: i32, (kind, key): (i8, &'static str)| {
        let name = if kind == OF_TOPIC { TOPIC.to_owned() } else { node.to_string() };
        config_of(&cluster.brokers[&node], kind, &name, key).await
    };
    for (kind, name, key) in [(OF_BROKER, "", OF_ALL), (OF_TOPIC, TOPIC, IN_TOPIC)] {
        let before = limit(writer, (kind, key)).await;
        alter_config(admin, kind, name, key, Some("3000")).await;
        let shows = async |node| limit(node, (kind, key)).await == "3000" && !takes(node).await;
        soon("a setting", others, shows).await;
        alter_config(admin, kind, name, key, None).await;
        let shows = async |node| limit(node, (kind, key)).await == before && takes(node).await;
        soon("the end of a setting", others, shows).await;
    }
    let own = writer.to_string();
    alter_config(admin, OF_BROKER, &own, OF_ALL, Some("3000")).await;
    assert!(!takes(writer).await, "its own setting acts on the broker");
    for node in others {
        assert!(takes(*node).await, "the setting of broker {writer} acts on broker {node}");
    }
    alter_config(admin, OF_BROKER, &own, OF_ALL, None).await;
    assert!(takes(writer).await);
}

/// Sets a setting, or returns it to its default.
pub async fn alter_config(broker: &Arc<Broker>, kind: i8, name: &str, key: &str, value: Option<&str>) {
    use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let config_operation = if value.is_some() { SET } else { DELETE };
    let config = AlterableConfig { name: text(key), config_operation, value: value.map(text) };
    let resource =
        AlterConfigsResource { resource_type: kind, resource_name: text(name), configs: vec![config] };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer: m::IncrementalAlterConfigsResponse = call(&mut connect(broker), 1, &request).await;
    assert_eq!(answer.responses[0].error_code, 0, "{answer:?}");
}

/// The value of a setting as a broker tells it.
async fn config_of(broker: &Arc<Broker>, kind: i8, name: &str, key: &str) -> String {
    use m::describe_configs_request::DescribeConfigsResource;
    let configuration_keys = Some(vec![text(key)]);
    let resource =
        DescribeConfigsResource { resource_type: kind, resource_name: text(name), configuration_keys };
    let request = m::DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer: m::DescribeConfigsResponse = call(&mut connect(broker), 4, &request).await;
    assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
    answer.results[0].configs[0].value.as_ref().unwrap().to_string()
}
