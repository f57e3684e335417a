//! `mainstem-bench run` against a server with faults: its measurements of slow servers, and its reports about servers
//! that lose, duplicate, reorder or change acknowledged records.
//!
//! A run mostly waits, so each test makes several runs at once.

mod fake;
mod trial;

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use wire::ErrorCode;
use wire::records::records;

use fake::faults::{Faults, OnAnswer, OnAppend, OnTheWay, Stall};
use trial::{Trial, at, driver, number, quantile_pairs, run_files};

const PUBLISH: &str = "aggregatedPublishLatencyQuantiles";
const DELAY: &str = "aggregatedPublishDelayLatencyQuantiles";
const END_TO_END: &str = "aggregatedEndToEndLatencyQuantiles";

/// A minimal workload.
const SMALLEST: &str = "topics: 1\npartitionsPerTopic: 1\nmessageSize: 10\nsubscriptionsPerTopic: 1\n\
    consumerPerSubscription: 1\nproducersPerTopic: 1\nproducerRate: 10\ntestDurationSeconds: 1\n";

/// Runs all cases at once and waits for them.
fn at_once(cases: impl IntoIterator<Item = impl FnOnce() + Send>) {
    thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(case))));
}

fn boxed<'a>(case: impl FnOnce() + Send + 'a) -> Box<dyn FnOnce() + Send + 'a> {
    Box::new(case)
}

/// The middle of a run of [`trial`]'s workload, which sends about 100 batches per second for 2.5 s.
const MIDDLE: usize = 80;

#[test]
fn a_known_delay_is_measured() {
    const MILLIS: f64 = 40.0;
    let delay = Duration::from_millis(40);
    let of_answers = || {
        let result = Trial::against(Faults { produce_delay: delay, ..Faults::default() }).succeed();
        let publish = quantile_pairs(&result, PUBLISH);
        assert!(publish.iter().all(|(_, millis)| *millis >= MILLIS), "faster than possible: {publish:?}");
        let half = at(&result, PUBLISH, 50.0);
        assert!(half <= MILLIS + 60.0, "{half}");
        // A consumer receives the batch before the producer gets the acknowledgement.
        let half = at(&result, END_TO_END, 50.0);
        assert!(half < MILLIS, "{half}");
    };
    let of_fetches = || {
        let result = Trial::against(Faults { fetch_delay: delay, ..Faults::default() }).succeed();
        let end_to_end = quantile_pairs(&result, END_TO_END);
        assert!(
            end_to_end.iter().all(|(_, millis)| *millis >= MILLIS),
            "faster than possible: {end_to_end:?}"
        );
        // The record may arrive just after the answer to the previous fetch was built.
        let half = at(&result, END_TO_END, 50.0);
        assert!(half <= MILLIS * 2.0 + 60.0, "{half}");
        let half = at(&result, PUBLISH, 50.0);
        assert!(half < MILLIS, "{half}");
    };
    at_once([boxed(of_answers), boxed(of_fetches)]);
}

/// The share of latencies above a limit, from 0 to 1.
fn share_above(result: &Value, quantiles: &str, limit: f64) -> f64 {
    let below = quantile_pairs(result, quantiles).into_iter().take_while(|(_, latency)| *latency <= limit);
    1.0 - below.last().map_or(0.0, |(percentile, _)| percentile) / 100.0
}

fn stalled() -> Trial {
    let stall = Stall { after: Duration::from_millis(1500), length: Duration::from_secs(1) };
    Trial::against(Faults { stall: Some(stall), ..Faults::default() })
        .with("producerRate", "2000")
        .with("testDurationSeconds", "4")
}

