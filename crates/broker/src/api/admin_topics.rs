//! CreateTopics, DeleteTopics, CreatePartitions.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;
use wire::messages::create_partitions_request::CreatePartitionsTopic;
use wire::messages::create_partitions_response::{CreatePartitionsResponse, CreatePartitionsTopicResult};
use wire::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use wire::messages::{CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest};
use wire::{ErrorCode, Text};

use crate::api::admin_configs::{Described, described_topic_configs};
use crate::api::alter_configs::twice;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::quotas::Payer;
use crate::request::Request;
use crate::security::{Operation, ResourceType, audit};
use crate::settings::topic::{conflict, topic_setting};
use crate::topics::{Leaders, Topic};

/// From these versions on, a client over its quota is refused. Earlier versions are only throttled (KIP-599).
const CREATE_STRICT_FROM_VERSION: i16 = 6;
const DELETE_STRICT_FROM_VERSION: i16 = 5;
const GROW_STRICT_FROM_VERSION: i16 = 3;

/// New topics wait so long for their copies, and are looked at so often.
const COPIED_WITHIN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// Counts the changes of one request towards the client's quota.
struct Mutations {
    broker: Arc<Broker>,
    payer: Payer,
    strict: bool,
    throttle_ms: i32,
}

impl Mutations {
    /// Counts partitions that are created or deleted. Refuses them if the client has used up its quota.
    fn count(&mut self, partitions: i32) -> Result<(), Failure> {
        let taken = self.broker.quotas.record_mutations(&self.payer, f64::from(partitions), self.strict);
        self.throttle_ms = self.throttle_ms.max(taken.unwrap_or_else(|ms| ms));
        let code = ErrorCode::ThrottlingQuotaExceeded;
        taken.map(drop).map_err(|_| Failure::because(code, code.message()))
    }
}

/// As in Kafka's controller, a request with a timeout of zero or less does nothing.
fn check_time(timeout_ms: i32) -> Result<(), Failure> {
    if timeout_ms <= 0 { Err(ErrorCode::RequestTimedOut.into()) } else { Ok(()) }
}

/// The message of a failure. As in Kafka, a time-out has none.
fn told_of(failure: &Failure) -> Option<Text> {
    (failure.code != ErrorCode::RequestTimedOut).then(|| failure.text())
}

/// The partitions that one CreateTopics may name, and the records of metadata that Kafka's controller may write for it: one
/// for each topic, partition and setting.
const CREATED_MAX: i64 = 10_000;
/// Topics that are looked at before other tasks get their turn.
const LOOKS_BEFORE_YIELD: usize = 1000;

/// Refuses a request that would create very much, as a whole. `topics` are those that the caller may create.
async fn check_created(broker: &Broker, topics: &[&CreatableTopic]) -> Result<(), Failure> {
    let named = |topic: &&CreatableTopic| match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => i64::from(broker.config.num_partitions),
        (0, partitions) => i64::from(partitions.max(0)),
        (assigned, _) => i64::try_from(assigned).unwrap_or(i64::MAX),
    };
    let because = |why: &'static str| Err(Failure::because(ErrorCode::PolicyViolation, why));
    if topics.iter().map(named).sum::<i64>() > CREATED_MAX {
        return because("Excessively large number of partitions per request.");
    }
    let settings = |topic: &&CreatableTopic| i64::try_from(topic.configs.len()).unwrap_or(i64::MAX);
    if topics.iter().map(|topic| 1 + named(topic) + settings(topic)).sum::<i64>() <= CREATED_MAX {
        // Even if nothing of it is wrong.
        return Ok(());
    }
    let mut records = 0;
    for (looked, topic) in topics.iter().enumerate() {
        if looked % LOOKS_BEFORE_YIELD == LOOKS_BEFORE_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        if let Ok(Plan { partitions, configs }) = Plan::of(broker, topic) {
            records += 1 + i64::from(partitions) + i64::try_from(configs.len()).unwrap_or(i64::MAX);
        }
        if records > CREATED_MAX {
            return because("Unable to perform excessively large batch operation.");
        }
    }
    Ok(())
}

