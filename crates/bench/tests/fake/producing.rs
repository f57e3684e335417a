//! Produce: appends batches to the logs, and applies faults to them and to their answers.

use std::time::Instant;

use bytes::Bytes;
use model::Timestamp;
use model::batch::set_log_append_time;
use wire::frame::RequestHeader;
use wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use wire::messages::{ProduceRequest, ProduceResponse};
use wire::{ErrorCode, Text};

use super::faults::{Faults, OnAnswer, OnAppend};
use super::{Answer, Reply, Shared, State, answer};

/// The append time of a server whose clock stands still.
const APPEND_TIME: Timestamp = Timestamp(1_700_000_000_000);

impl Shared {
    /// Handles the produce request with this number on a connection.
    pub fn produce(&self, header: &RequestHeader, request: &ProduceRequest, number: usize) -> Reply {
        let message = self.append_all(request);
        self.news.notify_all();
        if request.acks == 0 {
            return Reply::Nothing;
        }
        let mut answer = answer(header, &message, self.faults.produce_delay);
        let struck = self.faults.on_answer.filter(|_| number == self.faults.strike_at);
        if let Some(fault) = struck {
            self.state().struck = Some((self.address.to_string(), -1));
            if fault == OnAnswer::Close {
                return Reply::Close;
            }
            answer = spoiled(fault, answer);
        }
        Reply::Answer(answer)
    }

    fn append_all(&self, request: &ProduceRequest) -> ProduceResponse {
        let mut state = self.state();
        let mut responses = Vec::new();
        for topic in &request.topic_data {
            let mut partition_responses = Vec::new();
            for partition in &topic.partition_data {
                let mut batch = partition.records.as_ref().map(wire::Records::to_bytes).unwrap_or_default();
                if self.faults.log_append_time {
                    let mut stamped = batch.to_vec();
                    set_log_append_time(&mut stamped, APPEND_TIME);
                    batch = stamped.into();
                }
                let appended = append(&mut state, &self.faults, &topic.name, partition.index, &batch);
                partition_responses.push(PartitionProduceResponse {
                    index: partition.index,
                    error_code: appended.err().map_or(0, ErrorCode::code),
                    base_offset: appended.unwrap_or(-1),
                    log_append_time_ms: if self.faults.log_append_time { APPEND_TIME.0 } else { -1 },
                    ..PartitionProduceResponse::default()
                });
            }
            responses.push(TopicProduceResponse {
                name: topic.name.clone(),
                partition_responses,
                ..TopicProduceResponse::default()
            });
        }
        ProduceResponse { responses, ..ProduceResponse::default() }
    }
}

fn append(
    state: &mut State,
    faults: &Faults,
    topic: &Text,
    index: i32,
    batch: &Bytes,
) -> Result<i64, ErrorCode> {
    let logs = state.topics.get_mut(topic.as_str()).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let log = usize::try_from(index).ok().and_then(|at| logs.get_mut(at));
    let log = log.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let fault = faults.on_append.filter(|_| state.struck.is_none() && log.batches.len() >= faults.strike_at);
    let Some(fault) = fault else { return log.append(batch) };
    state.struck = Some((format!("{topic}-{index}"), log.end));
    match fault {
        OnAppend::Refuse(error) => Err(error),
        OnAppend::KeepAndRefuse(error) => log.append(batch).and(Err(error)),
        OnAppend::Invent => {
            log.invent();
            log.append(batch)
        }
        OnAppend::Double => {
            let offset = log.append(batch)?;
            log.keep(batch);
            Ok(offset)
        }
    }
}

fn spoiled(fault: OnAnswer, answer: Answer) -> Answer {
    let mut frame = answer.frame.expect("it was just made").to_vec();
    let frame = match fault {
        OnAnswer::Never | OnAnswer::Close => None,
        OnAnswer::WrongId => {
            frame[7] ^= 1;
            Some(frame)
        }
        OnAnswer::Garbage => {
            // Size and id stay, so that it looks like an answer at first.
            frame[8..].fill(0xff);
            Some(frame)
        }
    };
    Answer { frame: frame.map(Bytes::from), not_before: answer.not_before.max(Instant::now()) }
}
