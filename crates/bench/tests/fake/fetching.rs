//! Fetch: sessions (KIP-227), waits for data, and faults on the way to a consumer.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::Offset;
use model::batch::{CRC_FROM, HEADER_BYTES, assign, seal_crc};
use wire::frame::RequestHeader;
use wire::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use wire::messages::{FetchRequest, FetchResponse};
use wire::{ErrorCode, Records, Text};

use super::faults::{Faults, OnTheWay};
use super::log::{Log, header as batch_header};
use super::{Answer, Reply, Shared, State, answer};

/// Number of batches that a fault needs: those it swaps, and one behind them.
const AT_HAND: usize = 3;

/// The offset to read from, by topic and partition.
type Positions = BTreeMap<(Text, i32), i64>;

#[derive(Default)]
pub struct Session {
    epoch: i32,
    positions: Positions,
}

/// The data of a partition for a consumer.
enum Found {
    Nothing,
    Batches(Vec<Bytes>),
    Error(ErrorCode),
    /// The connection is closed.
    End,
    /// The fetch is never answered.
    Silence,
    SessionsLost,
}

impl Shared {
    pub fn fetch(&self, header: &RequestHeader, request: &FetchRequest) -> Reply {
        let mut state = self.state();
        let (session_id, positions) = match positions(&mut state, request, self.faults.old) {
            Ok(known) => known,
            Err(error) => return refused(header, error),
        };
        let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).expect("not below 0"));
        let found = self.wait_for_data(state, &positions, wait);
        let mut responses = Vec::new();
        let mut delay = Duration::ZERO;
        for ((topic, index), found) in found {
            let mut data = PartitionData { partition_index: index, ..PartitionData::default() };
            match found {
                Found::End => return Reply::Close,
                Found::SessionsLost => {
                    self.state().sessions.clear();
                    return refused(header, ErrorCode::FetchSessionIdNotFound);
                }
                Found::Silence => return Reply::Answer(Answer { frame: None, not_before: Instant::now() }),
                // A session leaves out partitions without news.
                Found::Nothing if request.session_epoch > 0 => continue,
                Found::Nothing => data.records = Some(Records::new()),
                Found::Error(error) => data.error_code = error.code(),
                Found::Batches(batches) => {
                    delay = self.faults.fetch_delay;
                    let mut records = Records::new();
                    batches.into_iter().for_each(|batch| records.push(batch));
                    data.records = Some(records);
                }
            }
            let partitions = vec![data];
            responses.push(FetchableTopicResponse { topic, partitions, ..FetchableTopicResponse::default() });
        }
        let message = FetchResponse { session_id, responses, ..FetchResponse::default() };
        Reply::Answer(answer(header, &message, delay))
    }

    fn wait_for_data(
        &self,
        mut state: MutexGuard<'_, State>,
        positions: &Positions,
        wait: Duration,
    ) -> Vec<((Text, i32), Found)> {
        let until = Instant::now() + wait;
        loop {
            let place = |(place, offset): (&(Text, i32), &i64)| {
                (place.clone(), read(&mut state, &self.faults, place, *offset))
            };
            let found: Vec<_> = positions.iter().map(place).collect();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || found.iter().any(|(_, found)| !matches!(found, Found::Nothing)) {
                return found;
            }
            state = self.news.wait_timeout(state, left).expect("no thread panicked with it").0;
        }
    }
}

fn refused(header: &RequestHeader, error: ErrorCode) -> Reply {
    let message = FetchResponse { error_code: error.code(), ..FetchResponse::default() };
    Reply::Answer(answer(header, &message, Duration::ZERO))
}