/// The server sleeps for 1 s of the 4 s. Messages that are due during that time wait, and the wait counts.
fn assert_stall_counts(result: &Value) {
    let share = share_above(result, PUBLISH, 50.0);
    assert!((0.15..0.35).contains(&share), "a quarter of all had to wait, not {share}");
    let late = [(80.0, 100.0, 400.0), (90.0, 400.0, 800.0), (95.0, 600.0, 950.0), (99.0, 800.0, 1100.0)];
    for quantiles in [PUBLISH, END_TO_END] {
        // The waits are spread evenly, so a fifth of the delayed messages is among the slowest 5 percent, and so on.
        for (percentile, from, to) in late {
            let millis = at(result, quantiles, percentile);
            assert!((from..to).contains(&millis), "{quantiles} at {percentile} is {millis}");
        }
        let most = at(result, quantiles, 100.0);
        assert!((950.0..2000.0).contains(&most), "{quantiles} reach {most}");
    }
    assert!(at(result, PUBLISH, 50.0) < 50.0, "those of the other three seconds did not wait");
    let rate = number(result, "/bench/publishedMessages") / number(result, "/bench/seconds");
    assert!((1900.0..2100.0).contains(&rate), "{rate}/s is not what was due");
}

#[test]
fn a_stall_counts_for_everything_that_was_due() {
    let with_memory = || {
        let result = stalled().succeed();
        assert_stall_counts(&result);
        let delay = at(&result, DELAY, 99.0);
        assert!(delay < 200_000.0, "there was memory to take all up when it was due, but {delay} us");
    };
    let without_memory = || {
        // Memory for about 60 ms of messages.
        let result = stalled().producer("buffer.memory=16384").succeed();
        assert_stall_counts(&result);
        let delay = at(&result, DELAY, 99.0);
        assert!((700_000.0..1_100_000.0).contains(&delay), "messages waited for memory, not {delay} us");
        let share = share_above(&result, DELAY, 50_000.0);
        assert!((0.12..0.35).contains(&share), "{share} waited for memory");
    };
    at_once([boxed(with_memory), boxed(without_memory)]);
}

/// The server sleeps from the middle of the measured part until 1 s after it. Messages that were due in that time are
/// answered after the measured part, and still count.
#[test]
fn what_is_answered_after_the_end_counts() {
    let stall = Stall { after: Duration::from_millis(1500), length: Duration::from_secs(2) };
    let result = Trial::against(Faults { stall: Some(stall), ..Faults::default() })
        .with("producerRate", "2000")
        .with("testDurationSeconds", "2")
        .succeed();
    for quantiles in [PUBLISH, END_TO_END] {
        let most = at(&result, quantiles, 100.0);
        assert!((1900.0..3000.0).contains(&most), "{quantiles} reach {most}");
        let share = share_above(&result, quantiles, 900.0);
        assert!((0.3..0.7).contains(&share), "half had to wait for 1 s and more, not {share}");
    }
    let last = result["publishLatencyMax"].as_array().unwrap().last().unwrap().as_f64().unwrap();
    assert!(last > 1900.0, "they are in the last sample: {last}");
}

/// Whether the pieces of `words` between dots occur one after the other.
fn says(said: &str, words: &str) -> bool {
    let mut rest = said;
    words.split('…').all(|piece| {
        let found = rest.find(piece);
        rest = found.map_or("", |at| &rest[at + piece.len()..]);
        found.is_some()
    })
}

/// Runs with a fault and checks the report. In `words`, `{}` stands for the partition and `{at}` for the offset.
fn assert_noticed(faults: Faults, partitions: &'static str, property: &'static str, words: &str) {
    let trial = Trial::against(Faults { strike_at: MIDDLE, ..faults.clone() })
        .with("partitionsPerTopic", partitions)
        .with("producerRate", "3000")
        .producer(property);
    let said = trial.fail(&format!("{faults:?}"));
    let struck = trial.fake.state().struck.clone();
    let (partition, offset) = struck.unwrap_or_else(|| panic!("{faults:?} never came: {said}"));
    assert!(offset > 0, "{faults:?} came in the middle, not at {offset}");
    let words = words.replace("{}", &partition).replace("{at}", &offset.to_string());
    assert!(says(&said, &words), "{faults:?}: no {words:?} in {said}");
    assert_eq!(trial.fake.state().removed.len(), 1, "the topic was left behind");
}

