//! Settings of single listeners that clients change at run time: `listener.name.NAME.SETTING`, with the name in lower case.
//!
//! As in Kafka, an open listener takes new keys, certificates and bounds of connections (`DynamicListenerConfig`).
//! The listeners belong to the server, which implements [`ListenerConfigs`].

use std::collections::BTreeSet;
use std::fmt;

use wire::ErrorCode;

use crate::config::Kind;
use crate::config::resource_setting::Overrides;
use crate::failure::Failure;

const PREFIX: &str = "listener.name.";

/// Settings of key stores that PEM does not have. They are refused like those that a listener has.
const OF_OTHER_STORES: [&str; 2] = ["ssl.keystore.password", "ssl.truststore.password"];

/// Taken without an effect: there are as many threads as the machine has use for.
const WITHOUT_EFFECT: &str = "num.network.threads";

/// One of these settings.
#[derive(Debug)]
pub struct ListenerSetting {
    /// The name without listener.
    pub name: &'static str,
    /// The type. Values of passwords are shown to nobody.
    pub kind: Kind,
    /// The description.
    pub doc: &'static str,
}

const fn setting(name: &'static str, kind: Kind, doc: &'static str) -> ListenerSetting {
    ListenerSetting { name, kind, doc }
}

/// The settings that an open listener takes.
pub const LISTENER_SETTINGS: &[ListenerSetting] = &[
    setting("max.connection.creation.rate", Kind::Int, "New connections of this listener a second at most."),
    setting("max.connections", Kind::Int, "Connections of this listener at most."),
    setting(WITHOUT_EFFECT, Kind::Int, "Accepted for Kafka's tools; a listener has no threads of its own."),
    setting(
        "ssl.key.password",
        Kind::Password,
        "For keys that are encrypted, which are not read: there is nothing to set.",
    ),
    setting(
        "ssl.keystore.certificate.chain",
        Kind::Password,
        "The certificate chain of ssl.keystore.key, as PEM.",
    ),
    setting(
        "ssl.keystore.key",
        Kind::Password,
        "The private key itself, as PEM, in place of ssl.keystore.location.",
    ),
    setting(
        "ssl.keystore.location",
        Kind::String,
        "File with the private key and its certificate chain, as PEM.",
    ),
    setting("ssl.keystore.type", Kind::String, "The form of the key and the certificates: PEM."),
    setting(
        "ssl.truststore.certificates",
        Kind::Password,
        "The certificates of clients' authorities themselves, as PEM.",
    ),
    setting(
        "ssl.truststore.location",
        Kind::String,
        "File with the certificates of clients' authorities, as PEM.",
    ),
    setting("ssl.truststore.type", Kind::String, "The form of the authorities' certificates: PEM."),
];

impl ListenerSetting {
    /// Whether it can be set only for one broker (Kafka's `PerBrokerConfigs`).
    pub fn is_of_one_broker(&self) -> bool {
        self.name.starts_with("ssl.")
    }

    /// What is wrong with a value, in Kafka's words. What files hold is left to [`ListenerConfigs::check`].
    pub fn problem(&self, value: &str) -> Option<String> {
        let least = if self.name == WITHOUT_EFFECT { 1 } else { 0 };
        let why = match (self.kind, value.trim().parse::<i32>()) {
            (Kind::Int, Err(_)) => "Not a number of type INT".to_owned(),
            (Kind::Int, Ok(number)) if number < least => format!("Value must be at least {least}"),
            _ => return None,
        };
        Some(format!("Invalid value {value} for configuration {}: {why}", self.name))
    }
}

/// The listener, and the setting, that `listener.name.NAME.SETTING` stands for. `None` for any other name.
fn parts(name: &str) -> Option<(&str, &'static ListenerSetting)> {
    let (listener, setting) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let fits = !listener.is_empty() && !listener.chars().any(char::is_uppercase);
    Some((listener, LISTENER_SETTINGS.iter().find(|row| fits && row.name == setting)?))
}

/// The setting that `listener.name.NAME.SETTING` stands for. `None` for any other name.
pub fn listener_setting(name: &str) -> Option<&'static ListenerSetting> {
    parts(name).map(|(_, setting)| setting)
}

/// Whether the setting has to be set for a listener, and `name` is without one.
pub fn lacks_listener(name: &str) -> bool {
    let own = LISTENER_SETTINGS.iter().any(|row| row.is_of_one_broker() && row.name == name);
    own || OF_OTHER_STORES.contains(&name)
}

/// Whether values of the setting `name` are shown to nobody.
pub fn is_secret(name: &str) -> bool {
    listener_setting(name).is_some_and(|row| row.kind == Kind::Password)
}

