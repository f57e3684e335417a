//! Tests of the first log-in.

use super::*;

#[tokio::test]
async fn every_mechanism_lets_its_users_in() {
    let place = Place::new(|_| ()).await;
    let mut peer = place.connect();
    peer.send(3, &m::ApiVersionsRequest::default()).await.unwrap();
    assert!(!peer.gate.authenticated());
    assert_eq!(peer.plain("alice", "secret").await, (0, String::new()));
    assert!(peer.gate.authenticated() && peer.gate.refused().is_none());
    assert_eq!(peer.is_heard_as().await.unwrap(), "alice");
    let first = (ApiKey::ApiVersions.code(), "ANONYMOUS".to_owned());
    assert_eq!(peer.seen.lock().unwrap()[0], first);

    for (hash, user) in [(Hash::Sha256, "alice"), (Hash::Sha512, "alice"), (Hash::Sha512, "bob")] {
        let mut peer = place.connect();
        assert_eq!(peer.scram(hash, user, "secret").await.0, 0);
        assert_eq!(peer.is_heard_as().await.unwrap(), user);
    }
    let mut peer = place.connect();
    assert_eq!(peer.plain("bob", "secret").await.0, 0);

    let mut peer = place.connect();
    assert_eq!(peer.handshake("OAUTHBEARER").await, 0);
    let token = format!("n,,\x01auth=Bearer {}\x01\x01", place.token("carol", 600));
    let answer = peer.token(token).await.unwrap();
    assert_eq!((answer.error_code, answer.auth_bytes.len()), (0, 0));
    assert!((590_000..=600_000).contains(&answer.session_lifetime_ms), "{}", answer.session_lifetime_ms);
    assert_eq!(peer.is_heard_as().await.unwrap(), "carol");
    assert_eq!(place.counted("PLAIN", Outcome::Success), 2);
    assert_eq!(place.counted("SCRAM-SHA-512", Outcome::Success), 2);
    assert_eq!(place.counted("OAUTHBEARER", Outcome::Success), 1);
    assert_eq!(place.counted("PLAIN", Outcome::Failure), 0);
}

#[tokio::test]
async fn wrong_credentials_are_refused_in_kafkas_words_and_late() {
    let place = Place::new(|_| ()).await;
    for (user, password) in [("alice", "wrong"), ("nobody", "secret"), ("alice", "secret ")] {
        let mut peer = place.connect();
        let begun = Instant::now();
        let why = "Authentication failed: Invalid username or password";
        assert_eq!(peer.plain(user, password).await, (FAILED, why.into()));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        assert!(!peer.gate.authenticated());
        peer.is_out().await;
    }
    for (hash, user, password) in [
        (Hash::Sha256, "alice", "wrong"),
        (Hash::Sha512, "nobody", "secret"),
        (Hash::Sha256, "bob", "secret"),
    ] {
        let mut peer = place.connect();
        assert_eq!(peer.scram(hash, user, password).await, invalid(hash.mechanism()));
        peer.is_out().await;
    }
    for garbage in ["", "x", "n,,", "\0alice\0secret"] {
        let mut peer = place.connect();
        assert_eq!(peer.handshake(SHA256).await, 0);
        assert_eq!(peer.told(garbage).await, invalid(SHA256));
        peer.is_out().await;
    }
    assert_eq!(place.counted("PLAIN", Outcome::Failure), 3);
    assert_eq!(place.counted(SHA256, Outcome::Failure), 6);
    assert_eq!(place.counted("SCRAM-SHA-512", Outcome::Failure), 1);
    assert_eq!(place.counted(SHA256, Outcome::Success), 0);
}

#[tokio::test]
async fn an_overheard_exchange_lets_nobody_in() {
    let place = Place::new(|_| ()).await;
    let mut client = Client::new(Hash::Sha256, "alice", "secret", "nonce".into());
    let mut peer = place.connect();
    peer.handshake(SHA256).await;
    let (_, challenge) = peer.told(client.first()).await;
    let last = client.last(&challenge).unwrap();
    assert_eq!(peer.told(last.clone()).await.0, 0);
    let mut thief = place.connect();
    thief.handshake(SHA256).await;
    assert_eq!(thief.told(client.first()).await.0, 0);
    assert_eq!(thief.told(last.clone()).await, invalid(SHA256));
    thief.is_out().await;
    // The same without the first message of the exchange.
    let mut thief = place.connect();
    thief.handshake(SHA256).await;
    assert_eq!(thief.told(last).await, invalid(SHA256));
    thief.is_out().await;
}