#[test]
fn what_goes_wrong_on_the_way_is_noticed() {
    let cases = [
        (OnTheWay::Drop, "{}: records are missing: offsets {at} to … were skipped"),
        (OnTheWay::Repeat, "{}: records came twice or out of order: offset {at} after everything up to"),
        (OnTheWay::Reorder, "{}: records are missing: offsets {at} to … were skipped"),
        (OnTheWay::ReorderPatched, "{}: what was received at offset {at} is not what was published there"),
        (OnTheWay::Damage, "{}: the batch at offset … was damaged: the batch has crc … but its bytes give"),
        (OnTheWay::Forge, "{}: what was received at offset … is not what was published there"),
        (OnTheWay::HideTail, "{}: … acknowledged records were never received, the first at offset {at}\n"),
        (OnTheWay::Close, "lost the connection to … the server closed it"),
        (OnTheWay::Refuse, "{}: fetching failed: OFFSET_OUT_OF_RANGE"),
    ];
    let case = |(fault, words): (OnTheWay, &'static str)| {
        move || {
            let faults = Faults { on_the_way: Some(fault), ..Faults::default() };
            let [one, two] = [("1", faults.clone()), ("2", faults)].map(|(partitions, faults)| {
                boxed(move || assert_noticed(faults, partitions, "acks=all", words))
            });
            at_once([one, two]);
        }
    };
    let weaker = |(acks, fault, words): (&'static str, OnTheWay, &'static str)| {
        move || {
            let faults = Faults { on_the_way: Some(fault), ..Faults::default() };
            assert_noticed(faults, "1", acks, words);
        }
    };
    let lost = "{}: … records sent without acknowledgement were never received\n";
    let weaker_cases = [
        ("acks=1", OnTheWay::HideTail, cases[6].1),
        ("acks=0", OnTheWay::HideTail, lost),
        // Without acknowledgements, the expected batch at an offset is unknown, so a replaced batch counts as lost.
        ("acks=0", OnTheWay::Forge, lost),
        ("acks=0", OnTheWay::Drop, cases[0].1),
    ];
    let weaker_cases = weaker_cases.map(weaker).map(boxed);
    at_once(cases.map(case).map(boxed).into_iter().chain(weaker_cases));
}

#[test]
fn what_nobody_published_is_noticed() {
    let words = "{}: … records were received that nobody published, the first at offset ";
    let case = |fault| {
        move || {
            let faults = Faults { on_append: Some(fault), ..Faults::default() };
            assert_noticed(faults, "1", "acks=all", words);
        }
    };
    at_once([OnAppend::Invent, OnAppend::Double].map(case));
}

/// After a retriable error, the producer sends the batch again, and the batches behind it, in order.
fn assert_healed(fault: OnAppend, acks: &'static str, duplicates: usize, out_of_order: bool) {
    // Answers are delayed, so that more batches are on their way when the first is refused.
    let produce_delay = Duration::from_millis(35);
    let trial = Trial::against(Faults {
        on_append: Some(fault),
        strike_at: MIDDLE,
        produce_delay,
        ..Faults::default()
    });
    let trial = trial.producer(acks);
    let result = trial.succeed();
    assert_eq!(result["bench"]["verified"], true, "{fault:?}");
    assert_eq!(number(&result, "/bench/publishErrors"), 0.0, "{fault:?}");
    let state = trial.fake.state();
    assert!(state.struck.is_some(), "{fault:?} never came");
    let log = &state.topics.values().next().expect("there is a topic")[0];
    assert_eq!(log.duplicates, duplicates, "{fault:?}");
    assert_eq!(log.out_of_order > 0, out_of_order, "{fault:?}");
    let published = number(&result, "/bench/publishedMessages");
    assert!(published >= 1800.0, "{fault:?}: it went on at its rate, not {published} in all");
    // The wait of the repeated batch counts: the answer and the back-off of 100 ms.
    let most = at(&result, PUBLISH, 100.0);
    assert!(most > 135.0, "{fault:?}: {most}");
}

