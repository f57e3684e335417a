//! Tests of the authorizer's decisions, and of the storage and search of ACLs.

use std::net::SocketAddr;

use super::acl::PatternType;
use super::*;
use crate::caller::{Listener, Origin};
use wire::Text;

fn caller(principal: &str, address: &str) -> Caller {
    let peer = SocketAddr::new(address.parse().unwrap(), 5000);
    let (kind, name) = principal.split_once(':').unwrap();
    let principal = Principal { kind: Text::copied(kind), name: Text::copied(name) };
    let listener = Arc::new(Listener { name: "X".into(), advertised: None });
    let origin = Origin { principal, peer, local: peer, listener };
    Caller { origin: Arc::new(origin), client_id: Text::default() }
}

/// Parses ACLs such as `Allow User:a Read Literal x *`, one per line.
fn acls(text: &str) -> Vec<Acl> {
    let word = |words: &mut std::str::SplitWhitespace<'_>| words.next().unwrap().to_owned();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let permission = serde_json::from_value(word(&mut words).into()).unwrap();
        let principal = word(&mut words);
        let operation = serde_json::from_value(word(&mut words).into()).unwrap();
        let pattern: PatternType = serde_json::from_value(word(&mut words).into()).unwrap();
        let (name, host) = (word(&mut words), word(&mut words));
        Acl { resource: ResourceType::Topic, name, pattern, principal, host, operation, permission }
    };
    text.lines().filter(|text| !text.trim().is_empty()).map(line).collect()
}

struct Place {
    authorizer: Arc<Authorizer>,
    metadata: Arc<Metadata>,
}

fn place(settings: &[(&str, &str)]) -> Place {
    let metadata = Metadata::open(Arc::new(meta::Memory::default())).unwrap();
    let mut config = Config::default();
    config.set("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer").unwrap();
    for (name, value) in settings {
        config.set(name, value).unwrap();
    }
    Place { authorizer: Authorizer::new(metadata.clone(), &config), metadata }
}

impl Place {
    fn may(&self, who: &str, operation: Operation, name: &str) -> bool {
        self.authorizer.allows(&caller(who, "10.0.0.1"), operation, ResourceType::Topic, name)
    }
}

use Operation::{Alter, AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};

#[test]
fn without_acls_only_super_users_may() {
    let place = place(&[("super.users", "User:root;User:CN=ops,O=x")]);
    assert!(!place.may("User:a", Read, "t"));
    assert!(place.may("User:root", Read, "t") && place.may("User:CN=ops,O=x", Alter, "t"));
    assert!(!place.may("Other:root", Read, "t"));
}

#[test]
fn who_asks_about_what_nobody_spoke_of_may_where_that_is_allowed() {
    let place = place(&[("allow.everyone.if.no.acl.found", "true")]);
    place.authorizer.add(&acls("Allow User:a Read Literal t *\nDeny User:b Read Prefixed u *")).unwrap();
    assert!(place.may("User:z", Write, "free"));
    assert!(!place.may("User:z", Read, "t") && place.may("User:a", Read, "t"));
    assert!(!place.may("User:z", Read, "user"), "a denial of another is an ACL all the same");
}

#[test]
fn literal_prefixed_and_wildcard_names_and_denials_first() {
    let place = place(&[]);
    let text = "Allow User:a Read Literal t *
        Allow User:a Write Prefixed log- *
        Allow User:b All Literal * *
        Deny User:b Write Prefixed log-s *
        Allow User:* Describe Literal open *
        Allow User:c Read Prefixed ä *";
    place.authorizer.add(&acls(text)).unwrap();
    assert!(
        place.may("User:a", Read, "t")
            && !place.may("User:a", Read, "t2")
            && !place.may("User:a", Write, "t")
    );
    assert!(
        place.may("User:a", Write, "log-1")
            && place.may("User:a", Write, "log-")
            && !place.may("User:a", Write, "log")
    );
    assert!(place.may("User:b", Write, "log-a") && !place.may("User:b", Write, "log-secret"));
    assert!(place.may("User:b", Read, "log-secret"), "only writing is denied");
    assert!(place.may("User:z", Describe, "open") && !place.may("User:z", Read, "open"));
    assert!(place.may("User:c", Read, "ärger") && !place.may("User:c", Read, "a"));
}

#[test]
fn to_allow_implies_to_describe_but_to_deny_denies_nothing_else() {
    let place = place(&[]);
    let text = "Allow User:r Read Literal t *
        Allow User:x AlterConfigs Literal t *
        Allow User:k Create Literal t *
        Allow User:d All Literal t *
        Deny User:d Read Literal t *";
    place.authorizer.add(&acls(text)).unwrap();
    assert!(place.may("User:r", Describe, "t") && !place.may("User:r", DescribeConfigs, "t"));
    assert!(place.may("User:x", DescribeConfigs, "t") && !place.may("User:x", Describe, "t"));
    assert!(!place.may("User:k", Describe, "t"));
    assert!(place.may("User:d", Describe, "t") && !place.may("User:d", Read, "t"));
}