/// The listeners that take these settings.
pub trait ListenerConfigs: fmt::Debug + Send + Sync {
    /// What is wrong with `overrides` of a listener, the only ones that would then be in force there. Reads the files that they name.
    fn check(&self, listener: &str, overrides: &Overrides) -> Result<(), String>;

    /// Puts `overrides` in force in place of all others. Those of listeners that are not there do not count. The error says what cannot
    /// be used; such a listener goes on as before, and all others have what is new.
    fn apply(&self, overrides: &Overrides) -> Result<(), String>;
}

/// The settings of listeners among `overrides` that have an effect.
pub fn of_listeners(overrides: &Overrides) -> Overrides {
    let has_effect =
        |name: &str| listener_setting(name).is_some_and(|setting| setting.name != WITHOUT_EFFECT);
    let own = overrides.iter().filter(|(name, _)| has_effect(name));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks the listeners whose settings differ between `old` and `new`. Reads files. A listener that is left without such settings is
/// not looked at, so that they can always be deleted.
pub fn check_listeners(
    listeners: Option<&dyn ListenerConfigs>,
    old: &Overrides,
    new: &Overrides,
) -> Result<(), Failure> {
    let [old, new] = [old, new].map(of_listeners);
    let name_of = |name: &String| parts(name).map(|(listener, _)| listener.to_owned()).unwrap_or_default();
    let of = |listener: &str, all: &Overrides| -> Overrides {
        let own = all.iter().filter(|(name, _)| name_of(name) == listener);
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let names: BTreeSet<String> = new.keys().map(name_of).collect();
    for listener in names.iter().filter(|listener| of(listener, &old) != of(listener, &new)) {
        let checked = match listeners {
            Some(listeners) => listeners.check(listener, &new),
            None => Err("there are no listeners".to_owned()),
        };
        checked.map_err(|why| Failure::because(ErrorCode::InvalidRequest, why))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_settings_of_a_named_listener_are_taken() {
        assert!(LISTENER_SETTINGS.is_sorted_by_key(|row| row.name));
        let of = |name: &str| listener_setting(name).map(|row| row.name);
        assert_eq!(of("listener.name.out-side.ssl.keystore.location"), Some("ssl.keystore.location"));
        for name in [
            "listener.name.outside.ssl.client.auth",
            "listener.name.OUTSIDE.max.connections",
            "listener.name..max.connections",
            "listener.name.max.connections",
            "max.connections",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
        assert!(
            is_secret("listener.name.a.ssl.keystore.key") && !is_secret("listener.name.a.max.connections")
        );
        assert!(lacks_listener("ssl.keystore.key") && !lacks_listener("max.connections"));
        assert!(lacks_listener("ssl.keystore.password"));
        let bound = listener_setting("listener.name.a.max.connections").unwrap();
        assert_eq!(bound.problem(" 5 "), None);
        let why = "Invalid value  for configuration max.connections: Not a number of type INT";
        assert_eq!(bound.problem("").unwrap(), why);
        assert!(listener_setting("listener.name.a.num.network.threads").unwrap().problem("0").is_some());
    }

    #[derive(Debug, Default)]
    struct Asked(std::sync::Mutex<Vec<String>>);

    impl ListenerConfigs for Asked {
        fn check(&self, listener: &str, _overrides: &Overrides) -> Result<(), String> {
            self.0.lock().unwrap().push(listener.to_owned());
            if listener == "wrong" { Err("it is wrong".into()) } else { Ok(()) }
        }

        fn apply(&self, _overrides: &Overrides) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn only_listeners_whose_settings_change_are_looked_at() {
        let of = |pairs: &[(&str, &str)]| -> Overrides {
            let named = |name: &str| format!("listener.name.{name}.max.connections");
            pairs.iter().map(|(name, value)| (named(name), (*value).to_owned())).collect()
        };
        let asked = Asked::default();
        let check = |old: &[(&str, &str)], new: &[(&str, &str)]| {
            let result = check_listeners(Some(&asked), &of(old), &of(new));
            (result.is_ok(), std::mem::take(&mut *asked.0.lock().unwrap()))
        };
        assert_eq!(
            check(&[("a", "1"), ("wrong", "1")], &[("a", "2"), ("wrong", "1")]),
            (true, vec!["a".into()])
        );
        assert_eq!(check(&[("wrong", "1")], &[("wrong", "2")]), (false, vec!["wrong".into()]));
        assert_eq!(check(&[("a", "1"), ("wrong", "1")], &[("a", "1")]), (true, vec![]));
        assert!(check_listeners(None, &of(&[]), &of(&[("a", "1")])).is_err());
        assert!(check_listeners(None, &of(&[("a", "1")]), &of(&[])).is_ok());
    }
}
