//! An identity provider for tests: it has a key, publishes it, and signs anything.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
};
use serde_json::{Value, json};

use crate::jwks::KeySet;

/// The present time in the tests of this crate, in milliseconds of Unix time.
pub const NOW_MS: i64 = 1_800_000_000_000;

/// A provider with one key, whose id is `one`.
#[derive(Debug)]
pub struct Provider {
    pair: EcdsaKeyPair,
    wide: bool,
}

impl Provider {
    /// A provider with a key on P-384 if `wide`, else on P-256.
    pub fn new(wide: bool) -> Provider {
        let algorithm =
            if wide { &ECDSA_P384_SHA384_FIXED_SIGNING } else { &ECDSA_P256_SHA256_FIXED_SIGNING };
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key can be made");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("it is a good one");
        Provider { pair, wide }
    }

    /// The provider's published document, with another id for the key.
    pub fn document(&self, kid: &str) -> String {
        let point = &self.pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let curve = if self.wide { "P-384" } else { "P-256" };
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        json!({"keys": [{"kty": "EC", "kid": kid, "crv": curve, "x": x, "y": y}]}).to_string()
    }

    /// The provider's keys, parsed.
    pub fn keys(&self) -> KeySet {
        KeySet::parse(self.document("one").as_bytes()).expect("it is a good one")
    }

    /// A signed token.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).expect("it can sign");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The claims of a valid token, with the changes in `more`.
pub fn claims(more: &Value) -> Value {
    let now = NOW_MS / 1000;
    let mut claims = json!({"sub": "alice", "iat": now - 10, "exp": now + 600});
    for (name, value) in more.as_object().expect("claims are an object") {
        claims[name] = value.clone();
    }
    claims
}
