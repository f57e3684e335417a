//! Bounds on the memory that a small request may make the broker allocate: no copy of a name for each of the indexes
//! behind it, and no headers of a record that are not read.
//!
//! The counting allocator needs `unsafe`. It only forwards to the system's allocator.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use broker::Connection;
use common::{connect, create_topic, open, produce, unframed};
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::{BatchBuilder, compress};
use wire::{ApiKey, Bytes, Message, Text, Writer, frame};

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Each index costs 100 bytes and more once it is decoded and answered. With a copy of the name it would be 3.2 GB.
const INDEXES: i32 = 100_000;
const BYTES_MAX: isize = 128 << 20;

/// The broker's peak memory in bytes while it answers `request`.
async fn cost<Q: Message>(connection: &mut Connection, version: i16, request: &Q) -> isize {
    let api_key = ApiKey::from_i16(Q::KEY.unwrap()).unwrap();
    let client = Text::from_static("test");
    let frame = unframed(&frame::encode_request(api_key, version, 77, Some(&client), request).unwrap());
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let answer = connection.begin(frame).await.unwrap().expect("there is an answer").await.unwrap();
    assert!(!answer.is_empty());
    PEAK.load(Ordering::Relaxed) - before
}

/// One record with this number of empty headers: a few KB of zstd.
fn many_headers(headers: i32) -> Bytes {
    let mut fields = Writer::new();
    fields.i8(0);
    fields.varlong(0);
    fields.varint(0);
    fields.varint(-1);
    fields.varint(-1);
    fields.varint(headers);
    let mut fields = fields.finish().to_bytes().to_vec();
    // An empty key and a null value.
    fields.extend([0, 1].repeat(usize::try_from(headers).unwrap()));
    let mut record = Writer::new();
    record.varint(i32::try_from(fields.len()).unwrap());
    let records = [record.finish().to_bytes().to_vec(), fields].concat();
    let mut one = BatchBuilder::new(Compression::Zstd);
    one.push(Timestamp(1_000), None, None);
    let mut batch = one.finish()[..model::batch::HEADER_BYTES].to_vec();
    batch.extend(compress(Compression::Zstd, &records));
    let length = i32::try_from(batch.len() - 12).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    model::batch::seal_crc(&mut batch);
    batch.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_request_costs_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let name = || Text::from("n".repeat(32_767));
    let indexes = || (0..INDEXES).collect::<Vec<i32>>();
    let group = Text::from_static("g");
    macro_rules! costs {
        ($version:expr, $request:expr) => {{
            let request = $request;
            let bytes = cost(&mut connection, $version, &request).await;
            assert!(bytes < BYTES_MAX, "{} v{} took {bytes} bytes", stringify!($request), $version);
        }};
    }

    let partition = |partition| m::fetch_request::FetchPartition {
        partition,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    for session_epoch in [-1, 0] {
        let partitions = indexes().into_iter().map(partition).collect();
        let topics = vec![m::fetch_request::FetchTopic { topic: name(), partitions, ..Default::default() }];
        costs!(11, m::FetchRequest { session_epoch, topics, max_wait_ms: 60_000, ..Default::default() });
    }

    // This creates the group that the requests name.
    let committed = |name: Text, indexes: Vec<i32>| m::OffsetCommitRequest {
        group_id: Text::from_static("g"),
        generation_id_or_member_epoch: -1,
        retention_time_ms: -1,
        topics: vec![m::offset_commit_request::OffsetCommitRequestTopic {
            name,
            partitions: indexes
                .into_iter()
                .map(|partition_index| m::offset_commit_request::OffsetCommitRequestPartition {
                    partition_index,
                    committed_offset: 1,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }],
        ..Default::default()
    };
    costs!(8, committed(Text::from_static("t"), vec![0; 100_000]));
    costs!(8, committed(name(), indexes()));

    let index = |partition_index| m::offset_delete_request::OffsetDeleteRequestPartition { partition_index };
    let partitions = indexes().into_iter().map(index).collect();
    let topics = vec![m::offset_delete_request::OffsetDeleteRequestTopic { name: name(), partitions }];
    costs!(0, m::OffsetDeleteRequest { group_id: group.clone(), topics });

    let topics = vec![m::offset_fetch_request::OffsetFetchRequestTopics {
        name: name(),
        partition_indexes: indexes(),
        ..Default::default()
    }];
    let groups = vec![m::offset_fetch_request::OffsetFetchRequestGroup {
        group_id: group.clone(),
        topics: Some(topics),
        member_epoch: -1,
        ..Default::default()
    }];
    costs!(8, m::OffsetFetchRequest { groups, ..Default::default() });

    let topics = vec![m::elect_leaders_request::TopicPartitions { topic: name(), partitions: indexes() }];
    costs!(2, m::ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() });

    for topic in [name(), Text::from_static("t")] {
        let partition_indexes = if topic.len() == 1 { vec![0; 100_000] } else { indexes() };
        let topics = vec![m::describe_producers_request::TopicRequest { name: topic, partition_indexes }];
        costs!(0, m::DescribeProducersRequest { topics });
    }

    for topic in [name(), Text::from_static("t")] {
        let partitions = if topic.len() == 1 { vec![0; 100_000] } else { indexes() };
        let topic = m::add_partitions_to_txn_request::AddPartitionsToTxnTopic { name: topic, partitions };
        costs!(
            3,
            m::AddPartitionsToTxnRequest {
                v3_and_below_transactional_id: Text::from_static("id"),
                v3_and_below_topics: vec![topic],
                ..Default::default()
            }
        );
    }

    let offset = |partition_index| m::list_offsets_request::ListOffsetsPartition {
        partition_index,
        current_leader_epoch: -1,
        timestamp: -1,
    };
    let partitions = indexes().into_iter().map(offset).collect();
    let topics = vec![m::list_offsets_request::ListOffsetsTopic { name: name(), partitions }];
    costs!(5, m::ListOffsetsRequest { topics, replica_id: -1, ..Default::default() });

    let markers = vec![m::write_txn_markers_request::WritableTxnMarker {
        topics: vec![m::write_txn_markers_request::WritableTxnMarkerTopic {
            name: name(),
            partition_indexes: indexes(),
        }],
        ..Default::default()
    }];
    costs!(1, m::WriteTxnMarkersRequest { markers });

    let bomb = many_headers(30_000_000);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    assert_eq!(produce(&mut connection, "t", 0, -1, bomb).await.0, 0);
    let bytes = PEAK.load(Ordering::Relaxed) - before;
    assert!(bytes < 16 << 20, "a record of many headers took {bytes} bytes");
    let topics = vec![m::list_offsets_request::ListOffsetsTopic {
        name: Text::from_static("t"),
        partitions: vec![m::list_offsets_request::ListOffsetsPartition {
            partition_index: 0,
            current_leader_epoch: -1,
            timestamp: 1,
        }],
    }];
    costs!(5, m::ListOffsetsRequest { topics, replica_id: -1, ..Default::default() });
    broker.close().await;
}
