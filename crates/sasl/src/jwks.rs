//! The published keys of an identity provider (RFC 7517): those that check signatures of tokens.
//!
//! Keys of other kinds and for other uses are ignored, because providers publish them in the same document.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde::Deserialize;
use serde_json::Value;

use crate::algorithm::Algorithm;

/// Upper bound of the keys in one document. Providers have a few, and a token without a key id is tried with each.
const KEYS_MAX: usize = 100;
/// Upper bound of the keys that are tried for a token without a key id, because anybody can ask for this work.
const TRIED_MAX: usize = 8;

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The document is not JSON, or not a list of keys.
    #[error("it is not a JSON Web Key Set: {0}")]
    Json(#[from] serde_json::Error),
    /// The document has too many keys.
    #[error("it has {0} keys, {KEYS_MAX} are allowed")]
    TooMany(usize),
    /// The document has only keys of other kinds.
    #[error("it has no key that checks signatures (RSA of 2048 bits or more, EC on P-256 or P-384)")]
    Empty,
}

/// The keys of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    /// The only algorithm that the key may be used with.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// `bits` names the curve.
    Ec {
        bits: u16,
        point: Vec<u8>,
    },
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a document.
    pub fn parse(document: &[u8]) -> Result<KeySet, KeySetError> {
        let document: Document = serde_json::from_slice(document)?;
        if document.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany(document.keys.len()));
        }
        let keys: Vec<Key> = document.keys.into_iter().filter_map(key).collect();
        if keys.is_empty() { Err(KeySetError::Empty) } else { Ok(KeySet { keys }) }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Always false: a set without keys is not made.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether `signature` is that of `message` by the key `id`, or by any key if no id is given. `None` if there is no
    /// such key for this algorithm.
    pub(crate) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Option<bool> {
        let fits = |key: &&Key| {
            id.is_none_or(|id| key.id.as_deref() == Some(id))
                && key.algorithm.as_deref().is_none_or(|only| only == algorithm.name())
                && key.material.fits(algorithm)
        };
        let mut candidates = self.keys.iter().filter(fits).take(TRIED_MAX).peekable();
        candidates.peek()?;
        Some(candidates.any(|key| key.material.verifies(algorithm, message, signature)))
    }
}

fn key(value: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let signs = jwk.usage.as_deref().is_none_or(|usage| usage == "sig")
        && jwk.key_ops.as_ref().is_none_or(|all| all.iter().any(|operation| operation == "verify"));
    if !signs {
        return None;
    }
    let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?.trim_end_matches('=')).ok();
    let material = match jwk.kty.as_str() {
        "RSA" => {
            // Some providers write a zero byte in front, which the RFC forbids and `ring` does not accept.
            let number = |text| {
                let bytes = bytes(text)?;
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                (zeros < bytes.len()).then(|| bytes[zeros..].to_vec())
            };
            let (n, e) = (number(jwk.n)?, number(jwk.e)?);
            // The bounds that `ring` accepts.
            ((256..=1024).contains(&n.len()) && e.len() <= 4).then_some(Material::Rsa { n, e })?
        }
        "EC" => {
            let (bits, length) = match jwk.crv.as_deref()? {
                "P-256" => (256, 32),
                "P-384" => (384, 48),
                _ => return None,
            };
            let (x, y) = (bytes(jwk.x)?, bytes(jwk.y)?);
            let point = [&[4], x.as_slice(), y.as_slice()].concat();
            (x.len() == length && y.len() == length).then_some(Material::Ec { bits, point })?
        }
        _ => return None,
    };
    Some(Key { id: jwk.kid, algorithm: jwk.alg, material })
}

