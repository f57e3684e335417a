//! The epochs of a log that several servers may own, one after the other, and how one ends for ever.
//!
//! Each owner puts its objects in an epoch of its own, `logs/LOG/EPOCH/NUMBER`. Numbers go on from epoch to epoch. An owner
//! acknowledges the records of an object once all objects of its epoch up to this one are stored. The next owner ends the
//! epoch with a *seal*: it puts the seal, if absent, under the first number without object. From then on, the store refuses
//! the put of the old owner under this number. So the old owner acknowledges nothing behind the seal. No reader reads what
//! it still stores there. The seal names the next epoch. The seals are a chain from epoch 0, which has no objects, to the
//! epoch of the owner.
//!
//! [`Walk`] goes along this chain. It makes no request. Its caller asks the store, and a test tries all orders of requests.
//! These rules make it safe:
//! - A seal is never deleted.
//! - An owner deletes an object of its epoch only after it has asked for later claims, and only if an object that says that
//!   it counts was stored before the question. A walk begins with the claim. So a gap behind the objects that count was
//!   never an object of an owner without successor.
//! - Later owners delete objects before a seal. A put of a slow walk may land there, as a second seal of the epoch. The seal
//!   with the highest number is the first that landed, so it alone counts. A walk looks again after its own put.
//! - For the same reason, a walk may learn all seals in one look after its claim: an epoch that has one keeps the one that
//!   counts.
//! - The epochs in the chain rise. A walk that meets its own epoch of another owner, or a later one, ends.
//! - Each opening of a log has an epoch and an owner of its own: a request of an earlier opening may land at any time.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::Fields;

/// Bytes of a seal. No segment is so short.
pub const SEAL_BYTES: usize = 48;
const SEAL_MAGIC: [u8; 8] = *b"MSsealed";
/// The epoch before the first owner.
const BEFORE_ALL: Epoch = Epoch { epoch: 0, first: 1 };

/// An epoch of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Epoch {
    /// Its number. Later epochs have higher numbers.
    pub epoch: u32,
    /// The number of its first object.
    pub first: u32,
}

/// The epochs of a log that are in the chain, oldest first. Empty for a log that has one owner only, whose keys have no
/// epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Epochs(Arc<[Epoch]>);

impl Epochs {
    /// The epoch of the object `number`. `None` for a log without epochs.
    pub fn of(&self, number: u32) -> Option<u32> {
        let behind = self.0.partition_point(|epoch| epoch.first <= number);
        self.0.get(behind.saturating_sub(1)).map(|epoch| epoch.epoch)
    }

    /// The epochs that these seals lead to. The last one may go on.
    pub fn along(seals: &Seals) -> Epochs {
        let (mut passed, mut at) = (Vec::new(), BEFORE_ALL);
        while let Some((number, seal)) = seals.get(&at.epoch).filter(|(_, seal)| seal.epoch > at.epoch) {
            at = Epoch { epoch: seal.epoch, first: number + 1 };
            passed.push(at);
        }
        Epochs(passed.into())
    }

    /// The epochs.
    pub fn all(&self) -> &[Epoch] {
        &self.0
    }

    /// The newest epoch.
    pub fn newest(&self) -> Option<Epoch> {
        self.0.last().copied()
    }

    /// Whether a seal has this number: the last one before the next epoch.
    pub fn is_seal(&self, number: u32) -> bool {
        self.0.binary_search_by_key(&(number + 1), |epoch| epoch.first).is_ok()
    }
}

/// The right to put objects of a log with epochs, as [`crate::takeover`] gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owned {
    /// The epochs up to the owner's.
    pub epochs: Epochs,
    /// The random number of the owner.
    pub owner: u64,
}

/// The end of an epoch, and the beginning of another one.
///
/// ```text
///  0 magic "MSsealed"   8 epoch that begins u32   12 zero u32   16 log id 16 B   32 owner u64   40 zero u32
/// 44 crc u32 of bytes 0..44
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seal {
    /// The log.
    pub log_id: u128,
    /// The epoch that begins.
    pub epoch: u32,
    /// The owner of that epoch: a random number, drawn for each attempt.
    pub owner: u64,
}

