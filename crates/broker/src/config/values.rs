//! The values of settings that are neither numbers nor words.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use wire::Text;

use crate::caller::Principal;

/// The default treatment of old records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum CleanupPolicy {
    /// Old records are deleted.
    #[default]
    Delete,
    /// Only the newest record of each key stays.
    Compact,
    /// Both: old records are deleted, and older records of a key are compacted.
    CompactAndDelete,
}

impl FromStr for CleanupPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<CleanupPolicy, String> {
        let mut words: Vec<&str> = text.split(',').map(str::trim).collect();
        words.sort_unstable();
        match words[..] {
            ["delete"] => Ok(CleanupPolicy::Delete),
            ["compact"] => Ok(CleanupPolicy::Compact),
            ["compact", "delete"] => Ok(CleanupPolicy::CompactAndDelete),
            _ => Err("it must be delete, compact, or compact,delete".into()),
        }
    }
}

impl Display for CleanupPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CleanupPolicy::Delete => "delete",
            CleanupPolicy::Compact => "compact",
            CleanupPolicy::CompactAndDelete => "compact,delete",
        })
    }
}

/// Principals that may do everything. Semicolons separate them, because a certificate's subject contains commas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SuperUsers(Vec<(String, String)>);

impl SuperUsers {
    /// The principals.
    pub fn principals(&self) -> impl Iterator<Item = Principal> {
        let principal = |(kind, name): &(String, String)| Principal {
            kind: Text::copied(kind),
            name: Text::copied(name),
        };
        self.0.iter().map(principal)
    }
}

/// All values are equal in this order, so the table's bounds hold for each of them.
impl PartialOrd for SuperUsers {
    fn partial_cmp(&self, _: &SuperUsers) -> Option<std::cmp::Ordering> {
        None
    }
}

impl FromStr for SuperUsers {
    type Err = String;

    fn from_str(text: &str) -> Result<SuperUsers, String> {
        let one = |text: &str| match text.trim().split_once(':') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
                Ok((kind.to_owned(), name.to_owned()))
            }
            _ => Err(format!("{text:?} is not a principal like User:admin")),
        };
        text.split(';')
            .filter(|text| !text.trim().is_empty())
            .map(one)
            .collect::<Result<_, _>>()
            .map(SuperUsers)
    }
}

impl Display for SuperUsers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(kind, name)| format!("{kind}:{name}")).collect();
        f.write_str(&all.join(";"))
    }
}

/// A text that says nothing if it is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OptionalText(String);

impl OptionalText {
    /// The text; `None` if it is empty.
    pub fn get(&self) -> Option<&str> {
        Some(&*self.0).filter(|text| !text.is_empty())
    }
}

/// As for [`SuperUsers`].
impl PartialOrd for OptionalText {
    fn partial_cmp(&self, _: &OptionalText) -> Option<std::cmp::Ordering> {
        None
    }
}

impl FromStr for OptionalText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<OptionalText, Self::Err> {
        Ok(OptionalText(text.to_owned()))
    }
}

impl Display for OptionalText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bounds of connections of single addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionsPerAddress(Arc<BTreeMap<IpAddr, usize>>);

impl ConnectionsPerAddress {
    /// The bound of an address that has one of its own. `address` is in its canonical form.
    pub fn of(&self, address: IpAddr) -> Option<usize> {
        self.0.get(&address).copied()
    }

    /// Whether no address has a bound of its own.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As for [`SuperUsers`].
impl PartialOrd for ConnectionsPerAddress {
    fn partial_cmp(&self, _: &ConnectionsPerAddress) -> Option<std::cmp::Ordering> {
        None
    }
}

impl FromStr for ConnectionsPerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ConnectionsPerAddress, String> {
        let one = |part: &str| {
            let (address, count) = part.rsplit_once(':').ok_or(format!("{part} is not ADDRESS:COUNT"))?;
            let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            let ip: IpAddr = bare.parse().map_err(|_| format!("{address} is not an address"))?;
            let count =
                count.trim().parse().map_err(|_| format!("{count} is not a number of connections"))?;
            Ok((ip.to_canonical(), count))
        };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(one).collect::<Result<_, String>>().map(|all| ConnectionsPerAddress(Arc::new(all)))
    }
}

impl Display for ConnectionsPerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let one = |(address, count): (&IpAddr, &usize)| match address {
            IpAddr::V4(address) => format!("{address}:{count}"),
            IpAddr::V6(address) => format!("[{address}]:{count}"),
        };
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

/// Bytes a second, at most.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct ByteRate(pub f64);

impl ByteRate {
    /// No limit, as Kafka has it by default.
    pub const UNLIMITED: ByteRate = ByteRate(f64::MAX);

    /// Whole bytes, rounded up; 0 for no limit.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` keeps to the bounds of a u64"
    )]
    pub fn bytes(self) -> u64 {
        if self == ByteRate::UNLIMITED { 0 } else { self.0.ceil() as u64 }
    }
}

impl FromStr for ByteRate {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteRate, String> {
        match text.parse::<f64>() {
            Ok(rate) if rate.is_finite() => Ok(ByteRate(rate)),
            Ok(_) => Err("it must be a finite number".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// As Java writes it, as far as defaults go.
impl Display for ByteRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            ByteRate::UNLIMITED => f.write_str("1.7976931348623157E308"),
            ByteRate(rate) => write!(f, "{rate}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_addresses_are_read_and_written() {
        let text = "10.0.0.1:100, [::1]:200,::ffff:10.0.0.2:3";
        let bounds: ConnectionsPerAddress = text.parse().unwrap();
        let of = |address: &str| bounds.of(address.parse().unwrap());
        assert_eq!(
            (of("10.0.0.1"), of("::1"), of("10.0.0.2"), of("10.0.0.3")),
            (Some(100), Some(200), Some(3), None)
        );
        assert_eq!(bounds.to_string(), "10.0.0.1:100,10.0.0.2:3,[::1]:200");
        assert_eq!(bounds.to_string().parse(), Ok(bounds));
        assert!("".parse::<ConnectionsPerAddress>().unwrap().is_empty());
        for wrong in ["10.0.0.1", "host:5", "10.0.0.1:x", "10.0.0.1:-1"] {
            assert!(wrong.parse::<ConnectionsPerAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_limit_of_bytes_is_written_as_in_java() {
        let of = |text: &str| text.parse::<ByteRate>().unwrap();
        assert_eq!(of("1.7976931348623157E308"), ByteRate::UNLIMITED);
        assert_eq!(ByteRate::UNLIMITED.to_string(), "1.7976931348623157E308");
        assert_eq!((ByteRate::UNLIMITED.bytes(), of("0").bytes(), of("1e6").bytes()), (0, 0, 1_000_000));
        assert_eq!(of("0.5").bytes(), 1, "a very small limit is one");
        assert!("NaN".parse::<ByteRate>().is_err());
    }
}