impl Material {
    fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Material::Rsa { .. } => algorithm.is_rsa(),
            Material::Ec { bits, .. } => match algorithm {
                Algorithm::Es256 => *bits == 256,
                Algorithm::Es384 => *bits == 384,
                _ => false,
            },
        }
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let rsa = match algorithm {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::Es256 | Algorithm::Es384 => {
                let Material::Ec { point, .. } = self else { return false };
                let algorithm = if algorithm == Algorithm::Es256 {
                    &signature::ECDSA_P256_SHA256_FIXED
                } else {
                    &signature::ECDSA_P384_SHA384_FIXED
                };
                return signature::UnparsedPublicKey::new(algorithm, point)
                    .verify(message, signature)
                    .is_ok();
            }
        };
        let Material::Rsa { n, e } = self else { return false };
        signature::RsaPublicKeyComponents { n, e }.verify(rsa, message, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_checks_no_signatures_is_passed_over() {
        let n = URL_SAFE_NO_PAD.encode([7; 256]);
        let padded = URL_SAFE_NO_PAD.encode([[0].as_slice(), &[7; 256]].concat());
        let short = URL_SAFE_NO_PAD.encode([7; 128]);
        let x = URL_SAFE_NO_PAD.encode([1; 32]);
        let document = format!(
            r#"{{"keys": [
                {{"kty": "RSA", "kid": "a", "n": "{n}", "e": "AQAB", "use": "sig", "alg": "RS256"}},
                {{"kty": "RSA", "kid": "b", "n": "{padded}", "e": "AQAB"}},
                {{"kty": "EC", "kid": "c", "crv": "P-256", "x": "{x}", "y": "{x}"}},
                {{"kty": "RSA", "kid": "d", "n": "{n}", "e": "AQAB", "use": "enc"}},
                {{"kty": "RSA", "kid": "e", "n": "{short}", "e": "AQAB"}},
                {{"kty": "RSA", "kid": "f", "e": "AQAB"}},
                {{"kty": "EC", "kid": "g", "crv": "P-256", "x": "{x}", "y": "AQ"}},
                {{"kty": "EC", "kid": "h", "crv": "P-521", "x": "{x}", "y": "{x}"}},
                {{"kty": "oct", "kid": "i", "k": "c2VjcmV0"}},
                {{"kty": "RSA", "kid": "j", "n": "{n}", "e": "AQAB", "key_ops": ["encrypt"]}},
                {{"kid": "k"}}, 7
            ]}}"#
        );
        let set = KeySet::parse(document.as_bytes()).unwrap();
        let ids: Vec<_> = set.keys.iter().map(|key| key.id.as_deref().unwrap()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(set.keys[0].material, set.keys[1].material);
        let verify = |id, algorithm| set.verify(id, algorithm, b"m", b"s");
        assert_eq!(verify(Some("a"), Algorithm::Rs256), Some(false));
        assert_eq!(verify(Some("a"), Algorithm::Ps256), None);
        assert_eq!(verify(Some("b"), Algorithm::Ps256), Some(false));
        assert_eq!(verify(Some("c"), Algorithm::Es256), Some(false));
        assert_eq!(verify(Some("c"), Algorithm::Es384), None);
        assert_eq!(verify(Some("c"), Algorithm::Rs256), None);
        assert_eq!(verify(Some("z"), Algorithm::Rs256), None);
        assert_eq!(verify(None, Algorithm::Rs256), Some(false));
    }

    #[test]
    fn documents_that_cannot_be_used_say_why() {
        for wrong in ["", "[]", "{}", r#"{"keys": 7}"#] {
            assert!(matches!(KeySet::parse(wrong.as_bytes()), Err(KeySetError::Json(_))), "{wrong}");
        }
        assert!(matches!(KeySet::parse(br#"{"keys": [{"kty": "oct"}]}"#), Err(KeySetError::Empty)));
        let many = format!(r#"{{"keys": [{}]}}"#, vec!["1"; KEYS_MAX + 1].join(","));
        assert!(matches!(KeySet::parse(many.as_bytes()), Err(KeySetError::TooMany(101))));
    }
}