impl Seal {
    /// The object.
    pub fn encode(&self) -> [u8; SEAL_BYTES] {
        let mut out = [0; SEAL_BYTES];
        out[..8].copy_from_slice(&SEAL_MAGIC);
        out[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..32].copy_from_slice(&self.log_id.to_le_bytes());
        out[32..40].copy_from_slice(&self.owner.to_le_bytes());
        let crc = model::crc32c(&out[..SEAL_BYTES - 4]);
        out[SEAL_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The seal in `bytes`. `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Seal> {
        let (head, crc) = bytes.split_at_checked(SEAL_BYTES - 4)?;
        let whole = *crc == model::crc32c(head).to_le_bytes() && head[..8] == SEAL_MAGIC;
        let mut fields = Fields(&head[8..]);
        let (epoch, _) = (fields.u32(), fields.u32());
        let log_id = u128::from(fields.u64()) | u128::from(fields.u64()) << 64;
        whole.then(|| Seal { log_id, epoch, owner: fields.u64() })
    }
}

/// What an epoch has in the store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Holds {
    /// The numbers of its objects, in order. Without the seal.
    pub numbers: Vec<u32>,
    /// All objects below count, as the object with the highest number says. Without the bit [`crate::format::STORED`].
    pub counted: u32,
    /// The seal with the highest number, and the number.
    pub seal: Option<(u32, Seal)>,
}

/// What a walk does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Tell the seals of all epochs ([`Walk::seals`]).
    Seals,
    /// Tell what this epoch has ([`Walk::holds`]). If an object is deleted meanwhile, look again.
    Look(Epoch),
    /// Put the seal of the walk under this number of the epoch, if absent ([`Walk::put`]). An unclear outcome is
    /// repeated.
    Seal(Epoch, u32),
    /// All epochs before are sealed: the walk's epoch is the newest one.
    Owned(Epochs),
    /// Another owner has this epoch or a later one.
    Fenced(Seal),
}

/// The way of a new owner along the epochs of a log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Walk {
    seal: Seal,
    /// The epochs so far, without the one before all.
    passed: Vec<Epoch>,
    /// The seals of epochs that are not passed yet, as far as they are known.
    known: Seals,
    at: At,
}

/// The seal of each epoch that has one: that with the highest number, and the number.
pub type Seals = BTreeMap<u32, (u32, Seal)>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum At {
    Beginning,
    Looking(Epoch),
    Sealing(Epoch, u32),
    Owned,
    Fenced(Seal),
}

impl Walk {
    /// The walk of the owner that `seal` names. Its claim must have been put before.
    pub fn new(seal: Seal) -> Walk {
        Walk { seal, passed: Vec::new(), known: Seals::new(), at: At::Beginning }
    }

    /// What to do next.
    pub fn step(&self) -> Step {
        match &self.at {
            At::Beginning => Step::Seals,
            At::Looking(epoch) => Step::Look(*epoch),
            At::Sealing(epoch, number) => Step::Seal(*epoch, *number),
            At::Owned => Step::Owned(Epochs(self.passed.clone().into())),
            At::Fenced(by) => Step::Fenced(*by),
        }
    }

    /// Goes on with the seals that [`Step::Seals`] asks for.
    pub fn seals(&mut self, seals: Seals) {
        self.known = seals;
        self.look(BEFORE_ALL);
    }

    /// Goes along the known seals, from this epoch on.
    fn look(&mut self, mut epoch: Epoch) {
        self.at = At::Looking(epoch);
        while let Some((number, seal)) = self.known.remove(&epoch.epoch) {
            self.pass(epoch, number, seal);
            let At::Looking(next) = self.at else { return };
            epoch = next;
        }
    }

    /// Goes on with what the epoch has that [`Step::Look`] named.
    pub fn holds(&mut self, holds: &Holds) {
        let At::Looking(epoch) = self.at else { return };
        if let Some((number, seal)) = holds.seal {
            self.pass(epoch, number, seal);
            if let At::Looking(next) = self.at {
                self.look(next);
            }
            return;
        }
        // Objects that count may be deleted. Any other gap was never filled, or is filled at this moment: the put decides.
        let mut free = epoch.first.max(holds.counted);
        for number in holds.numbers.iter().filter(|number| **number >= epoch.first.max(holds.counted)) {
            if *number != free {
                break;
            }
            free += 1;
        }
        self.at = At::Sealing(epoch, free);
    }

    /// Goes on after the put that [`Step::Seal`] named, whether it has stored the seal or found another object there.
    pub fn put(&mut self) {
        let At::Sealing(epoch, _) = self.at else { return };
        // The number may have been free because a later owner has deleted the object there.
        self.at = At::Looking(epoch);
    }

    /// Goes on to the epoch that a seal begins.
    fn pass(&mut self, from: Epoch, number: u32, seal: Seal) {
        let next = Epoch { epoch: seal.epoch, first: number + 1 };
        self.at = match seal.epoch.cmp(&self.seal.epoch) {
            Ordering::Less if seal.epoch > from.epoch => At::Looking(next),
            Ordering::Equal if seal.owner == self.seal.owner => At::Owned,
            _ => At::Fenced(seal),
        };
        self.passed.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_come_back_and_damage_is_seen() {
        let seal = Seal { log_id: 7 << 100 | 5, epoch: 3, owner: u64::MAX - 1 };
        let bytes = seal.encode();
        assert_eq!(Seal::decode(&bytes), Some(seal));
        for at in 0..SEAL_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Seal::decode(&damaged), None, "byte {at}");
            assert_eq!(Seal::decode(&bytes[..at]), None);
        }
    }

    #[test]
    fn a_walk_ends_at_its_own_epoch_of_another_owner_and_at_a_chain_that_does_not_rise() {
        let seal = |epoch, owner| Seal { log_id: 1, epoch, owner };
        let after = |seals: &[Seal]| {
            let mut walk = Walk::new(seal(3, 7));
            walk.seals(Seals::new());
            for (number, seal) in (1..).zip(seals) {
                walk.holds(&Holds { seal: Some((number, *seal)), ..Holds::default() });
            }
            // The same when all of them are known at the beginning.
            let mut knowing = Walk::new(walk.seal);
            let from = std::iter::once(0).chain(seals.iter().map(|seal| seal.epoch));
            knowing.seals(from.zip((1..).zip(seals.iter().copied())).collect());
            assert_eq!(knowing.step(), walk.step());
            walk.step()
        };
        let seals = Seals::from([(0, (1, seal(2, 1))), (2, (4, seal(5, 1))), (7, (9, seal(8, 1)))]);
        let along: Vec<_> =
            Epochs::along(&seals).all().iter().map(|epoch| (epoch.epoch, epoch.first)).collect();
        assert_eq!(along, [(2, 2), (5, 5)]);
        assert_eq!(Epochs::along(&Seals::from([(0, (1, seal(0, 1)))])).all(), []);
        assert!(matches!(after(&[seal(3, 7)]), Step::Owned(_)));
        assert_eq!(after(&[seal(3, 8)]), Step::Fenced(seal(3, 8)));
        assert_eq!(after(&[seal(1, 1), seal(4, 1)]), Step::Fenced(seal(4, 1)));
        assert_eq!(after(&[seal(2, 1), seal(1, 1)]), Step::Fenced(seal(1, 1)));
        assert_eq!(after(&[seal(1, 1), seal(2, 1)]), Step::Look(Epoch { epoch: 2, first: 3 }));
    }

    #[test]
    fn numbers_belong_to_the_epoch_in_which_they_lie() {
        let epoch = |epoch, first| Epoch { epoch, first };
        let epochs = Epochs([epoch(2, 2), epoch(5, 6)].into());
        assert_eq!([2, 4, 6, 90].map(|number| epochs.of(number)), [Some(2), Some(2), Some(5), Some(5)]);
        assert_eq!([1, 2, 4, 5, 6].map(|number| epochs.is_seal(number)), [true, false, false, true, false]);
        assert_eq!((Epochs::default().of(3), Epochs::default().is_seal(0)), (None, false));
    }
}
