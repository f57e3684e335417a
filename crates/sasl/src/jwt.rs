//! Signed tokens (RFC 7519 in the compact form of RFC 7515), checked as Kafka's `ValidatorAccessTokenValidator` does.
//!
//! `none` and algorithms with a shared secret are refused, whatever the keys are: a public key must never serve as a
//! secret.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::algorithm::Algorithm;
use crate::jwks::KeySet;

/// Larger tokens are refused unread. Tokens with long lists of groups have some ten thousand bytes.
pub const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// No provider gives longer key ids.
const KEY_ID_BYTES_MAX: usize = 1000;

/// The requirements on a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// One of these must be in the token's audience. If there are none, the token must not have an audience (RFC 7519,
    /// 4.1.3).
    pub audiences: Vec<String>,
    /// The required issuer, if any.
    pub issuer: Option<String>,
    /// The claim that names the user.
    pub subject_claim: String,
    /// The claim that names scopes.
    pub scope_claim: String,
    /// The allowed difference between the provider's clock and this one.
    pub clock_skew: Duration,
}

/// The contents of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The user.
    pub subject: String,
    /// The expiry, in milliseconds of Unix time.
    pub expires_ms: i64,
}

/// What is wrong with a token. Of the token itself, the error has only the id of its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three parts of the right form.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// The algorithm is not supported, or is `none`.
    #[error("the token is signed by an algorithm that is not allowed")]
    Algorithm,
    /// There is no key with this id for this algorithm.
    #[error("no key is known for the token (kid {0:?})")]
    UnknownKey(Option<String>),
    /// Another key signed the token, or the token was changed.
    #[error("the token's signature is wrong")]
    Signature,
    /// The token was valid earlier.
    #[error("the token has expired")]
    Expired,
    /// The token will be valid later.
    #[error("the token is not valid yet")]
    NotYet,
    /// A claim is missing, or has a wrong value.
    #[error("the token's claim {0} is missing or wrong")]
    Claim(String),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Checks a token: first the signature, then the claims. `now_ms` is Unix time.
pub fn verify(token: &str, keys: &KeySet, expected: &Expected, now_ms: i64) -> Result<Token, TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::Malformed("it is too long"));
    }
    let wrong = TokenError::Malformed("it has not three parts");
    let (signed, signature) = token.rsplit_once('.').ok_or(wrong.clone())?;
    let (header, claims) = signed.split_once('.').ok_or(wrong.clone())?;
    if claims.contains('.') {
        return Err(wrong);
    }
    let bytes =
        |text| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Malformed("a part is not base64url"));
    let header: Header =
        serde_json::from_slice(&bytes(header)?).map_err(|_| TokenError::Malformed("its header"))?;
    if header.crit.is_some() {
        return Err(TokenError::Malformed("it has extensions that must be known"));
    }
    let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == header.alg);
    let algorithm = algorithm.ok_or(TokenError::Algorithm)?;
    let id = header.kid.as_deref();
    if id.is_some_and(|id| id.len() > KEY_ID_BYTES_MAX) {
        return Err(TokenError::Malformed("the id of its key is too long"));
    }
    let (claims, signature) = (bytes(claims)?, bytes(signature)?);
    match keys.verify(id, algorithm, signed.as_bytes(), &signature) {
        None => return Err(TokenError::UnknownKey(header.kid)),
        Some(false) => return Err(TokenError::Signature),
        Some(true) => {}
    }
    let claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Malformed("its claims"))?;
    check(&claims, expected, now_ms)
}

fn check(claims: &Map<String, Value>, expected: &Expected, now_ms: i64) -> Result<Token, TokenError> {
    let wrong = |name: &str| TokenError::Claim(name.to_owned());
    let skew_ms = i64::try_from(expected.clock_skew.as_millis()).unwrap_or(i64::MAX);
    let expires_ms = time_ms(claims, "exp")?.ok_or(wrong("exp"))?;
    // As in Kafka, `iat` must be there but has no further meaning: `nbf` marks tokens that are not valid yet.
    time_ms(claims, "iat")?.ok_or(wrong("iat"))?;
    if expires_ms <= now_ms.saturating_sub(skew_ms) {
        return Err(TokenError::Expired);
    }
    let latest_ms = now_ms.saturating_add(skew_ms);
    if time_ms(claims, "nbf")?.is_some_and(|from_ms| from_ms > latest_ms) {
        return Err(TokenError::NotYet);
    }
    if let Some(issuer) = &expected.issuer
        && claims.get("iss").and_then(Value::as_str) != Some(issuer)
    {
        return Err(wrong("iss"));
    }
    let audience = match claims.get("aud") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(all)) => {
            all.iter().map(Value::as_str).collect::<Option<Vec<_>>>().ok_or(wrong("aud"))?
        }
        Some(_) => return Err(wrong("aud")),
    };
    let meant = audience.iter().any(|one| expected.audiences.iter().any(|other| other == one));
    let for_nobody = audience.is_empty() && expected.audiences.is_empty();
    if !meant && !for_nobody {
        return Err(wrong("aud"));
    }
    check_scopes(claims.get(&expected.scope_claim)).ok_or_else(|| wrong(&expected.scope_claim))?;
    let subject = claims.get(&expected.subject_claim).and_then(Value::as_str).map(str::trim);
    let subject = subject.filter(|name| !name.is_empty()).ok_or_else(|| wrong(&expected.subject_claim))?;
    Ok(Token { subject: subject.to_owned(), expires_ms })
}