#[test]
fn an_error_that_passes_is_overcome() {
    let passing = OnAppend::Refuse(ErrorCode::NotLeaderOrFollower);
    let kept = OnAppend::KeepAndRefuse(ErrorCode::NotEnoughReplicasAfterAppend);
    at_once([
        boxed(|| assert_healed(passing, "acks=all", 0, true)),
        // Without sequence numbers, the order is not checked.
        boxed(|| assert_healed(passing, "acks=1", 0, false)),
        // The batches behind it are in order, so only the batch itself is sent again.
        boxed(|| assert_healed(kept, "acks=all", 1, false)),
        // The batch is there twice, as expected without idempotence.
        boxed(|| assert_healed(kept, "acks=1", 0, false)),
    ]);
}

/// Behaviour that honest servers show sometimes or always.
#[test]
fn oddities_of_honest_servers_are_no_faults() {
    let case = |(faults, property): (Faults, &'static str)| {
        move || {
            let trial = Trial::against(Faults { strike_at: MIDDLE, ..faults.clone() })
                .with("partitionsPerTopic", "2")
                .producer(property);
            let result = trial.succeed();
            let struck = trial.fake.state().struck.is_some();
            assert_eq!(struck, faults.on_the_way.is_some(), "{faults:?} never came");
            assert_eq!(result["bench"]["verified"], true, "{faults:?}");
            let published = number(&result, "/bench/publishedMessages");
            let consumed = number(&result, "/bench/consumedMessages");
            assert!((1900.0..2100.0).contains(&published), "{faults:?}: {published}");
            assert!((consumed / published - 1.0).abs() < 0.1, "{faults:?}: {consumed} of {published}");
        }
    };
    let on_the_way = |fault| Faults { on_the_way: Some(fault), ..Faults::default() };
    let stamped = Faults { log_append_time: true, ..Faults::default() };
    let cases = [
        (on_the_way(OnTheWay::Cut), "acks=all"),
        (on_the_way(OnTheWay::RefuseForNow), "acks=all"),
        (on_the_way(OnTheWay::ForgetSessions), "acks=all"),
        (stamped, "acks=all"),
        (Faults::default(), "compression.type=zstd"),
    ];
    at_once(cases.map(case));
}

#[test]
fn an_error_that_does_not_pass_ends_the_run() {
    let refused = |error: ErrorCode| {
        let faults = Faults { on_append: Some(OnAppend::Refuse(error)), ..Faults::default() };
        assert_noticed(faults, "1", "acks=all", &format!("a batch for {{}} was refused: {}", error.name()));
    };
    let spoiled = |fault: OnAnswer, words: &'static str| {
        let faults = Faults { on_answer: Some(fault), strike_at: MIDDLE, ..Faults::default() };
        let trial = Trial::against(faults).producer("request.timeout.ms=1000");
        let said = trial.fail(&format!("{fault:?}"));
        let words = words.replace("{}", &trial.fake.address().to_string());
        assert!(said.contains(&words), "{fault:?}: no {words:?} in {said}");
    };
    at_once([
        boxed(move || refused(ErrorCode::InvalidRecord)),
        boxed(move || refused(ErrorCode::MessageTooLarge)),
        boxed(move || spoiled(OnAnswer::Garbage, "{} answered what cannot be read")),
        boxed(move || spoiled(OnAnswer::Close, "lost the connection to {}: the server closed it")),
        boxed(move || spoiled(OnAnswer::WrongId, "{} answered out of order")),
        boxed(move || {
            let words = "{} did not answer a produce request within request.timeout.ms=1000";
            spoiled(OnAnswer::Never, words);
        }),
    ]);
}

