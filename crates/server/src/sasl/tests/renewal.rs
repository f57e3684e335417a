//! Tests of repeated log-ins on a connection (KIP-368).

use super::*;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

async fn expiring(ms: u64) -> Place {
    Place::new(|settings| settings.reauthentication = Some(MILLIS(ms))).await
}

#[tokio::test]
async fn a_session_has_an_end_and_whoever_lets_it_pass_is_out() {
    let place = expiring(300).await;
    let mut peer = place.connect();
    peer.handshake("PLAIN").await;
    let answer = peer.token("\0alice\0secret").await.unwrap();
    assert_eq!(answer.session_lifetime_ms, 300);
    assert_eq!(peer.is_heard_as().await.unwrap(), "alice");
    tokio::time::sleep(MILLIS(350)).await;
    let error = peer.is_heard_as().await.unwrap_err();
    assert!(error.0.contains("session has ended"), "{error}");
    assert!(peer.is_heard_as().await.is_err());
    assert_eq!(place.counted("PLAIN", Outcome::Expired), 1);
}

#[tokio::test]
async fn whoever_logs_in_again_goes_on() {
    let place = expiring(400).await;
    let mut peer = place.connect();
    assert_eq!(peer.scram(Hash::Sha512, "bob", "secret").await.0, 0);
    for _ in 0..2 {
        // A log-in works even if the session has ended in the meantime.
        tokio::time::sleep(MILLIS(1050)).await;
        assert_eq!(peer.scram(Hash::Sha512, "bob", "secret").await.0, 0);
        assert_eq!(peer.is_heard_as().await.unwrap(), "bob");
    }
    // A second log-in within a second does not begin: the handshake passes to the connection behind the gate.
    peer.send(1, &m::SaslHandshakeRequest { mechanism: Text::from_static("SCRAM-SHA-512") }).await.unwrap();
    assert_eq!(peer.seen.lock().unwrap().last().unwrap().0, ApiKey::SaslHandshake.code());
    assert_eq!(peer.is_heard_as().await.unwrap(), "bob");
    assert_eq!(place.counted("SCRAM-SHA-512", Outcome::Success), 1);
    assert_eq!(place.counted("SCRAM-SHA-512", Outcome::Reauthentication), 2);
}

#[tokio::test]
async fn nobody_becomes_somebody_else() {
    let place = expiring(60_000).await;
    let mut peer = place.connect();
    assert_eq!(peer.plain("alice", "secret").await.0, 0);
    let why = "Cannot change principals during re-authentication from User.alice: User.bob";
    assert_eq!(peer.plain("bob", "secret").await, (FAILED, why.into()));
    peer.is_out().await;
    assert!(peer.seen.lock().unwrap().is_empty());

    let mut peer = place.connect();
    assert_eq!(peer.plain("alice", "secret").await.0, 0);
    let (error, why) = peer.scram_first_after_plain().await;
    assert_eq!((error, why), (0, true));
    peer.is_out().await;

    let mut peer = place.connect();
    assert_eq!(peer.scram(Hash::Sha256, "alice", "secret").await.0, 0);
    let why = "Authentication failed during re-authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256";
    assert_eq!(peer.scram(Hash::Sha256, "alice", "wrong").await, (FAILED, why.into()));
    peer.is_out().await;

    let mut peer = place.connect();
    assert_eq!(peer.plain("alice", "secret").await.0, 0);
    peer.handshake("PLAIN").await;
    assert!(peer.is_heard_as().await.is_err(), "a request in the middle of it");
    peer.is_out().await;
    assert_eq!(place.counted("PLAIN", Outcome::ReauthenticationFailure), 2);
    assert_eq!(place.counted(SHA256, Outcome::ReauthenticationFailure), 2);
}

impl Peer {
    /// The handshake is answered as if it were valid, but the token is refused.
    async fn scram_first_after_plain(&mut self) -> (i16, bool) {
        let error = self.handshake(SHA256).await;
        let client = Client::new(Hash::Sha256, "alice", "secret", "nonce".into());
        (error, self.token(client.first()).await.is_err())
    }
}

#[tokio::test]
async fn a_token_ends_the_session_with_itself() {
    let place = expiring(60_000).await;
    let log_in = async |seconds| {
        let mut peer = place.connect();
        peer.handshake("OAUTHBEARER").await;
        let message = format!("n,,\x01auth=Bearer {}\x01\x01", place.token("carol", seconds));
        let answer = peer.token(message).await.unwrap();
        assert_eq!(answer.error_code, 0);
        (peer, answer.session_lifetime_ms)
    };
    assert_eq!(log_in(600).await.1, 60_000);
    let (_, lifetime_ms) = log_in(30).await;
    assert!((20_000..=30_000).contains(&lifetime_ms), "{lifetime_ms}");
    // Within the allowed clock skew the token is valid, and the session ends at once.
    let (mut peer, lifetime_ms) = log_in(-5).await;
    assert_eq!(lifetime_ms, 0);
    tokio::time::sleep(MILLIS(5)).await;
    assert!(peer.is_heard_as().await.is_err());
    let (mut peer, _) = log_in(-5).await;
    peer.handshake("OAUTHBEARER").await;
    let message = format!("n,,\x01auth=Bearer {}\x01\x01", place.token("carol", 600));
    assert_eq!(peer.token(message).await.unwrap().session_lifetime_ms, 60_000);
    assert_eq!(peer.is_heard_as().await.unwrap(), "carol");
}

#[tokio::test]
async fn answers_under_way_are_those_of_who_asked() {
    let place = expiring(60_000).await;
    let mut peer = place.connect();
    assert_eq!(peer.plain("alice", "secret").await.0, 0);
    // A request, the log-in and another request, before any of the answers is read.
    let mut answers = VecDeque::new();
    let handshake = m::SaslHandshakeRequest { mechanism: Text::from_static("PLAIN") };
    let token = m::SaslAuthenticateRequest { auth_bytes: Bytes::from_static(b"\0alice\0secret") };
    let metadata = request(12, &m::MetadataRequest::default());
    for frame in [metadata.clone(), request(1, &handshake), request(2, &token), metadata.clone()] {
        answers.push_back(peer.gate.begin(frame).await.unwrap().unwrap());
    }
    let first = answers.pop_front().unwrap().await.unwrap().to_bytes();
    assert_eq!(first, metadata);
    for _ in 0..2 {
        let answer = answers.pop_front().unwrap().await.unwrap().to_bytes();
        assert_eq!(answer[4..8], 7i32.to_be_bytes());
    }
    assert_eq!(answers.pop_front().unwrap().await.unwrap().to_bytes(), metadata);
}
