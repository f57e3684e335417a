//! Fuzz test of the gate: sequences of frames that are valid, damaged, out of order or random.

use super::*;

/// Runs for `FUZZ_SECONDS`, 5 by default.
#[tokio::test]
async fn fuzz_gate() {
    let place = Place::new(|settings| {
        settings.failure_delay = Duration::ZERO;
        settings.reauthentication = Some(LONG);
    })
    .await;
    let handshake = |mechanism: &str, version| {
        request(version, &m::SaslHandshakeRequest { mechanism: Text::copied(mechanism) })
    };
    let token = |token: &str| {
        request(
            rng_version(token),
            &m::SaslAuthenticateRequest { auth_bytes: Bytes::copy_from_slice(token.as_bytes()) },
        )
    };
    let client = Client::new(Hash::Sha256, "alice", "secret", "nonce".into());
    let bearer = format!("n,,\x01auth=Bearer {}\x01\x01", place.token("carol", 600));
    let mut seeds = vec![
        request(3, &m::ApiVersionsRequest::default()),
        request(12, &m::MetadataRequest::default()),
        token("\0alice\0secret"),
        token("\0alice\0wrong"),
        token(&client.first()),
        token("c=biws,r=nonce,p=AAAA"),
        token(&bearer),
        token("\x01"),
        Bytes::from_static(b"\0alice\0secret"),
        Bytes::from(client.first()),
    ];
    seeds.extend(
        ::sasl::Mechanism::ALL.iter().flat_map(|one| [handshake(one.name(), 0), handshake(one.name(), 1)]),
    );
    let (mut runs, mut opened) = (0u64, 0u64);
    for mut rng in testing::fuzz::Rounds::random(5) {
        let mut peer = place.connect();
        for _ in 0..rng.usize(1..8) {
            let mut frame = rng.choice(&seeds).unwrap().to_vec();
            if rng.u8(0..4) == 0 && !frame.is_empty() {
                let at = rng.usize(0..frame.len());
                match rng.u8(0..4) {
                    0 => frame[at] ^= 1 << rng.u8(0..8),
                    1 => frame.truncate(at),
                    2 => frame.insert(at, rng.u8(..)),
                    _ => frame = (0..at).map(|_| rng.u8(..)).collect(),
                }
            }
            // The substitute requires the key of an API, as the real connection may.
            if peer.gate.authenticated() && frame.len() < 2 {
                break;
            }
            let known = peer.gate.authenticated();
            let before = peer.seen.lock().unwrap().len();
            let answered = peer.frame(frame.into()).await.is_ok();
            let seen = peer.seen.lock().unwrap().clone();
            for (api, name) in &seen[before..] {
                let anonymous = name == "ANONYMOUS";
                assert_eq!(anonymous, !known, "{api} as {name}");
                assert!(!anonymous || *api == ApiKey::ApiVersions.code(), "{api} without a log-in");
            }
            opened += u64::from(!known && peer.gate.authenticated());
            if peer.gate.refused().is_some() || !answered {
                assert!(peer.is_heard_as().await.is_err());
                break;
            }
        }
        runs += 1;
    }
    println!("{runs} connections, {opened} log-ins");
    assert!(runs > 500 && opened > 0, "{runs} {opened}");
}

/// One of the versions, always the same for a token.
fn rng_version(token: &str) -> i16 {
    i16::try_from(token.len() % 3).unwrap()
}
