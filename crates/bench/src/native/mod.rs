//! The native engine: a lean client on `wire`, fast enough not to be the bottleneck.
//!
//! Producers and consumers have separate threads, each with its own single-threaded runtime. Threads share only
//! counters, histograms (once per batch) and the ledger (once per batch).

mod accumulator;
pub mod admin;
mod connection;
mod consumer;
mod producer;
mod timer;

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use client::{Properties, Security};

use crate::native::admin::{Admin, Layout};
use crate::native::consumer::ConsumerId;
use crate::plan::Run;

/// Interval at which the end of the test is checked.
const END_LOOK: Duration = Duration::from_millis(50);
/// Time after the end before clients stop waiting: somewhat more than a fetch may wait. A silent server is given up
/// then.
const LEAVE_AFTER: Duration = Duration::from_secs(1);

/// Starts all producers and consumers, each kind on this number of threads.
pub fn start(run: &Arc<Run>, layout: Layout, threads: usize) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let layout = Arc::new(layout);
    let mut started = Vec::new();
    for thread in 0..threads {
        let producers: Vec<usize> = (thread..run.plan.producers()).step_by(threads).collect();
        if !producers.is_empty() {
            let (shared, layout) = (run.clone(), layout.clone());
            let work = move || producer::run(shared, layout, producers);
            started.push(spawn(run, format!("producers-{thread}"), work)?);
        }
        let consumers = (thread..run.plan.consumers()).step_by(threads);
        let consumers: Vec<ConsumerId> = consumers.map(|number| ConsumerId::of(run, number)).collect();
        if !consumers.is_empty() {
            let (shared, layout) = (run.clone(), layout.clone());
            let work = move || consumer::run(shared, layout, consumers);
            started.push(spawn(run, format!("consumers-{thread}"), work)?);
        }
    }
    Ok(started)
}

fn spawn<F: Future<Output = anyhow::Result<()>>>(
    run: &Arc<Run>,
    name: String,
    work: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let run = run.clone();
    let thread = move || {
        let until_the_end = || async {
            tokio::select! {
                done = work() => done,
                () = overdue(&run) => Ok(()),
            }
        };
        if let Err(error) = block_on(until_the_end) {
            run.control.fail(error);
        }
    };
    std::thread::Builder::new().name(name).spawn(thread).context("a thread cannot be started")
}

/// Returns some time after the end of the test. A client that still waits then waits for a server that may never
/// answer.
async fn overdue(run: &Run) {
    while !run.control.ends() {
        tokio::time::sleep(END_LOOK).await;
    }
    tokio::time::sleep(LEAVE_AFTER).await;
}

/// Runs a future of this engine on a runtime of the current thread.
pub fn block_on<T, F: Future<Output = anyhow::Result<T>>>(work: impl FnOnce() -> F) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async { work().await })
}

/// Creates the topics of a test and finds their leaders.
pub fn create_topics(run: &Run) -> anyhow::Result<Layout> {
    let plan = &run.plan;
    block_on(|| async {
        let security = Security::of(&plan.driver.common)?;
        let mut admin = Admin::connect(&plan.driver.common["bootstrap.servers"], &security).await?;
        let mut configs = plan.driver.topic.clone();
        configs.extend(plan.workload.topic_properties());
        let partitions = plan.workload.partitions_per_topic;
        let copies = copies(admin.servers().await?, plan.driver.replication_factor, &mut configs);
        admin.create_topics(&plan.topics, partitions, copies, &configs).await?;
        let layout = admin.layout(&plan.topics, plan.partitions()).await?;
        admin::wait_until_served(&layout, &plan.topics, &security).await?;
        Ok(layout)
    })
}

/// The replication factor to ask for. OMB's drivers ask for 3, which fewer servers cannot provide. A lower factor is
/// reported.
fn copies(servers: usize, asked: i16, configs: &mut Properties) -> i16 {
    const IN_SYNC: &str = "min.insync.replicas";
    let most = i16::try_from(servers.max(1)).unwrap_or(i16::MAX);
    if asked <= most {
        return asked;
    }
    eprintln!("replicationFactor is {asked} and there are {most} servers: the topics have {most} copies");
    if let Some(in_sync) = configs.get_mut(IN_SYNC)
        && in_sync.parse::<i16>().is_ok_and(|wanted| wanted > most)
    {
        eprintln!("{IN_SYNC} is {in_sync}: {most} is set");
        *in_sync = most.to_string();
    }
    most
}

/// The number of messages of the test's topics that the server has deleted. `None` if unknown.
pub fn deleted_messages(run: &Run) -> Option<u64> {
    let plan = &run.plan;
    let found = block_on(|| async {
        let security = Security::of(&plan.driver.common)?;
        let mut admin = Admin::connect(&plan.driver.common["bootstrap.servers"], &security).await?;
        let layout = admin.layout(&plan.topics, plan.partitions()).await?;
        admin::first_offsets(&layout, &plan.topics, &security).await
    });
    found.inspect_err(|error| eprintln!("how much was deleted is not known: {error:#}")).ok()
}

/// Removes the topics of a test.
pub fn delete_topics(run: &Run) -> anyhow::Result<()> {
    let plan = &run.plan;
    block_on(|| async {
        let security = Security::of(&plan.driver.common)?;
        let mut admin = Admin::connect(&plan.driver.common["bootstrap.servers"], &security).await?;
        admin.delete_topics(&plan.topics).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_as_many_as_there_are_servers_at_most() {
        let of = |servers, asked, in_sync: &str| {
            let mut configs = Properties::from([("min.insync.replicas".to_owned(), in_sync.to_owned())]);
            let copies = copies(servers, asked, &mut configs);
            (copies, configs.remove("min.insync.replicas").unwrap())
        };
        assert_eq!(of(3, 3, "2"), (3, "2".to_owned()));
        assert_eq!(of(1, 3, "2"), (1, "1".to_owned()));
        assert_eq!(of(2, 3, "1"), (2, "1".to_owned()));
        assert_eq!(of(5, -1, "1"), (-1, "1".to_owned()));
    }
}