/// A topic that can be created.
struct Plan {
    partitions: i32,
    configs: BTreeMap<String, String>,
}

impl Plan {
    /// Checks what a client asks for. The checks follow Kafka's order, which decides which of several errors is reported.
    fn of(broker: &Broker, topic: &CreatableTopic) -> Result<Plan, Failure> {
        broker.topics.check_new(&topic.name)?;
        let mut configs = BTreeMap::new();
        for config in &topic.configs {
            let setting = topic_setting(&config.name);
            let setting = setting.ok_or_else(|| {
                Failure::because(
                    ErrorCode::InvalidConfig,
                    format!("Unknown topic config name: {}", config.name),
                )
            })?;
            let Some(value) = &config.value else {
                let why = format!("Null value not supported for topic configs: {}", config.name);
                return Err(Failure::because(ErrorCode::InvalidConfig, why));
            };
            if let Some(problem) = setting.problem(value) {
                return Err(Failure::because(ErrorCode::InvalidConfig, problem));
            }
            configs.insert(config.name.to_string(), value.to_string());
        }
        if let Some(why) = conflict(&configs, &broker.configs.now()) {
            return Err(Failure::because(ErrorCode::InvalidConfig, why));
        }
        let partitions = partitions_of(broker, topic)?;
        broker.topics.check_count(partitions)?;
        Ok(Plan { partitions, configs })
    }
}

fn refused(topic: &CreatableTopic, failure: &Failure) -> CreatableTopicResult {
    CreatableTopicResult {
        name: topic.name.clone(),
        error_code: failure.code.code(),
        error_message: told_of(failure),
        configs: Some(Vec::new()),
        ..CreatableTopicResult::default()
    }
}

/// Answers CreateTopics.
pub async fn create(
    Request { broker, caller, version, body: request, .. }: Request<CreateTopicsRequest>,
) -> CreateTopicsResponse {
    let strict = version >= CREATE_STRICT_FROM_VERSION;
    let mut mutations = Mutations { broker: broker.clone(), payer: caller.payer(), strict, throttle_ms: 0 };
    let repeated = twice(request.topics.iter().map(|topic| &topic.name));
    let in_time = check_time(request.timeout_ms);
    if in_time.is_ok() {
        let once = request.topics.iter().filter(|topic| !repeated.contains(&topic.name));
        let everything = broker.authorizer.shows_cluster(&caller, Operation::Create);
        let created = once.filter(|topic| {
            let (operation, kind) = (Operation::Create, ResourceType::Topic);
            everything || broker.authorizer.shows(&caller, operation, kind, &topic.name)
        });
        let created: Vec<&CreatableTopic> = created.collect();
        if let Err(failure) = check_created(&broker, &created).await {
            let topics = request.topics.iter().map(|topic| refused(topic, &failure)).collect();
            return CreateTopicsResponse { topics, throttle_time_ms: mutations.throttle_ms };
        }
    }
    let mut topics: Vec<CreatableTopicResult> = Vec::with_capacity(request.topics.len());
    let mut told = HashSet::new();
    for topic in &request.topics {
        let result = match repeated.contains(&topic.name) {
            false => match &in_time {
                Ok(()) => create_one(&broker, &caller, topic, request.validate_only, &mut mutations).await,
                Err(failure) => Err(failure.clone()),
            },
            true if !told.insert(&topic.name) => continue,
            true => Err(Failure::because(ErrorCode::InvalidRequest, "Duplicate topic name.")),
        };
        topics.push(result.unwrap_or_else(|failure| refused(topic, &failure)));
    }
    if !request.validate_only {
        let created = topics.iter().filter(|topic| topic.error_code == ErrorCode::None.code());
        until_copied(&broker, created.map(|topic| &topic.name)).await;
    }
    CreateTopicsResponse { topics, throttle_time_ms: mutations.throttle_ms }
}

