//! Diskless topics (KIP-1150): acknowledged and visible once the object store has the records.

use std::time::{Duration, Instant};

use broker::Connection;
use bytes::Bytes;
use model::{Compression, Timestamp};
use wire::ErrorCode;
use wire::messages as m;
use wire::records::{BatchBuilder, records};

use crate::common::store::{Machine, fill, read_back, value};
use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, produce, try_create_topic};

const TOPIC: &str = "diskless";
const DISKLESS: (&str, &str) = ("diskless.enable", "true");
const FOR_EVER: (&str, &str) = ("retention.ms", "-1");
const QUICK: [(&str, &str); 1] = [("object.store.diskless.interval.ms", "20")];
const PATIENCE: Duration = Duration::from_secs(20);

/// The high watermark, and the bytes that a fetch from `from` on returns at once.
async fn look(connection: &mut Connection, from: i64) -> (i64, Bytes) {
    let request = fetch_request((0, -1), 0, vec![fetch_of(TOPIC, 0, from)]);
    let answer: m::FetchResponse = call(connection, 12, &request).await;
    let partition = &answer.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    (partition.high_watermark, partition.records.as_ref().unwrap().to_bytes())
}

fn batch(number: i64) -> Bytes {
    let mut batch = BatchBuilder::new(Compression::None);
    batch.push(Timestamp(1_700_000_000_000 + number), None, Some(&value(number)));
    batch.finish()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_acknowledged_and_visible_once_they_are_stored() {
    let machine = Machine::new();
    let broker = machine.open_with(&QUICK);
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &[DISKLESS, FOR_EVER]).await;
    fill(&mut client, TOPIC, 0..1000).await;
    read_back(&mut client, TOPIC, 0, 1000).await;

    machine.hold(true);
    let mut producer = connect(&broker);
    let waiting = tokio::spawn(async move { produce(&mut producer, TOPIC, 0, -1, batch(1000)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "the store has not answered");
    // It is on the local disk, and nobody sees it.
    assert_eq!(produce(&mut client, TOPIC, 0, 1, batch(1001)).await.1, 1001);
    assert_eq!(look(&mut client, 1000).await, (1000, Bytes::new()));
    machine.hold(false);
    let (error, base, _) = waiting.await.unwrap();
    assert_eq!((error, base), (0, 1000));
    let deadline = Instant::now() + PATIENCE;
    while look(&mut client, 1000).await.0 < 1002 {
        assert!(Instant::now() < deadline, "the record of acks=1 stays invisible");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    read_back(&mut client, TOPIC, 0, 1002).await;

    // What was not stored when the server ended becomes visible after the next start, when the store is there.
    machine.hold(true);
    assert_eq!(produce(&mut client, TOPIC, 0, 1, batch(1002)).await.1, 1002);
    drop(client);
    close(broker).await;
    let broker = machine.open_with(&QUICK);
    let mut client = connect(&broker);
    assert_eq!(look(&mut client, 1002).await, (1002, Bytes::new()));
    machine.hold(false);
    let deadline = Instant::now() + PATIENCE;
    while look(&mut client, 1002).await.0 < 1003 {
        assert!(Instant::now() < deadline, "the record from before the restart stays invisible");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    read_back(&mut client, TOPIC, 0, 1003).await;
    fill(&mut client, TOPIC, 1003..1100).await;
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_backlog_records_are_refused_and_nothing_is_lost() {
    let machine = Machine::new();
    let settings = [QUICK[0], ("object.store.diskless.backlog.bytes", "1048576")];
    let broker = machine.open_with(&settings);
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &[DISKLESS, FOR_EVER]).await;
    create_topic(&mut client, "local", 1, &[]).await;
    machine.hold(true);
    let (mut taken, mut refused) = (0, 0);
    while refused < 3 {
        match produce(&mut client, TOPIC, 0, 1, batch(taken)).await {
            (0, base, _) => {
                assert_eq!(base, taken);
                taken += 1;
            }
            (error, ..) => {
                assert_eq!(error, ErrorCode::NotEnoughReplicas.code());
                refused += 1;
            }
        }
        assert!(taken < 5000, "{taken} records of a kilobyte were taken");
    }
    assert!(taken > 900, "only {taken} records were taken");
    // Others are not disturbed.
    fill(&mut client, "local", 0..100).await;
    machine.hold(false);
    let deadline = Instant::now() + PATIENCE;
    while look(&mut client, taken).await.0 < taken {
        assert!(Instant::now() < deadline, "the backlog does not go to the store");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    read_back(&mut client, TOPIC, 0, taken).await;
    fill(&mut client, TOPIC, taken..taken + 10).await;
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diskless_topic_is_compacted_in_the_store() {
    let machine = Machine::new();
    let settings =
        [QUICK[0], ("log.cleaner.backoff.ms", "20"), ("object.store.merged.object.bytes", "65536")];
    let broker = machine.open_with(&settings);
    let mut client = connect(&broker);
    let compacted =
        [DISKLESS, ("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"), ("segment.ms", "1")];
    create_topic(&mut client, TOPIC, 1, &compacted).await;
    const KEYS: i64 = 10;
    const RECORDS: i64 = 400;
    for number in 0..RECORDS {
        let mut batch = BatchBuilder::new(Compression::None);
        let key = (number % KEYS).to_string();
        batch.push(Timestamp(1_700_000_000_000), Some(key.as_bytes()), Some(&value(number)));
        let (error, base, _) = produce(&mut client, TOPIC, 0, -1, batch.finish()).await;
        assert_eq!((error, base), (0, number));
    }
    // The newest record of each key stays, and others go.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (mut at, mut found) = (0, Vec::new());
        while at < RECORDS {
            let (_, mut bytes) = look(&mut client, at).await;
            if bytes.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            while !bytes.is_empty() {
                let (header, all) = records(&bytes, 1 << 20).unwrap();
                bytes = bytes.slice(header.total_bytes..);
                at = header.next_offset().0;
                for record in all {
                    let record = record.unwrap();
                    let number = header.base_offset.0 + i64::from(record.offset_delta);
                    assert_eq!(record.value.as_deref(), Some(&value(number)[..]), "record {number}");
                    found.push(number);
                }
            }
        }
        let newest: Vec<i64> = (RECORDS - KEYS..RECORDS).collect();
        assert!(found.ends_with(&newest), "the newest records are gone: {found:?}");
        if found.len() < 40 {
            break;
        }
        assert!(Instant::now() < deadline, "{} records are left", found.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Merging leaves few objects.
    let deadline = Instant::now() + PATIENCE;
    while machine.objects() > 20 {
        assert!(Instant::now() < deadline, "{} objects are left", machine.objects());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_diskless_from_its_creation_on_or_never() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut client = connect(&broker);
    let invalid = ErrorCode::InvalidConfig.code();
    let both = [DISKLESS, ("remote.storage.enable", "true")];
    assert_eq!(try_create_topic(&mut client, TOPIC, 1, &both).await.error_code, invalid);
    create_topic(&mut client, TOPIC, 1, &[DISKLESS]).await;
    create_topic(&mut client, "local", 1, &[]).await;
    for (topic, to) in [(TOPIC, "false"), ("local", "true")] {
        use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
        let config = AlterableConfig { name: DISKLESS.0.into(), config_operation: 0, value: Some(to.into()) };
        let resource =
            AlterConfigsResource { resource_type: 2, resource_name: topic.into(), configs: vec![config] };
        let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let answer: m::IncrementalAlterConfigsResponse = call(&mut client, 1, &request).await;
        assert_eq!(answer.responses[0].error_code, invalid, "{topic}");
    }
    // Who replaces all settings need not know this one.
    for (configs, code) in
        [(vec![("retention.ms", "5000")], 0), (vec![("diskless.enable", "false")], invalid)]
    {
        use m::alter_configs_request::{AlterConfigsResource, AlterableConfig};
        let configs = configs
            .into_iter()
            .map(|(name, value)| AlterableConfig { name: name.into(), value: Some(value.into()) })
            .collect();
        let resource = AlterConfigsResource { resource_type: 2, resource_name: TOPIC.into(), configs };
        let request = m::AlterConfigsRequest { resources: vec![resource], validate_only: false };
        let answer: m::AlterConfigsResponse = call(&mut client, 2, &request).await;
        assert_eq!(answer.responses[0].error_code, code);
    }
    drop(client);
    close(broker).await;

    let home = tempfile::tempdir().unwrap();
    let broker = crate::common::open(home.path());
    let mut client = connect(&broker);
    let refused = try_create_topic(&mut client, TOPIC, 1, &[DISKLESS]).await;
    assert!(
        refused.error_code == invalid && refused.error_message.unwrap().as_str().contains("object.store")
    );
    drop(client);
    close(broker).await;
}
