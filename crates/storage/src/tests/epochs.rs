//! Every order in which an owner, two later owners and the store can act, for the fencing of [`crate::epochs`].
//!
//! Three owners claim, walk and put objects, the first one two of them at a time. They delete objects of their own epoch,
//! and later those of earlier epochs. A request that was sent may land at any later time, also twice. An answer may come
//! late, or never. An owner may stop for any time between a decision and its request. All states that can be reached are
//! looked at. A look shows an epoch at one moment. Walks of the same epoch by two processes are not part of it.

use std::collections::{BTreeMap, BTreeSet};

use super::states::visit_all;
use crate::epochs::{Epochs, Holds, Seal, Step, Walk};

/// The objects that the owner of each epoch puts at the most.
const OBJECTS: [u32; 3] = [2, 1, 1];
/// Objects of an owner that are on their way at the same time.
const PUTS: u32 = 2;

/// A mistake in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// The store overwrites objects.
    Overwrites,
    /// Owners delete the seals of earlier epochs.
    DeletesSeals,
    /// Owners delete objects without asking for later claims.
    DeletesUnasked,
    /// Owners look at the epochs before they claim.
    ClaimsLate,
    /// A walk that has put its seal does not look again.
    TrustsItsPut,
    /// The seal with the lowest number counts.
    LowestSealCounts,
    /// An owner answers for an object that it has sent.
    AnswersUnstored,
    /// The first owner of an empty log does not seal the epoch before.
    BeginsUnsealed,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Thing {
    /// An object of the owner of its epoch. All below `counted` had been answered when it was built.
    Object {
        counted: u32,
    },
    Seal {
        epoch: u32,
    },
}

