//! Settings of single listeners that clients change at run time: `listener.name.NAME.SETTING`, with the name in lower case.
//!
//! As in Kafka, an open listener takes new keys, certificates and bounds of connections, and nothing else (`DynamicListenerConfig`).
//! The listeners belong to the server, which implements [`ListenerConfigs`].

use std::fmt;

use wire::ErrorCode;

use crate::config::Kind;
use crate::config::resource_setting::Overrides;
use crate::failure::Failure;

const PREFIX: &str = "listener.name.";

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

/// The setting that `listener.name.NAME.SETTING` stands for. `None` for any other name.
pub fn listener_setting(name: &str) -> Option<&'static ListenerSetting> {
    let (listener, setting) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let is_lower = !listener.chars().any(char::is_uppercase);
    LISTENER_SETTINGS.iter().find(|row| is_lower && !listener.is_empty() && row.name == setting)
}

/// Whether the setting has to be set for a listener, and `name` is without one.
pub fn lacks_listener(name: &str) -> bool {
    name.starts_with("ssl.") && LISTENER_SETTINGS.iter().any(|row| row.name == name)
}

/// Whether values of the setting `name` are shown to nobody.
pub fn is_secret(name: &str) -> bool {
    listener_setting(name).is_some_and(|row| row.kind == Kind::Password)
}

/// The listeners that take these settings.
pub trait ListenerConfigs: fmt::Debug + Send + Sync {
    /// What is wrong with `overrides`, the only ones that would then be in force. Reads the files that they name.
    fn check(&self, overrides: &Overrides) -> Result<(), String>;

    /// Puts `overrides` in force in place of all others. What cannot be used is logged.
    fn apply(&self, overrides: &Overrides);
}

/// The settings of listeners among `overrides`.
pub fn of_listeners(overrides: &Overrides) -> Overrides {
    let own = overrides.iter().filter(|(name, _)| listener_setting(name).is_some());
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks the settings of listeners among `overrides`. Reads files.
pub fn check_listeners(
    listeners: Option<&dyn ListenerConfigs>,
    overrides: &Overrides,
) -> Result<(), Failure> {
    let own = of_listeners(overrides);
    if own.is_empty() {
        return Ok(());
    }
    let checked =
        listeners.map_or(Err("there are no listeners".to_owned()), |listeners| listeners.check(&own));
    checked.map_err(|why| Failure::because(ErrorCode::InvalidRequest, why))
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
    }
}
