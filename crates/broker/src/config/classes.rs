//! Settings that name a class of Kafka, or none.

use std::fmt::{self, Display};
use std::str::FromStr;

macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $name:ident { None: $none:literal, $class:ident: $what:literal = $text:literal })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
        pub enum $name {
            #[doc = $none]
            #[default]
            None,
            #[doc = $what]
            $class,
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                match text {
                    "" => Ok($name::None),
                    $text => Ok($name::$class),
                    _ => Err(concat!("it must be empty or ", $text).to_owned()),
                }
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $name::None => "",
                    $name::$class => $text,
                })
            }
        }
    )+};
}

classes! {
    /// The authorizer that decides which operations are allowed.
    AuthorizerClass {
        None: "No authorizer: all operations are allowed.",
        Standard: "ACLs decide." = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    }
    /// Where consumers read that name their rack.
    ReplicaSelector {
        None: "From the leader.",
        ByRack: "From a broker in their rack with copies, if there is one." =
            "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    }
}