async fn create_one(
    broker: &Arc<Broker>,
    caller: &Caller,
    topic: &CreatableTopic,
    validate_only: bool,
    mutations: &mut Mutations,
) -> Result<CreatableTopicResult, Failure> {
    let authorizer = &broker.authorizer;
    if !authorizer.shows_cluster(caller, Operation::Create) {
        let allowed = authorizer.topic(caller, Operation::Create, &topic.name);
        allowed.map_err(|error| Failure::because(error, "Authorization failed."))?;
    }
    let Plan { partitions, configs } = Plan::of(broker, topic)?;
    let described = described_topic_configs(broker, &configs, None);
    mutations.count(partitions)?;
    let (id, replicas) = if validate_only {
        (Uuid::nil(), if broker.logs.are_moving() { broker.replicas_of_new(&configs) } else { 1 })
    } else {
        let details = format!("partitions {partitions}, settings {configs:?}");
        let first = |of: &CreatableReplicaAssignment| Some((of.partition_index, *of.broker_ids.first()?));
        let leaders = topic.assignments.iter().filter_map(first).collect();
        let created = broker.create_topic(&topic.name, partitions, leaders, configs).await?;
        audit::changed(&caller.origin, "created topic", &topic.name, &details);
        let chosen = topic.assignments.iter().map(|of| (of.partition_index, Some(of.broker_ids.clone())));
        place(broker, &created, chosen.collect()).await;
        let replicas = broker.replicas_of(&created);
        (created.id, created.partition(0).map_or(1, |first| replicas.of(&first).all.len()))
    };
    if !authorizer.shows(caller, Operation::DescribeConfigs, ResourceType::Topic, &topic.name) {
        // The answer hides the settings and the values derived from them (KIP-525).
        return Ok(CreatableTopicResult {
            name: topic.name.clone(),
            topic_id: id,
            error_message: None,
            topic_config_error_code: ErrorCode::TopicAuthorizationFailed.code(),
            num_partitions: -1,
            replication_factor: -1,
            configs: Some(Vec::new()),
            ..CreatableTopicResult::default()
        });
    }
    let config_of = |described: Described| CreatableTopicConfigs {
        name: described.name,
        value: Some(Text::from(described.value)),
        read_only: false,
        config_source: described.source,
        is_sensitive: false,
    };
    Ok(CreatableTopicResult {
        name: topic.name.clone(),
        topic_id: id,
        error_message: None,
        num_partitions: partitions,
        replication_factor: i16::try_from(replicas).unwrap_or(i16::MAX),
        configs: Some(described.into_iter().map(config_of).collect()),
        ..CreatableTopicResult::default()
    })
}

/// Waits a little until the partitions of new topics have the replicas in sync that `acks=all` needs, and two at least, as far as so
/// many brokers are alive. The first topic with copies brings a log its copy set, and producers would be refused until then.
async fn until_copied(broker: &Arc<Broker>, names: impl Iterator<Item = &Text>) {
    let topics: Vec<Arc<Topic>> = names.filter_map(|name| broker.topics.find(name)).collect();
    let is_copied =
        |topic: &Arc<Topic>| broker.replicas_of(topic).are_in_sync(topic.config().in_sync_min.max(2));
    let until = Instant::now() + COPIED_WITHIN;
    while !topics.iter().all(is_copied) && Instant::now() < until {
        tokio::time::sleep(LOOK).await;
    }
}