/// A server that becomes silent and keeps its connections must not keep the run from ending.
#[test]
fn a_server_that_falls_silent_ends_the_run() {
    let altogether = || {
        let stall = Stall { after: Duration::from_secs(1), length: Duration::from_secs(3600) };
        let trial = Trial::against(Faults { stall: Some(stall), ..Faults::default() })
            .producer("request.timeout.ms=1000");
        let said = trial.fail("silence");
        assert!(said.contains("did not answer a produce request"), "{said}");
    };
    let to_consumers = || {
        let on_the_way = Some(OnTheWay::Silence);
        let trial = Trial::against(Faults { on_the_way, strike_at: MIDDLE, ..Faults::default() });
        let said = trial.fail("silence to consumers");
        assert!(said.contains("acknowledged records were never received"), "{said}");
    };
    let from_the_start = || {
        // Connections are established, but never accepted.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = silent.local_addr().expect("it listens");
        let directory = tempfile::tempdir().expect("there is room for temporary files");
        let outcome = run_files(&directory, SMALLEST, &driver(address, &["acks=1"]), "out.json");
        let words = format!("cannot connect to {address}: timed out");
        assert!(!outcome.success && outcome.stderr.contains(&words), "{}", outcome.stderr);
    };
    at_once([boxed(altogether), boxed(to_consumers), boxed(from_the_start)]);
}

const SUFFIXES: [&str; 8] = ["Avg", "50pct", "75pct", "95pct", "99pct", "999pct", "9999pct", "Max"];

/// All fields of OMB's `TestResult`, in the form that its chart script reads.
fn assert_ombs(result: &Value) {
    let texts = ["workload", "driver"];
    assert_eq!(texts.map(|name| result[name].as_str()), [Some("faulty"), Some("Fake")]);
    let numbers = ["messageSize", "topics", "partitions", "producersPerTopic", "consumersPerTopic"];
    assert_eq!(numbers.map(|name| result[name].as_u64()), [100, 1, 3, 2, 3].map(Some));
    let series = |name: &str| -> Vec<f64> {
        let values = result[name].as_array().unwrap_or_else(|| panic!("{name} is no series"));
        values.iter().map(|value| value.as_f64().expect("a series has numbers")).collect()
    };
    let samples = series("publishRate").len();
    assert!((2..=3).contains(&samples), "{samples} samples of a second each in 2 s");
    let latencies = ["publishLatency", "publishDelayLatency", "endToEndLatency"];
    let of_latency = |name: &'static str| SUFFIXES.map(|suffix| format!("{name}{suffix}"));
    let rates = ["publishErrorRate", "consumeRate", "backlog"].map(str::to_owned);
    for name in latencies.into_iter().flat_map(of_latency).chain(rates) {
        assert_eq!(series(&name).len(), samples, "{name}");
    }
    assert!(series("publishErrorRate").iter().all(|rate| *rate == 0.0));
    let rates = series("publishRate").into_iter().chain(series("consumeRate"));
    let most = rates.fold(0.0, f64::max);
    assert!((900.0..1200.0).contains(&most), "the script's scale ends at {most} messages/s");
    for name in ["PublishLatency", "PublishDelayLatency", "EndToEndLatency"] {
        let aggregated = SUFFIXES.map(|suffix| number(result, &format!("/aggregated{name}{suffix}")));
        assert!(aggregated[1..].is_sorted(), "{name}: {aggregated:?}");
        let pairs = quantile_pairs(result, &format!("aggregated{name}Quantiles"));
        assert!(pairs.len() > 10 && pairs.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {pairs:?}");
        let last = pairs.last().expect("there are more than ten");
        assert_eq!(last.0, 100.0, "{name}");
        assert!((last.1 / aggregated[7] - 1.0).abs() < 0.01, "{name}: {last:?} of {aggregated:?}");
    }
}

#[test]
fn an_honest_server_is_verified_and_its_result_is_ombs() {
    let trial = |old| {
        let trial = Trial::against(Faults { old, ..Faults::default() });
        let trial = trial.with("partitionsPerTopic", "3").with("producersPerTopic", "2");
        trial.with("consumerPerSubscription", "3").with("flavour", "mild").producer("sticky.fingers=1")
    };
    let case = |old| {
        move || {
            let trial = trial(old);
            let mut outcome = trial.run();
            assert!(outcome.success, "{}", outcome.stderr);
            let words = "the workload faulty: ignored, because it means nothing here: flavour";
            assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
            assert!(outcome.stderr.contains("means nothing here: sticky.fingers"), "{}", outcome.stderr);
            assert!(outcome.stderr.contains("all received once and in order"), "{}", outcome.stderr);
            let result = outcome.results.remove(0);
            assert_ombs(&result);
            assert_eq!(result["bench"]["verified"], true);
            let published = number(&result, "/bench/publishedMessages");
            assert!((1900.0..2100.0).contains(&published), "{published}");
            let state = trial.fake.state();
            assert_eq!(state.removed, state.topics.keys().cloned().collect::<Vec<_>>());
        }
    };
    at_once([false, true].map(case));
}

#[test]
fn weaker_acknowledgements_are_verified_too() {
    let case = |acks: &'static str| {
        move || {
            let result = Trial::against(Faults::default()).producer(acks).succeed();
            assert_eq!(result["bench"]["verified"], true, "{acks}");
            let published = number(&result, "/bench/publishedMessages");
            assert!((1900.0..2100.0).contains(&published), "{acks}: {published}");
            let consumed = number(&result, "/bench/consumedMessages");
            assert!((consumed / published - 1.0).abs() < 0.1, "{acks}: {consumed}");
        }
    };
    at_once(["acks=1", "acks=0"].map(case));
}

