//! Turns for work that unauthenticated clients can request. They leave some of the processors to authenticated clients.
//! A TLS handshake costs about a millisecond, and any client that can connect can request thousands.
//!
//! The work takes a turn for each poll. It holds no turn while it waits for its client.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::ready;

use tokio::sync::Semaphore;

/// The number of turns at a time.
#[derive(Debug)]
pub struct Turns(Semaphore);

impl Default for Turns {
    /// Half of the processors.
    fn default() -> Turns {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Turns(Semaphore::new((processors / 2).max(1)))
    }
}

impl Turns {
    /// Runs `work`, each poll in its turn. Turns are granted in the order of the requests.
    pub async fn take<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut waiting = None;
        poll_fn(|cx| {
            let turn = waiting.get_or_insert_with(|| Box::pin(self.0.acquire()));
            let turn = ready!(turn.as_mut().poll(cx)).expect("it is never closed");
            waiting = None;
            let polled = work.as_mut().poll(cx);
            drop(turn);
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_are_at_it_than_there_are_turns_and_all_come_to_an_end() {
        let turns = Arc::new(Turns(Semaphore::new(2)));
        let (at_it, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..50 {
            let (turns, at_it, most) = (turns.clone(), at_it.clone(), most.clone());
            tasks.spawn(async move {
                let step = || {
                    most.fetch_max(at_it.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(200));
                    at_it.fetch_sub(1, Ordering::SeqCst);
                };
                let work = async {
                    step();
                    // Waiting takes no turn. Otherwise no work would finish.
                    tokio::time::sleep(Duration::from_millis(number % 7)).await;
                    tokio::task::yield_now().await;
                    step();
                    number
                };
                turns.take(work).await
            });
        }
        let ended = tokio::time::timeout(Duration::from_secs(20), tasks.join_all()).await.unwrap();
        assert_eq!(ended.len(), 50);
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!(turns.0.available_permits(), 2);
    }

    #[tokio::test]
    async fn who_gives_up_waiting_gives_up_its_turn() {
        let turns = Turns(Semaphore::new(1));
        let held = turns.0.acquire().await.unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(20), turns.take(async { 1 })).await;
        assert!(waited.is_err());
        drop(held);
        assert_eq!(turns.take(async { 2 }).await, 2);
    }
}