/// Scopes have no meaning here. As in Kafka they have to be non-empty strings without repetitions.
fn check_scopes(claim: Option<&Value>) -> Option<()> {
    let scopes = match claim {
        Some(Value::String(one)) => vec![one.trim()],
        Some(Value::Array(all)) => {
            all.iter().map(|one| one.as_str().map(str::trim)).collect::<Option<Vec<_>>>()?
        }
        _ => Vec::new(),
    };
    let mut sorted = scopes;
    sorted.sort_unstable();
    let fine =
        sorted.iter().all(|scope| !scope.is_empty()) && sorted.windows(2).all(|pair| pair[0] != pair[1]);
    fine.then_some(())
}

/// A time in seconds, which may have a fraction, as milliseconds.
fn time_ms(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, TokenError> {
    /// Beyond this (the year 33658), milliseconds and sums with them are no longer exact.
    const SECONDS_MAX: f64 = 1e12;
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
            let seconds = seconds.ok_or_else(|| TokenError::Claim(name.to_owned()))?;
            // The range was checked.
            #[allow(clippy::cast_possible_truncation)]
            Ok(Some((seconds * 1000.0) as i64))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{NOW_MS, Provider, claims};

    const NOW: i64 = NOW_MS / 1000;

    fn expected() -> Expected {
        Expected {
            audiences: Vec::new(),
            issuer: None,
            subject_claim: "sub".into(),
            scope_claim: "scope".into(),
            clock_skew: Duration::from_secs(30),
        }
    }

    fn outcome(more: &Value, expected: &Expected) -> Result<Token, TokenError> {
        let provider = Provider::new(false);
        let header = json!({"alg": "ES256", "kid": "one", "typ": "JWT"});
        verify(&provider.sign(&header, &claims(more)), &provider.keys(), expected, NOW_MS)
    }

    #[test]
    fn good_tokens_name_their_user() {
        for wide in [false, true] {
            let provider = Provider::new(wide);
            let algorithm = if wide { "ES384" } else { "ES256" };
            for header in [json!({"alg": algorithm, "kid": "one"}), json!({"alg": algorithm})] {
                let token = provider.sign(&header, &claims(&json!({})));
                let good = verify(&token, &provider.keys(), &expected(), NOW_MS).unwrap();
                assert_eq!(good, Token { subject: "alice".into(), expires_ms: (NOW + 600) * 1000 });
            }
        }
    }

    #[test]
    fn claims_are_checked() {
        let expected = expected();
        let refused = |more: Value| outcome(&more, &expected).unwrap_err();
        let wrong = |name: &str| TokenError::Claim(name.into());
        assert_eq!(refused(json!({"exp": null})), wrong("exp"));
        assert_eq!(refused(json!({"exp": "soon"})), wrong("exp"));
        assert_eq!(refused(json!({"exp": -1})), wrong("exp"));
        assert_eq!(refused(json!({"exp": 1e300})), wrong("exp"));
        assert_eq!(refused(json!({"exp": NOW - 30})), TokenError::Expired);
        outcome(&json!({"exp": NOW - 29}), &expected).unwrap();
        assert_eq!(outcome(&json!({"exp": NOW as f64 + 0.5}), &expected).unwrap().expires_ms, NOW_MS + 500);
        assert_eq!(refused(json!({"iat": null})), wrong("iat"));
        assert_eq!(refused(json!({"iat": "today"})), wrong("iat"));
        outcome(&json!({"iat": NOW + 300}), &expected).unwrap();
        assert_eq!(refused(json!({"nbf": NOW + 31})), TokenError::NotYet);
        assert_eq!(refused(json!({"nbf": []})), wrong("nbf"));
        outcome(&json!({"nbf": NOW + 30}), &expected).unwrap();
        for sub in [json!(null), json!(""), json!("  "), json!(7)] {
            assert_eq!(refused(json!({"sub": sub})), wrong("sub"));
        }
        assert_eq!(outcome(&json!({"sub": " bob "}), &expected).unwrap().subject, "bob");
        for scope in [json!(""), json!(" "), json!(["a", "a"]), json!(["a", " "]), json!([1])] {
            assert_eq!(refused(json!({"scope": scope})), wrong("scope"));
        }
        outcome(&json!({"scope": ["a", "b"]}), &expected).unwrap();
        outcome(&json!({"scope": "a b"}), &expected).unwrap();
    }

    #[test]
    fn audience_and_issuer_are_checked() {
        let audiences = vec!["kafka".to_owned(), "other".to_owned()];
        let strict = Expected { audiences, issuer: Some("the provider".into()), ..expected() };
        let both = |aud: Value, iss: Value| outcome(&json!({"aud": aud, "iss": iss}), &strict);
        let issuer = json!("the provider");
        both(json!("kafka"), issuer.clone()).unwrap();
        both(json!(["x", "other"]), issuer.clone()).unwrap();
        for aud in [json!(null), json!("x"), json!([]), json!(["x"]), json!([1]), json!(7), json!("kafka ")] {
            assert_eq!(both(aud, issuer.clone()), Err(TokenError::Claim("aud".into())));
        }
        for iss in [json!(null), json!("the provider/"), json!(1)] {
            assert_eq!(both(json!("kafka"), iss), Err(TokenError::Claim("iss".into())));
        }
        // A token for another audience is not for a server without expected audiences.
        assert_eq!(outcome(&json!({"aud": "kafka"}), &expected()), Err(TokenError::Claim("aud".into())));
        let named = Expected { subject_claim: "email".into(), scope_claim: "scp".into(), ..expected() };
        assert_eq!(
            outcome(&json!({"email": "a@example.com", "scope": ""}), &named).unwrap().subject,
            "a@example.com"
        );
    }

    #[test]
    fn nobody_elses_signature_counts() {
        let (provider, other) = (Provider::new(false), Provider::new(false));
        let keys = provider.keys();
        let refused = |token: &str| verify(token, &keys, &expected(), NOW_MS).unwrap_err();
        let header = json!({"alg": "ES256", "kid": "one"});
        let good = provider.sign(&header, &claims(&json!({})));
        verify(&good, &keys, &expected(), NOW_MS).unwrap();
        assert_eq!(refused(&other.sign(&header, &claims(&json!({})))), TokenError::Signature);
        let (signed, signature) = good.rsplit_once('.').unwrap();
        assert_eq!(refused(&format!("{signed}.")), TokenError::Signature);
        let root = URL_SAFE_NO_PAD.encode(claims(&json!({"sub": "root"})).to_string());
        let (head, _) = signed.split_once('.').unwrap();
        assert_eq!(refused(&format!("{head}.{root}.{signature}")), TokenError::Signature);
        for alg in ["none", "None", "HS256", "HS512", "ES512", "EdDSA", "", "es256"] {
            let token = provider.sign(&json!({"alg": alg, "kid": "one"}), &claims(&json!({})));
            assert_eq!(refused(&token), TokenError::Algorithm, "{alg}");
        }
        let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
        assert_eq!(refused(&format!("{unsigned}.{root}.")), TokenError::Algorithm);
        let unknown = provider.sign(&json!({"alg": "ES256", "kid": "two"}), &claims(&json!({})));
        assert_eq!(refused(&unknown), TokenError::UnknownKey(Some("two".into())));
        let rsa = provider.sign(&json!({"alg": "RS256", "kid": "one"}), &claims(&json!({})));
        assert_eq!(refused(&rsa), TokenError::UnknownKey(Some("one".into())));
        let extended =
            provider.sign(&json!({"alg": "ES256", "kid": "one", "crit": ["b64"]}), &claims(&json!({})));
        assert!(matches!(refused(&extended), TokenError::Malformed(_)));
        let long = provider.sign(&json!({"alg": "ES256", "kid": "x".repeat(1001)}), &claims(&json!({})));
        assert!(matches!(refused(&long), TokenError::Malformed(_)));
        for wrong in
            ["", ".", "..", "a.b", "a.b.c.d", "!.!.!", &good[1..], &format!("{good}="), &format!(" {good}")]
        {
            assert!(matches!(refused(wrong), TokenError::Malformed(_)), "{wrong}");
        }
        assert!(matches!(refused(&"a".repeat(TOKEN_BYTES_MAX + 1)), TokenError::Malformed("it is too long")));
    }

    /// RFC 7515, appendix A.2: RS256. Its claims have no `iat`, so only its signature can be checked.
    #[test]
    fn the_rsa_example_of_the_rfc() {
        let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT\
            -SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-\
            UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethF\
            kMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
        let keys = json!({"keys": [{"kty": "RSA", "n": n, "e": "AQAB"}]}).to_string();
        let keys = KeySet::parse(keys.as_bytes()).unwrap();
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9p\
            c19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O\
            8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7\
            K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs\
            98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        assert_eq!(verify(token, &keys, &expected(), NOW_MS), Err(TokenError::Claim("iat".into())));
        let other = token.replace("cC4hiUPoj9", "cC4hiUPoj8");
        assert_eq!(verify(&other, &keys, &expected(), NOW_MS), Err(TokenError::Signature));
    }
}