fn a_backlog_is_built_and_drained() {
    let trial = Trial::against(Faults::default())
        .with("producerRate", "4000")
        .with("consumerBacklogSizeGB", "0.0005")
        .with("testDurationSeconds", "1");
    let result = trial.succeed();
    let messages = number(&result, "/bench/backlog/messages");
    // 0.0005 GiB in messages of 100 bytes.
    assert!((5368.0..8000.0).contains(&messages), "{messages}");
    let building = number(&result, "/bench/backlog/buildSeconds");
    assert!((messages / building / 4000.0 - 1.0).abs() < 0.2, "{messages} in {building} s at 4000/s");
    let drained = number(&result, "/bench/backlog/drainSeconds");
    assert!((0.0..2.0).contains(&drained), "{drained}");
    let rate = number(&result, "/bench/backlog/drainRate");
    assert!(rate * drained >= messages - 1000.0, "{rate}/s for {drained} s");
    assert!(at(&result, END_TO_END, 100.0) > 1000.0, "the first of the backlog waited for all of it");
}

#[test]
fn keys_topics_and_groups_are_as_asked() {
    let keys = || {
        let trial = Trial::against(Faults::default())
            .with("keyDistributor", "KEY_ROUND_ROBIN")
            .with("partitionsPerTopic", "3");
        assert_eq!(trial.succeed()["bench"]["verified"], true);
        let state = trial.fake.state();
        let logs = state.topics.values().next().expect("there is a topic");
        let mut homes = std::collections::BTreeMap::new();
        for (partition, log) in logs.iter().enumerate() {
            for record in log.batches.iter().flat_map(|batch| records(batch, 1 << 20).expect("it is whole").1)
            {
                let key = record.expect("it is whole").key.expect("all have keys");
                assert_eq!(key.len(), 10);
                let home = *homes.entry(key).or_insert(partition);
                assert_eq!(home, partition, "a key stays with its partition");
            }
        }
        // A producer takes the keys of the pool in turn, and 2.5 s at 1000/s do not use all of them.
        assert!((2300..2800).contains(&homes.len()), "{}", homes.len());
        assert!((0..3).all(|partition| homes.values().filter(|home| **home == partition).count() > 500));
    };
    let groups = || {
        let trial = Trial::against(Faults::default())
            .with("topics", "2")
            .with("subscriptionsPerTopic", "2")
            // Long enough for a commit, which happens every five seconds.
            .with("testDurationSeconds", "6");
        let result = trial.succeed();
        let published = number(&result, "/bench/publishedMessages");
        let consumed = number(&result, "/bench/consumedMessages");
        assert!((consumed / published / 2.0 - 1.0).abs() < 0.1, "{consumed} of {published}, for two groups");
        let state = trial.fake.state();
        assert_eq!((state.topics.len(), state.commits.len()), (2, 4), "two groups of each topic commit");
        for ((group, topic, _), offset) in &state.commits {
            assert!(group.ends_with(topic.as_str()) && *offset > 1000, "{group} {topic} {offset}");
            assert!(state.topics[topic][0].batches.len() > 100);
        }
    };
    at_once([boxed(keys), boxed(groups)]);
}