/// The session of a fetch, and the positions to read.
fn positions(
    state: &mut State,
    request: &FetchRequest,
    without_sessions: bool,
) -> Result<(i32, Positions), ErrorCode> {
    let mut asked = Positions::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            asked.insert((topic.topic.detached(), partition.partition), partition.fetch_offset);
        }
    }
    if without_sessions {
        assert_eq!((request.session_id, request.session_epoch), (0, 0), "a session that was never given");
        return Ok((0, asked));
    }
    if request.session_epoch == 0 {
        state.sessions_begun += 1;
        let id = state.sessions_begun;
        state.sessions.insert(id, Session { epoch: 1, positions: asked.clone() });
        return Ok((id, asked));
    }
    let session = state.sessions.get_mut(&request.session_id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
    if session.epoch != request.session_epoch {
        return Err(ErrorCode::InvalidFetchSessionEpoch);
    }
    session.epoch += 1;
    session.positions.extend(asked);
    Ok((request.session_id, session.positions.clone()))
}

fn read(state: &mut State, faults: &Faults, (topic, index): &(Text, i32), offset: i64) -> Found {
    let logs = &state.topics[topic.as_str()];
    let log = &logs[usize::try_from(*index).expect("it was in the metadata")];
    let name = format!("{topic}-{index}");
    let from = log.place(offset);
    let here = state.struck.as_ref().is_some_and(|(struck, _)| *struck == name);
    let due = faults.on_the_way.filter(|_| here || (state.struck.is_none() && from >= faults.strike_at));
    match due {
        // These faults continue once they have begun.
        Some(fault @ (OnTheWay::HideTail | OnTheWay::Silence)) => {
            state.struck.get_or_insert((name, offset));
            if fault == OnTheWay::Silence { Found::Silence } else { Found::Nothing }
        }
        Some(fault) if !here => {
            if log.batches.len() < from + AT_HAND {
                return Found::Nothing;
            }
            let found = strike(fault, log, from);
            state.struck = Some((name, offset));
            found
        }
        _ if from < log.batches.len() => Found::Batches(log.batches[from..].to_vec()),
        _ => Found::Nothing,
    }
}

/// Applies a fault to the batches from a place on.
fn strike(fault: OnTheWay, log: &Log, from: usize) -> Found {
    let mut batches: Vec<Bytes> = log.batches[from..from + AT_HAND].to_vec();
    match fault {
        OnTheWay::Drop => drop(batches.remove(0)),
        OnTheWay::Repeat => batches.insert(1, batches[0].clone()),
        OnTheWay::Reorder => batches.swap(0, 1),
        OnTheWay::ReorderPatched => {
            let first = batch_header(&batches[0]).base_offset;
            batches.swap(0, 1);
            let second = first + batch_header(&batches[0]).offset_count();
            batches[0] = moved(&batches[0], first);
            batches[1] = moved(&batches[1], second);
        }
        OnTheWay::Damage => batches[1] = changed(&batches[1], false),
        OnTheWay::Forge => batches[1] = changed(&batches[1], true),
        OnTheWay::Close => return Found::End,
        OnTheWay::Refuse => return Found::Error(ErrorCode::OffsetOutOfRange),
        OnTheWay::RefuseForNow => return Found::Error(ErrorCode::NotLeaderOrFollower),
        OnTheWay::ForgetSessions => return Found::SessionsLost,
        OnTheWay::Cut => {
            let last = &mut batches[AT_HAND - 1];
            last.truncate(last.len() / 2);
        }
        OnTheWay::HideTail | OnTheWay::Silence => unreachable!("they do not end"),
    }
    Found::Batches(batches)
}

fn moved(batch: &[u8], offset: Offset) -> Bytes {
    let mut batch = batch.to_vec();
    let epoch = batch_header(&batch).leader_epoch;
    assign(&mut batch, offset, epoch);
    batch.into()
}

/// The batch with a changed byte near the end of its first record.
fn changed(batch: &[u8], sealed: bool) -> Bytes {
    const { assert!(HEADER_BYTES > CRC_FROM) };
    let mut batch = batch.to_vec();
    batch[HEADER_BYTES + 20] ^= 0x55;
    if sealed {
        seal_crc(&mut batch);
    }
    batch.into()
}