#[tokio::test]
async fn a_bad_token_is_refused_after_the_client_has_acknowledged_it() {
    let place = Place::new(|_| ()).await;
    let now = now_ms() / 1000;
    let refusal = (0, "{\"status\":\"invalid_token\"}".to_owned());
    let stranger = Provider::new(false)
        .sign(&json!({"alg": "ES256", "kid": "one"}), &json!({"sub": "carol", "iat": now, "exp": now + 60}));
    let bad = [
        stranger,
        place.token("carol", -31),
        place.signed(&json!({"sub": "carol", "iat": now})),
        place.signed(&json!({"iat": now, "exp": now + 60})),
        place.signed(&json!({"sub": "carol", "iat": now, "exp": now + 60, "aud": "others"})),
        "abc".to_owned(),
    ];
    for token in &bad {
        let mut peer = place.connect();
        peer.handshake("OAUTHBEARER").await;
        assert_eq!(peer.told(format!("n,,\x01auth=Bearer {token}\x01\x01")).await, refusal);
        assert!(!peer.gate.authenticated() && peer.gate.refused().is_none());
        assert_eq!(peer.told("\x01").await, (FAILED, refusal.1.clone()));
        peer.is_out().await;
    }
    assert_eq!(place.counted("OAUTHBEARER", Outcome::Failure), bad.len() as u64);
    let mut peer = place.connect();
    peer.handshake("OAUTHBEARER").await;
    assert_eq!(peer.told("\x01").await, invalid("OAUTHBEARER"));
    peer.is_out().await;
    // As in Kafka, a good token may follow a bad one.
    let mut peer = place.connect();
    peer.handshake("OAUTHBEARER").await;
    assert_eq!(peer.told("n,,\x01auth=Bearer abc\x01\x01").await, refusal);
    assert_eq!(peer.told(format!("n,,\x01auth=Bearer {}\x01\x01", place.token("carol", 60))).await.0, 0);
    assert_eq!(peer.is_heard_as().await.unwrap(), "carol");
}

#[tokio::test]
async fn nothing_gets_through_before_the_log_in() {
    let place = Place::new(|_| ()).await;
    let metadata = request(12, &m::MetadataRequest::default());
    let authenticate =
        request(2, &m::SaslAuthenticateRequest { auth_bytes: Bytes::from_static(b"\0alice\0secret") });
    let produce = request(9, &m::ProduceRequest::default());
    let strange = [&b"\x03\xe7\0\0"[..], b"\0\0\0\x07", b"\xff\xff"].concat();
    let frames = [
        metadata,
        authenticate,
        produce,
        Bytes::from(strange),
        Bytes::from_static(b"\0alice\0secret"),
        Bytes::new(),
    ];
    for frame in &frames {
        let mut peer = place.connect();
        assert!(peer.frame(frame.clone()).await.is_err());
        assert!(peer.seen.lock().unwrap().is_empty());
        assert!(peer.is_heard_as().await.is_err());
        // The same after ApiVersions.
        let mut peer = place.connect();
        peer.send(3, &m::ApiVersionsRequest::default()).await.unwrap();
        assert!(peer.frame(frame.clone()).await.is_err());
        assert_eq!(peer.seen.lock().unwrap().len(), 1);
    }
    // ApiVersions may come only once, except for an unknown version, which is answered with the known ones.
    let mut peer = place.connect();
    peer.frame(Bytes::from_static(b"\0\x12\0\x63\0\0\0\x07\xff\xff\0")).await.unwrap();
    peer.send(3, &m::ApiVersionsRequest::default()).await.unwrap();
    assert!(peer.send(3, &m::ApiVersionsRequest::default()).await.is_err());
    assert!(peer.frame(request(1, &m::SaslHandshakeRequest::default())).await.is_err());
}

#[tokio::test]
async fn what_comes_in_place_of_a_token_ends_it() {
    let place = Place::new(|_| ()).await;
    let mut peer = place.connect();
    peer.handshake(SHA256).await;
    assert!(peer.is_heard_as().await.is_err());
    peer.is_out().await;
    let mut peer = place.connect();
    peer.handshake(SHA256).await;
    assert_eq!(peer.handshake("PLAIN").await, ILLEGAL);
    peer.is_out().await;
    let mut peer = place.connect();
    peer.handshake(SHA256).await;
    let answer: m::ApiVersionsResponse = peer.call(3, &m::ApiVersionsRequest::default()).await.unwrap();
    assert_eq!(answer.error_code, ILLEGAL);
    peer.is_out().await;
    assert!(peer.seen.lock().unwrap().is_empty());
    let mut peer = place.connect();
    peer.handshake("PLAIN").await;
    assert!(peer.frame(Bytes::from_static(b"\0alice\0secret")).await.is_err(), "a raw token");
    assert!(!peer.gate.authenticated());
}

