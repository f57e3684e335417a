//! Connections whose clients have not authenticated yet.
//!
//! An attack can make them numerous. Their number and the memory of their requests are therefore bounded separately
//! from those of other connections. Beyond the bound, the oldest connection is closed, not the newest. An honest client
//! authenticates within milliseconds, and a client that only holds its place is soon the oldest. If the newest were
//! refused, a few hundred silent connections could shut out all clients for as long as they may stay.
//!
//! Invariant: a connection is in the lobby as long as its [`Place`] exists, unless it has lost the place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::budget::Budget;

/// Bound of the handshakes in progress. Each holds some tens of KiB at most.
pub const PLACES_MAX: usize = 2000;
/// Bound in bytes of requests before authentication, over all connections.
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

/// A place in the lobby. Dropping it releases the place.
#[derive(Debug)]
pub struct Place {
    /// The time at which the connection came.
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
    /// Creates a lobby with this number of places.
    pub fn new(places_max: usize) -> Lobby {
        Lobby { budget: Budget::new(REQUEST_BYTES_MAX), places: Mutex::default(), places_max }
    }

    /// Takes a place. If none is left, the oldest connection loses its place.
    pub fn enter(self: &Arc<Lobby>) -> Place {
        let (keep, lost) = oneshot::channel();
        let mut places = self.lock();
        if places.taken.len() >= self.places_max
            && let Some((_, oldest)) = places.taken.pop_first()
        {
            // An error means that the connection is already ending.
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

    /// The number of connections that have a place.
    pub fn len(&self) -> usize {
        self.lock().taken.len()
    }
}

impl Place {
    /// The lobby of the place.
    pub fn lobby(&self) -> Arc<Lobby> {
        self.lobby.clone()
    }

    /// Waits until the place is lost; for ever if `place` is `None`. Cancellation-safe.
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