/// Lets new partitions go to the brokers that were chosen for them.
async fn place(broker: &Arc<Broker>, topic: &Arc<Topic>, chosen: Vec<(i32, Option<Vec<i32>>)>) {
    if !broker.logs.are_moving() || chosen.is_empty() {
        return;
    }
    let name = topic.name.clone();
    let topic = topic.clone();
    let placed = broker.blocking(move |broker| broker.topics.alter_moves(&topic, &chosen)).await;
    let failed = match placed {
        Ok(placed) => placed.into_iter().find_map(Result::err).map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(error) = failed {
        tracing::warn!(topic = %name, error, "partitions are not at the brokers that were chosen for them");
    }
}

/// The number of partitions of a new topic. A cluster has as many replicas of all topics with copies, however many
/// are asked for (`default.replication.factor`).
fn partitions_of(broker: &Broker, topic: &CreatableTopic) -> Result<i32, Failure> {
    let refused = |why: &'static str| Err(Failure::because(ErrorCode::InvalidRequest, why));
    if !topic.assignments.is_empty() {
        if topic.replication_factor != -1 {
            return refused(
                "A manual partition assignment was specified, but replication factor was not set to -1.",
            );
        }
        if topic.num_partitions != -1 {
            return refused(
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            );
        }
        let mut indexes: Vec<i32> = topic.assignments.iter().map(|a| a.partition_index).collect();
        indexes.sort_unstable();
        let invalid = |why: String| Err(Failure::because(ErrorCode::InvalidReplicaAssignment, why));
        if let Some(twice) = indexes.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!(
                "Found multiple manual partition assignments for partition {}",
                twice[0]
            ));
        }
        for assignment in &topic.assignments {
            check_replicas(broker, &assignment.broker_ids)?;
        }
        let count = i32::try_from(indexes.len()).unwrap_or(i32::MAX);
        if indexes.iter().copied().ne(0..count) {
            return invalid("partitions should be a consecutive 0-based integer sequence".into());
        }
        return Ok(count);
    }
    if topic.num_partitions < -1 || topic.num_partitions == 0 {
        let why = "Number of partitions was set to an invalid non-positive value.";
        return Err(Failure::because(ErrorCode::InvalidPartitions, why));
    }
    let brokers = broker.placement.count();
    match topic.replication_factor {
        factor if factor == -1 || (1..=brokers).contains(&i32::from(factor)) => {}
        factor if factor < 1 => {
            let why = "Replication factor must be larger than 0, or -1 to use the default value.";
            return Err(Failure::because(ErrorCode::InvalidReplicationFactor, why));
        }
        factor => {
            let why = format!(
                "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be reached because only {brokers} broker(s) are registered."
            );
            return Err(Failure::because(ErrorCode::InvalidReplicationFactor, why));
        }
    }
    Ok(if topic.num_partitions == -1 { broker.config.num_partitions } else { topic.num_partitions })
}

/// Checks the replicas that a client chose for a partition.
fn check_replicas(broker: &Broker, replicas: &[i32]) -> Result<(), Failure> {
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let invalid = |why: String| {
        let why = format!("The manual partition assignment includes {why}");
        Err(Failure::because(ErrorCode::InvalidReplicaAssignment, why))
    };
    match (replicas.iter().find(|replica| !broker.placement.has(**replica)), twice) {
        _ if replicas.is_empty() => invalid("an empty replica list.".into()),
        (_, Some(twice)) if broker.placement.has(twice) => {
            invalid(format!("the broker {twice} more than once."))
        }
        (Some(other), _) => invalid(format!("broker {other}, but no such broker is registered.")),
        _ => Ok(()),
    }
}