type Key = (u32, u32);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Actor {
    Idle,
    Walks(Walk),
    Fenced,
    Owns(Owner),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Owner {
    /// The epochs as the walk left them: epoch and first number of each.
    epochs: Vec<Key>,
    first: u32,
    /// The number of the next object to send.
    sent: u32,
    /// All objects below are answered.
    answered: u32,
    /// All objects below count, as the last answered one says.
    vouched: u32,
    /// Objects below may be deleted: nobody had claimed a later epoch when it asked.
    deletes: u32,
    /// So may those of earlier epochs.
    deletes_earlier: bool,
    fenced: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    store: BTreeMap<Key, Thing>,
    /// Requests that were sent: they may land now and later.
    sent: BTreeSet<(Key, Thing)>,
    claims: BTreeSet<u32>,
    actors: Vec<Actor>,
}

fn seal(epoch: u32) -> Seal {
    Seal { log_id: 1, epoch, owner: u64::from(epoch) }
}

impl Owner {
    fn new(epochs: &Epochs) -> Owner {
        let first = epochs.newest().unwrap().first;
        let epochs = epochs.all().iter().map(|of| (of.epoch, of.first)).collect();
        Owner {
            epochs,
            first,
            sent: first,
            answered: first,
            vouched: first,
            deletes: first,
            deletes_earlier: false,
            fenced: false,
        }
    }
}

impl State {
    fn new() -> State {
        State { actors: vec![Actor::Idle; OBJECTS.len()], ..State::default() }
    }

    fn holds(&self, epoch: u32, mistake: Option<Mistake>) -> Holds {
        let mut holds = Holds::default();
        for ((_, number), thing) in self.store.range((epoch, 0)..(epoch + 1, 0)) {
            match thing {
                Thing::Object { counted } => {
                    holds.numbers.push(*number);
                    holds.counted = *counted;
                }
                Thing::Seal { .. } if mistake == Some(Mistake::LowestSealCounts) && holds.seal.is_some() => {}
                Thing::Seal { epoch } => holds.seal = Some((*number, seal(*epoch))),
            }
        }
        holds
    }

    fn with(&self, change: impl FnOnce(&mut State)) -> State {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// All states that one step leads to.
    fn next(&self, mistake: Option<Mistake>) -> Vec<State> {
        let mut next = Vec::new();
        for (key, thing) in &self.sent {
            let absent = !self.store.contains_key(key);
            let overwrites = mistake == Some(Mistake::Overwrites) && self.store.get(key) != Some(thing);
            if absent || overwrites {
                next.push(self.with(|state| {
                    state.store.insert(*key, *thing);
                }));
            }
        }
        for (at, epoch) in (0..).zip(1..=3) {
            match &self.actors[at] {
                Actor::Idle => next.push(self.with(|state| {
                    if mistake != Some(Mistake::ClaimsLate) {
                        state.claims.insert(epoch);
                    }
                    state.actors[at] = Actor::Walks(Walk::new(seal(epoch)));
                })),
                Actor::Walks(walk) => self.walk((at, epoch), walk, mistake, &mut next),
                Actor::Owns(owner) => self.own((at, epoch), owner, mistake, &mut next),
                Actor::Fenced => {}
            }
        }
        next
    }

    fn walk(&self, (at, epoch): (usize, u32), walk: &Walk, mistake: Option<Mistake>, next: &mut Vec<State>) {
        let mut go = |change: &dyn Fn(&mut Walk)| {
            let mut walk = walk.clone();
            change(&mut walk);
            next.push(self.with(|state| state.actors[at] = Actor::Walks(walk)));
        };
        match walk.step() {
            Step::Seals => go(&|walk| {
                let of = |epoch| Some((epoch, self.holds(epoch, mistake).seal?));
                walk.seals((0..).take(OBJECTS.len() + 1).filter_map(of).collect());
            }),
            Step::Look(of) if mistake == Some(Mistake::BeginsUnsealed) && self.store.is_empty() => {
                // As if the seal of the epoch before were there.
                go(&|walk| walk.holds(&Holds { seal: Some((of.first, seal(epoch))), ..Holds::default() }));
            }
            Step::Look(of) => go(&|walk| walk.holds(&self.holds(of.epoch, mistake))),
            Step::Seal(of, number) => {
                let request = ((of.epoch, number), Thing::Seal { epoch });
                match self.store.get(&request.0) {
                    _ if !self.sent.contains(&request) => {
                        next.push(self.with(|state| {
                            state.sent.insert(request);
                        }));
                    }
                    Some(thing) if *thing == request.1 && mistake == Some(Mistake::TrustsItsPut) => {
                        go(&|walk| {
                            walk.put();
                            walk.holds(&Holds { seal: Some((number, seal(epoch))), ..Holds::default() });
                        })
                    }
                    Some(_) => go(&|walk| walk.put()),
                    None => {}
                }
            }
            Step::Owned(epochs) => next.push(self.with(|state| {
                state.claims.insert(epoch);
                state.actors[at] = Actor::Owns(Owner::new(&epochs));
            })),
            Step::Fenced(_) => next.push(self.with(|state| state.actors[at] = Actor::Fenced)),
        }
    }

    fn own(&self, (at, epoch): (usize, u32), owner: &Owner, mistake: Option<Mistake>, next: &mut Vec<State>) {
        let mut go = |change: &dyn Fn(&mut State, &mut Owner)| {
            let (mut state, mut owner) = (self.clone(), owner.clone());
            change(&mut state, &mut owner);
            state.actors[at] = Actor::Owns(owner);
            next.push(state);
        };
        let room = owner.sent - owner.answered < PUTS && owner.sent - owner.first < OBJECTS[at];
        if room && !owner.fenced {
            go(&|state, owner| {
                state.sent.insert(((epoch, owner.sent), Thing::Object { counted: owner.answered }));
                owner.sent += 1;
            });
        }
        if owner.answered < owner.sent && !owner.fenced {
            match self.store.get(&(epoch, owner.answered)) {
                Some(Thing::Object { counted }) => go(&|_, owner| {
                    owner.vouched = *counted;
                    owner.answered += 1;
                }),
                Some(Thing::Seal { .. }) => go(&|_, owner| owner.fenced = true),
                None if mistake == Some(Mistake::AnswersUnstored) => go(&|_, owner| owner.answered += 1),
                None => {}
            }
        }
        let asked = self.claims.iter().all(|claim| *claim <= epoch);
        if owner.deletes < owner.vouched && (asked || mistake == Some(Mistake::DeletesUnasked)) {
            go(&|_, owner| owner.deletes = owner.vouched);
        }
        if !owner.deletes_earlier && owner.answered > owner.first && asked && epoch > 1 {
            go(&|_, owner| owner.deletes_earlier = true);
        }
        for (key, thing) in &self.store {
            let earlier =
                owner.deletes_earlier && owner.epochs.iter().any(|(of, _)| *of == key.0 && *of < epoch);
            let own = key.0 == epoch && (owner.first..owner.deletes).contains(&key.1);
            // Also long after it has asked.
            if (earlier || own) && matches!(thing, Thing::Object { .. }) {
                go(&|state, _| {
                    state.store.remove(key);
                });
            }
        }
        if mistake == Some(Mistake::DeletesSeals) {
            for (key, _) in self
                .store
                .iter()
                .filter(|((of, _), thing)| *of < epoch && matches!(thing, Thing::Seal { .. }))
            {
                go(&|state, _| {
                    state.store.remove(key);
                });
            }
        }
    }

    /// What is wrong with this state.
    fn fault(&self) -> Option<&'static str> {
        let owners: Vec<(u32, &Owner)> = (1..)
            .zip(&self.actors)
            .filter_map(|(epoch, actor)| match actor {
                Actor::Owns(owner) => Some((epoch, owner)),
                _ => None,
            })
            .collect();
        for (epoch, owner) in &owners {
            for (_, by) in owners.iter().filter(|(later, _)| later > epoch) {
                let at = by.epochs.iter().position(|(of, _)| of == epoch);
                let begins = at.map(|at| by.epochs[at].1);
                let ends = at.and_then(|at| by.epochs.get(at + 1)).map(|(_, first)| first - 1);
                match (begins, ends) {
                    (Some(begins), Some(ends)) => {
                        if begins != owner.first {
                            return Some("two owners see an epoch begin at two places");
                        }
                        if owner.answered > ends {
                            return Some("an object was answered that lies behind the seal");
                        }
                    }
                    _ if owner.answered > owner.first => {
                        return Some("an object was answered in an epoch that no later owner knows");
                    }
                    _ => {}
                }
            }
            let deleted = owners.iter().any(|(later, by)| later > epoch && by.deletes_earlier);
            let kept = if deleted { 0..0 } else { owner.deletes..owner.answered };
            let there = |number| matches!(self.store.get(&(*epoch, number)), Some(Thing::Object { .. }));
            if !kept.into_iter().all(there) {
                return Some("an object that was answered is not there");
            }
        }
        None
    }
}

#[derive(Default, Debug)]
struct Seen {
    states: usize,
    /// The first fault.
    fault: Option<(&'static str, State)>,
    /// How often epoch 1 was sealed behind so many answered objects, seen by the owner of epoch 3.
    sealed_behind: [usize; 3],
    /// How often an epoch had two seals.
    second_seals: usize,
    /// How often an owner was fenced by its own refused put, and a walk by a later seal.
    fenced: [usize; 2],
}

/// Looks at all states that can be reached.
fn search(mistake: Option<Mistake>) -> Seen {
    let mut seen = Seen::default();
    visit_all(
        [State::new()],
        |state| state.next(mistake),
        |state| {
            seen.states += 1;
            if let Some(fault) = state.fault() {
                seen.fault = Some((fault, state.clone()));
                return false;
            }
            if let (Actor::Owns(first), Actor::Owns(_)) = (&state.actors[0], &state.actors[2]) {
                seen.sealed_behind[(first.answered - first.first) as usize] += 1;
            }
            seen.fenced[0] += usize::from(
                state.actors.iter().any(|actor| matches!(actor, Actor::Owns(Owner { fenced: true, .. }))),
            );
            seen.fenced[1] += usize::from(state.actors.contains(&Actor::Fenced));
            let seals = state.store.iter().filter(|(_, thing)| matches!(thing, Thing::Seal { .. }));
            let sealed: Vec<u32> = seals.map(|((epoch, _), _)| *epoch).collect();
            seen.second_seals += usize::from(sealed.windows(2).any(|two| two[0] == two[1]));
            true
        },
    );
    seen
}

#[test]
fn no_order_of_requests_loses_an_answered_object() {
    let seen = search(None);
    assert!(seen.fault.is_none(), "{seen:#?}");
    // It was a search: all that may happen did.
    assert!(seen.sealed_behind.iter().chain(&seen.fenced).all(|times| *times > 0), "{seen:?}");
    assert!(seen.states > 10_000 && seen.second_seals > 0, "{seen:?}");
}

#[test]
fn each_mistake_in_the_protocol_is_found() {
    use Mistake::{
        AnswersUnstored, BeginsUnsealed, ClaimsLate, DeletesSeals, DeletesUnasked, LowestSealCounts,
        Overwrites, TrustsItsPut,
    };
    for mistake in [
        Overwrites,
        DeletesSeals,
        DeletesUnasked,
        ClaimsLate,
        TrustsItsPut,
        LowestSealCounts,
        AnswersUnstored,
        BeginsUnsealed,
    ] {
        let seen = search(Some(mistake));
        assert!(seen.fault.is_some(), "{mistake:?} was not found in {} states", seen.states);
    }
}
