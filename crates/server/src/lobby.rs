//! Connections whose clients have not shown yet who they are.
//!
//! They are many where somebody attacks, so there is a bound on them and on what their requests hold, apart from what
//! the others have. Past the bound the one that has been here for longest is closed, not the newest: a client that
//! means to authenticate is through within milliseconds, one that only holds its place is soon the oldest. Refusing the
//! newest would let a few hundred silent connections shut everybody out for as long as they may stay.
//!
//! Invariant: a connection is here as long as its [`Place`] exists, unless it lost the place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::budget::Budget;

/// Handshakes that may be under way. Each holds some tens of KiB at most.
pub const PLACES_MAX: usize = 2000;
/// What the requests before authentication hold, of all connections together.
const REQUEST_BYTES_MAX: i64 = 32 * 1024 * 1024;

/// The places, oldest first.
#[derive(Debug)]
pub struct Lobby {
    pub budget: Budget,
    places: Mutex<Places>,
    places_max: usize,
}

#[derive(Debug, Default)]
struct Places {
    taken: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// A place in the lobby; given back when dropped.
#[derive(Debug)]
pub struct Place {
    /// When the connection came.
    pub since: Instant,
    lobby: Arc<Lobby>,
    number: u64,
    lost: oneshot::Receiver<()>,
}

impl Default for Lobby {
    fn default() -> Lobby {
        Lobby::new(PLACES_MAX)
    }
}

impl Lobby {
    /// With so many places.
    pub fn new(places_max: usize) -> Lobby {
        Lobby { budget: Budget::new(REQUEST_BYTES_MAX), places: Mutex::default(), places_max }
    }

    /// Takes a place, from the connection that is here for longest if there is none left.
    pub fn enter(self: &Arc<Lobby>) -> Place {
        let (keep, lost) = oneshot::channel();
        let mut places = self.lock();
        if places.taken.len() >= self.places_max
            && let Some((_, oldest)) = places.taken.pop_first()
        {
            // An error: it is on its way out.
            let _ = oldest.send(());
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, keep);
        Place { since: Instant::now(), lobby: self.clone(), number, lost }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that have a place.
    pub fn len(&self) -> usize {
        self.lock().taken.len()
    }
}

impl Place {
    /// Where it is.
    pub fn lobby(&self) -> Arc<Lobby> {
        self.lobby.clone()
    }

    /// Waits until the place is lost; for ever where there is none. Cancellation-safe.
    pub async fn lost(place: &mut Option<Place>) {
        let lost = match place {
            Some(place) => (&mut place.lost).await.is_ok(),
            None => false,
        };
        if !lost {
            std::future::pending().await
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_here_for_longest_makes_room() {
        let lobby = Arc::new(Lobby::new(2));
        let (mut first, second) = (Some(lobby.enter()), lobby.enter());
        drop(second);
        let (second, _third) = (lobby.enter(), lobby.enter());
        Place::lost(&mut first).await;
        assert_eq!(lobby.len(), 2);
        drop((first, second));
        assert_eq!(lobby.len(), 1);
    }
}