/// Answers DeleteTopics.
pub async fn delete(
    Request { broker, caller, version, body: request, .. }: Request<DeleteTopicsRequest>,
) -> DeleteTopicsResponse {
    let strict = version >= DELETE_STRICT_FROM_VERSION;
    let mut mutations = Mutations { broker: broker.clone(), payer: caller.payer(), strict, throttle_ms: 0 };
    let mut responses = Vec::new();
    let by_name = request.topic_names.iter().map(|name| (Some(name.clone()), Uuid::nil()));
    let by_state = request.topics.iter().map(|topic| (topic.name.clone(), topic.topic_id));
    let all = broker.authorizer.shows_cluster(&caller, Operation::Delete);
    let sees =
        |name: &str| all || broker.authorizer.shows(&caller, Operation::Describe, ResourceType::Topic, name);
    let asked: Vec<(Option<Text>, Uuid)> = if version >= 6 { by_state.collect() } else { by_name.collect() };
    let repeated = Repeated::of(&broker, &asked);
    let mut told = HashSet::new();
    for (name, id) in asked {
        if name.is_none() && repeated.both.contains(&id) {
            // The result with the topic's name covers this id.
            continue;
        }
        let repeat = repeated.why(&broker, &name, id);
        if repeat.is_some() && !told.insert((name.clone(), id)) {
            continue;
        }
        let may = |name: &str| match all {
            true => Ok(()),
            false => broker.authorizer.topic(&caller, Operation::Delete, name),
        };
        let found: Result<Arc<Topic>, ErrorCode> = match (&name, id.is_nil()) {
            (Some(_), false) | (None, true) => Err(ErrorCode::InvalidRequest),
            _ if repeat.is_some() => Err(ErrorCode::InvalidRequest),
            // A caller that may not describe the topic does not learn whether it exists.
            (Some(name), true) => match (broker.topics.find(name), may(name)) {
                (Some(topic), allowed) => allowed.map(|()| topic),
                (None, Err(error)) if !sees(name) => Err(error),
                (None, _) => Err(ErrorCode::UnknownTopicOrPartition),
            },
            (None, false) => match broker.topics.find_id(&id) {
                Some(topic) => may(&topic.name).map(|()| topic),
                None => Err(ErrorCode::UnknownTopicId),
            },
        };
        let shown = found.as_ref().err() == Some(&ErrorCode::TopicAuthorizationFailed) && !id.is_nil();
        let shown = broker.topics.find_id(&id).filter(|topic| shown && sees(&topic.name));
        let result = match found {
            _ if let Err(failure) = check_time(request.timeout_ms) => Err(failure),
            Err(ErrorCode::InvalidRequest) => {
                let why = match (&name, id.is_nil()) {
                    (None, true) => "Neither topic name nor id were specified.",
                    (Some(_), false) => "You may not specify both topic name and topic id.",
                    _ => repeat.unwrap_or_default(),
                };
                Err(Failure::because(ErrorCode::InvalidRequest, why))
            }
            Err(error) => Err(error.into()),
            Ok(topic) if topic.is_internal() => give_up_lost(&broker, topic).await,
            Ok(topic) => {
                let partitions = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
                match mutations.count(partitions) {
                    Ok(()) => broker.delete_topic(&topic).await.map(|()| topic),
                    Err(failure) => Err(failure),
                }
            }
        };
        let mut answer = DeletableTopicResult {
            name: name.or(shown.map(|topic| topic.name.clone())),
            topic_id: id,
            error_message: None,
            ..DeletableTopicResult::default()
        };
        if repeat.is_some()
            && let Some(topic) = name_in(&broker, &answer.name)
            && repeated.both.contains(&topic.id)
        {
            answer.topic_id = topic.id;
        }
        match result {
            Ok(topic) => {
                audit::changed(&caller.origin, "deleted topic", &topic.name, "");
                (answer.name, answer.topic_id) = (Some(topic.name.clone()), topic.id);
            }
            Err(failure) => {
                answer.error_code = failure.code.code();
                answer.error_message = told_of(&failure);
            }
        }
        if version < 6 && answer.name.is_none() {
            answer.name = Some(Text::default());
        }
        responses.push(answer);
    }
    DeleteTopicsResponse { responses, throttle_time_ms: mutations.throttle_ms }
}

fn name_in(broker: &Broker, name: &Option<Text>) -> Option<Arc<Topic>> {
    broker.topics.find(name.as_ref()?)
}

/// Topics that a request names more than once. None of them is deleted.
struct Repeated {
    names: HashSet<Text>,
    ids: HashSet<Uuid>,
    /// The topics named both by id and by name.
    both: HashSet<Uuid>,
}

impl Repeated {
    fn of(broker: &Broker, asked: &[(Option<Text>, Uuid)]) -> Repeated {
        let names = || asked.iter().filter_map(|(name, _)| name.as_ref());
        let ids = || asked.iter().filter(|(name, id)| name.is_none() && !id.is_nil()).map(|(_, id)| *id);
        let by_id: HashSet<Uuid> = ids().collect();
        let found = names().filter_map(|name| broker.topics.find(name)).map(|topic| topic.id);
        let both = found.filter(|id| by_id.contains(id)).collect();
        Repeated { names: twice(names().cloned()), ids: twice(ids()), both }
    }