#[test]
fn hosts_are_addresses_however_they_are_written() {
    let place = place(&[]);
    place
        .authorizer
        .add(&acls("Allow User:a Read Literal t 10.0.0.2\nAllow User:a Write Literal t 0:0:0:0:0:0:0:1"))
        .unwrap();
    let may = |address: &str, operation| {
        place.authorizer.allows(&caller("User:a", address), operation, ResourceType::Topic, "t")
    };
    assert!(may("10.0.0.2", Read) && !may("10.0.0.1", Read));
    assert!(may("::ffff:10.0.0.2", Read), "an IPv4 client on an IPv6 socket");
    assert!(may("::1", Write) && !may("::2", Write));
}

#[test]
fn a_right_on_any_topic() {
    let cases = [
        ("", false),
        ("Allow User:a Write Literal t *", true),
        ("Allow User:a Alter Literal t *", false),
        ("Allow User:a Write Literal t *\nDeny User:a Write Literal t *", false),
        ("Allow User:a Write Literal t *\nDeny User:a Write Literal u *", true),
        ("Allow User:a Write Literal topic *\nDeny User:a All Prefixed to *", false),
        ("Allow User:a Write Prefixed top *\nDeny User:a Write Prefixed topi *", true),
        ("Allow User:a Write Prefixed top *\nDeny User:* Write Literal * *", false),
        ("Allow User:* All Literal * *\nDeny User:a Write Literal hardcode *", true),
        ("Allow User:b Write Literal t *", false),
    ];
    for (text, expected) in cases {
        let place = place(&[]);
        place.authorizer.add(&acls(text)).unwrap();
        let found =
            place.authorizer.allows_somewhere(&caller("User:a", "10.0.0.1"), Write, ResourceType::Topic);
        assert_eq!(found, expected, "{text}");
    }
}

fn any() -> AclFilter {
    AclFilter {
        resource: 1,
        name: None,
        pattern: 1,
        principal: None,
        host: None,
        operation: 1,
        permission: 1,
    }
}

#[test]
fn acls_are_kept_once_found_by_filter_removed_and_stored() {
    let place = place(&[]);
    let text =
        "Allow User:a Read Literal t *\nAllow User:a Read Prefixed to *\nDeny User:b Write Literal * *";
    place.authorizer.add(&acls(text)).unwrap();
    let version = place.authorizer.version();
    place.authorizer.add(&acls(text)).unwrap();
    assert_eq!((place.authorizer.list(&any()).len(), place.authorizer.version()), (3, version));
    let count = |filter: AclFilter| place.authorizer.list(&filter).len();
    let named = |pattern, name: &str| AclFilter { pattern, name: Some(name.into()), ..any() };
    assert_eq!(count(named(1, "t")), 1);
    assert_eq!(count(named(2, "topic")), 2, "what applies to the topic: prefix and wildcard");
    assert_eq!(count(named(2, "t")), 2);
    assert_eq!(count(named(4, "to")), 1);
    assert_eq!(count(named(3, "to")), 0);
    assert_eq!(count(AclFilter { principal: Some("User:b".into()), ..any() }), 1);
    assert_eq!(count(AclFilter { permission: 2, ..any() }), 1);
    let both = [named(4, "to"), AclFilter { operation: 3, ..any() }];
    let removed = place.authorizer.remove(&both).unwrap();
    assert_eq!(removed.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    let again = Metadata::open(place.metadata.store().clone()).unwrap();
    let again = Authorizer::new(again, &Config::default());
    assert_eq!(again.list(&any()), acls("Deny User:b Write Literal * *"));
    assert!(
        again.allows(&caller("User:b", "10.0.0.1"), Write, ResourceType::Topic, "t"),
        "no authorizer is configured"
    );
}

#[test]
fn denials_of_one_principal_are_written_once_and_not_without_end() {
    let place = place(&[]);
    for _ in 0..3 {
        for number in 0..1000 {
            assert!(!place.may("User:loud", Read, &format!("ä{number}{}", "x".repeat(1000))));
        }
        assert!(!place.may("User:calm", Read, "t"));
    }
    // Only the beginning of a long name is compared.
    let counts = |name| place.authorizer.audit().counts(&Principal::user(name));
    assert_eq!(counts("loud"), (100, 200, 2700));
    assert_eq!(counts("calm"), (1, 2, 0));
}

#[test]
fn operations_are_bits_of_their_codes() {
    let place = place(&[]);
    place.authorizer.add(&acls("Allow User:a Read Literal t *")).unwrap();
    let bits = place.authorizer.operations(&caller("User:a", "10.0.0.1"), ResourceType::Topic, "t");
    assert_eq!(bits, 1 << Read.code() | 1 << Describe.code());
    let none = place.authorizer.operations(&caller("User:b", "10.0.0.1"), ResourceType::Topic, "t");
    assert_eq!(none, 0);
    let _ = (Create, AlterConfigs);
}