fn the_sustainable_rate_of_a_slow_server_is_found() {
    // 8 messages per request, 3 ms each, one at a time: at most 2667 messages/s.
    let faults = Faults { produce_work: Duration::from_millis(3), ..Faults::default() };
    let trial = Trial::against(faults)
        .with("producerRate", "0")
        .with("testDurationSeconds", "9.5")
        .producer("batch.size=1050")
        .producer("buffer.memory=100000");
    let result = trial.succeed();
    let rate = number(&result, "/bench/sustainableRate");
    assert!((500.0..3200.0).contains(&rate), "{rate}");
    assert_eq!(number(&result, "/bench/producerRate"), 0.0);
}

#[test]
fn rates_and_backlogs_are_as_asked() {
    at_once([
        a_backlog_is_built_and_drained,
        the_sustainable_rate_of_a_slow_server_is_found,
        each_rate_of_a_list_has_its_file,
    ]);
}

fn each_rate_of_a_list_has_its_file() {
    let trial = || {
        Trial::against(Faults::default())
            .with("producerRates", "[300, 600]")
            .with("testDurationSeconds", "1.5")
    };
    let mut results = trial().output("results").run().results;
    results.sort_by(|a, b| number(a, "/bench/producerRate").total_cmp(&number(b, "/bench/producerRate")));
    let names: Vec<&str> = results.iter().filter_map(|result| result["workload"].as_str()).collect();
    assert_eq!(names, ["faulty at 300/s", "faulty at 600/s"]);
    for (result, due) in results.iter().zip([300.0, 600.0]) {
        let rate = number(result, "/bench/publishedMessages") / number(result, "/bench/seconds");
        assert!((rate / due - 1.0).abs() < 0.1, "{rate}/s of {due}/s");
    }
    let said = trial().fail("two tests, one file");
    assert!(said.contains("these are 2 tests: --output is to be a directory"), "{said}");
}

#[test]
fn wrong_files_are_refused_in_words() {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    // Nothing listens on the discard port.
    let nobody = driver("127.0.0.1:9".parse().expect("an address"), &[]);
    let said = |workload: &str, driver: &str| {
        let outcome = run_files(&directory, workload, driver, "out.json");
        assert!(!outcome.success && outcome.results.is_empty(), "{}", outcome.stderr);
        outcome.stderr
    };
    let cases = [
        (SMALLEST.to_owned(), nobody.clone(), "cannot connect to 127.0.0.1:9"),
        ("topics: [".to_owned(), nobody.clone(), "workload.yaml: "),
        (SMALLEST.replace("topics: 1\n", ""), nobody.clone(), "workload.yaml: missing field `topics`"),
        (SMALLEST.replace("producerRate: 10", "producerRate: fast"), nobody.clone(), "workload.yaml: "),
        (
            SMALLEST.replace("messageSize: 10", "messageSize: 0"),
            nobody.clone(),
            "messageSize is to be 1 at least",
        ),
        (
            format!("{SMALLEST}payloadFile: none.data\n"),
            nobody.clone(),
            "the payload file none.data cannot be read",
        ),
        (SMALLEST.to_owned(), nobody.replace("bootstrap.servers", "servers"), "bootstrap.servers=HOST:PORT"),
        (
            SMALLEST.to_owned(),
            format!("driverClass: a.PulsarDriver\n{nobody}"),
            "only Kafka's protocol is spoken here",
        ),
        (
            SMALLEST.to_owned(),
            nobody.replace("producerConfig: |\n", "producerConfig: |\n  acks=2\n"),
            "acks=2",
        ),
    ];
    for (workload, driver, words) in cases {
        let said = said(&workload, &driver);
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}