#[tokio::test]
async fn mechanisms_that_are_not_enabled_are_answered_with_those_that_are() {
    let place =
        Place::new(|settings| settings.mechanisms = vec!["SCRAM-SHA-512".into(), "PLAIN".into()]).await;
    for name in ["SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", "", "plain"] {
        for version in [0, 1] {
            let mut peer = place.connect();
            let request = m::SaslHandshakeRequest { mechanism: Text::copied(name) };
            let answer: m::SaslHandshakeResponse = peer.call(version, &request).await.unwrap();
            assert_eq!(answer.error_code, ErrorCode::UnsupportedSaslMechanism.code());
            let names: Vec<&str> = answer.mechanisms.iter().map(Text::as_str).collect();
            assert_eq!(names, ["SCRAM-SHA-512", "PLAIN"]);
            peer.is_out().await;
        }
    }
    assert_eq!(place.counted("none", Outcome::Failure), 10);
    for (mechanisms, why) in
        [(&["GSSAPI"][..], "there is no GSSAPI"), (&[], "nobody could log in"), (&["OAUTHBEARER"], "jwks")]
    {
        let error = format!("{:#}", LogIn::prepare(&settings(mechanisms)).await.unwrap_err());
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn old_clients_send_tokens_as_they_are() {
    let place = Place::new(|_| ()).await;
    let begin = async |mechanism: &str| {
        let mut peer = place.connect();
        let request = m::SaslHandshakeRequest { mechanism: Text::copied(mechanism) };
        let answer: m::SaslHandshakeResponse = peer.call(0, &request).await.unwrap();
        assert_eq!(answer.error_code, 0);
        peer
    };
    let mut peer = begin("PLAIN").await;
    assert_eq!(peer.frame(Bytes::from_static(b"\0alice\0secret")).await.unwrap()[..], [0; 4]);
    assert_eq!(peer.is_heard_as().await.unwrap(), "alice");

    let mut peer = begin("SCRAM-SHA-512").await;
    let mut client = Client::new(Hash::Sha512, "bob", "secret", "nonce".into());
    let text = |answer: Bytes| {
        assert_eq!(answer[..4], u32::try_from(answer.len() - 4).unwrap().to_be_bytes());
        String::from_utf8(answer[4..].to_vec()).unwrap()
    };
    let challenge = text(peer.frame(client.first().into()).await.unwrap());
    let last = text(peer.frame(client.last(&challenge).unwrap().into()).await.unwrap());
    client.check(&last).unwrap();
    assert_eq!(peer.is_heard_as().await.unwrap(), "bob");

    let mut peer = begin("PLAIN").await;
    assert!(peer.frame(Bytes::from_static(b"\0alice\0wrong")).await.is_err());
    peer.is_out().await;
    let mut peer = begin("PLAIN").await;
    assert!(peer.token("\0alice\0secret").await.is_err(), "a request where a token is");
    peer.is_out().await;
}

#[tokio::test]
async fn after_the_log_in_the_broker_answers_for_sasl() {
    let place = Place::new(|_| ()).await;
    let mut peer = place.connect();
    peer.plain("alice", "secret").await;
    peer.send(1, &m::SaslHandshakeRequest::default()).await.unwrap();
    peer.send(2, &m::SaslAuthenticateRequest::default()).await.unwrap();
    let seen: Vec<i16> = peer.seen.lock().unwrap().iter().map(|(api, _)| *api).collect();
    assert_eq!(seen, [17, 36]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_passwords_are_hashed_at_once() {
    let place = Place::new(|_| ()).await;
    let all = place.sasl.hashing.turns.available_permits();
    let taken =
        place.sasl.hashing.turns.clone().acquire_many_owned(u32::try_from(all).unwrap()).await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mut peer = place.connect();
            tokio::spawn(async move { peer.plain("alice", "secret").await.0 })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(waiting.iter().all(|task| !task.is_finished()), "nobody goes past the bound");
    // Mechanisms that cost little do not wait.
    assert_eq!(place.connect().scram(Hash::Sha256, "alice", "secret").await.0, 0);
    drop(taken);
    for task in waiting {
        assert_eq!(task.await.unwrap(), 0);
    }
    assert_eq!(place.sasl.hashing.turns.available_permits(), all);
}

#[tokio::test]
async fn what_is_shown_has_no_secrets() {
    let place = Place::new(|_| ()).await;
    let mut peer = place.connect();
    peer.handshake(SHA256).await;
    peer.told(Client::new(Hash::Sha256, "alice", "secret", "nonce".into()).first()).await;
    let shown = format!("{:?} {:?}", peer.gate, place.sasl);
    let credential = place.sasl.users.find(Hash::Sha256, "alice").unwrap();
    for secret in
        ["secret".to_owned(), format!("{:?}", credential.stored_key), format!("{:?}", credential.salt)]
    {
        assert!(!shown.contains(&secret), "{shown}");
    }
}