    fn why(&self, broker: &Broker, name: &Option<Text>, id: Uuid) -> Option<&'static str> {
        match name {
            Some(name) if self.names.contains(name) => Some("Duplicate topic name."),
            Some(name) => {
                let id = broker.topics.find(name)?.id;
                let known = self.both.contains(&id);
                known.then_some("The provided topic name maps to an ID that was already supplied.")
            }
            None if self.ids.contains(&id) => Some("Duplicate topic id."),
            None => None,
        }
    }
}

/// The server's own topics cannot be deleted. For such a topic, only its lost partitions are given up.
async fn give_up_lost(broker: &Arc<Broker>, topic: Arc<Topic>) -> Result<Arc<Topic>, Failure> {
    if !topic.partitions().iter().any(|partition| partition.is_lost()) {
        return Err(Failure::because(
            ErrorCode::InvalidRequest,
            "The server's own topics cannot be deleted.",
        ));
    }
    let name = topic.name.to_string();
    broker.blocking(move |broker| broker.topics.give_up_lost(&name)).await?;
    Ok(topic)
}

/// Answers CreatePartitions (KIP-195).
pub async fn create_partitions(
    Request { broker, caller, version, body: request, .. }: Request<CreatePartitionsRequest>,
) -> CreatePartitionsResponse {
    let strict = version >= GROW_STRICT_FROM_VERSION;
    let mut mutations = Mutations { broker: broker.clone(), payer: caller.payer(), strict, throttle_ms: 0 };
    let mut results = Vec::with_capacity(request.topics.len());
    let repeated = twice(request.topics.iter().map(|topic| topic.name.clone()));
    let mut told = HashSet::new();
    for topic in request.topics {
        let is_repeated = repeated.contains(&topic.name);
        if is_repeated && !told.insert(topic.name.clone()) {
            continue;
        }
        let result = match broker.authorizer.topic(&caller, Operation::Alter, &topic.name) {
            _ if is_repeated => Err(Failure::because(ErrorCode::InvalidRequest, "Duplicate topic name.")),
            Err(error) => Err(error.into()),
            Ok(()) => match check_time(request.timeout_ms) {
                Ok(()) => create_partitions_of(&broker, &topic, request.validate_only, &mut mutations).await,
                Err(failure) => Err(failure),
            },
        };
        if result.is_ok() && !request.validate_only {
            let details = format!("to {}", topic.count);
            audit::changed(&caller.origin, "added partitions to topic", &topic.name, &details);
        }
        let failure = result.err();
        results.push(CreatePartitionsTopicResult {
            name: topic.name,
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.and_then(|failure| failure.message),
        });
    }
    CreatePartitionsResponse { results, throttle_time_ms: mutations.throttle_ms }
}

async fn create_partitions_of(
    broker: &Arc<Broker>,
    asked: &CreatePartitionsTopic,
    validate_only: bool,
    mutations: &mut Mutations,
) -> Result<(), Failure> {
    let topic = broker.topics.find(&asked.name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let now = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
    broker.topics.check_total(&topic.name, now, asked.count)?;
    let added = asked.count - i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
    if let Some(assignments) = &asked.assignments {
        if i32::try_from(assignments.len()).ok() != Some(added) {
            let why = format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                assignments.len()
            );
            return Err(Failure::because(ErrorCode::InvalidReplicaAssignment, why));
        }
        for assignment in assignments {
            check_replicas(broker, &assignment.broker_ids)?;
        }
    }
    if topic.is_internal() {
        return Err(Failure::because(
            ErrorCode::InvalidRequest,
            "The server's own topics keep their partitions.",
        ));
    }
    mutations.count(added)?;
    if validate_only {
        return Ok(());
    }
    let (name, total) = (asked.name.to_string(), asked.count);
    let chosen = || (now..).zip(asked.assignments.iter().flatten());
    let leaders: Leaders =
        chosen().filter_map(|(index, of)| Some((index, *of.broker_ids.first()?))).collect();
    broker.blocking(move |broker| broker.topics.add_partitions(&name, total, &leaders)).await?;
    let chosen = chosen().map(|(index, of)| (index, Some(of.broker_ids.clone()))).collect();
    place(broker, &topic, chosen).await;
    Ok(())
}
