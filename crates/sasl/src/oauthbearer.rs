//! OAUTHBEARER (RFC 7628): a token in place of a password.
//!
//! ```text
//! client  n,[a=authzid],^A auth=Bearer TOKEN ^A [name=value ^A]… ^A        (^A is the byte 1, without blanks)
//! server  nothing, or {"status":"invalid_token"}; then
//! client  ^A, and is refused
//! ```

use std::fmt;

use crate::jwt::Token;
use crate::{Failure, saslname};

/// The server's response to a client with an invalid token.
pub const REFUSAL: &str = r#"{"status":"invalid_token"}"#;
/// The client's answer to that response.
pub const ACKNOWLEDGEMENT: &[u8] = &[SEPARATOR as u8];
const SEPARATOR: char = '\u{1}';

/// The client's first message.
#[derive(Clone, PartialEq, Eq)]
pub struct First {
    /// Not checked yet.
    pub token: String,
    authzid: Option<String>,
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("First([hidden])")
    }
}

impl First {
    /// Reads the message.
    pub fn parse(message: &[u8]) -> Result<First, Failure> {
        let wrong = Failure::Untold("the first message is not one of OAUTHBEARER");
        let message = std::str::from_utf8(message).map_err(|_| wrong.clone())?;
        let (header, rest) = message.split_once(SEPARATOR).ok_or(wrong.clone())?;
        let authzid = header.strip_prefix("n,").and_then(|rest| rest.strip_suffix(','));
        let authzid = match authzid.ok_or(wrong.clone())? {
            "" => None,
            given => Some(given.strip_prefix("a=").and_then(saslname).ok_or(wrong.clone())?),
        };
        let pairs = rest.strip_suffix(SEPARATOR).ok_or(wrong.clone())?;
        let mut auth = None;
        // The last pair has a separator too.
        for pair in pairs.strip_suffix(SEPARATOR).ok_or(wrong.clone())?.split(SEPARATOR) {
            let (name, value) = pair.split_once('=').ok_or(wrong.clone())?;
            let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
            let valued = !value.is_empty()
                && value.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\t' | b'\r' | b'\n'));
            if !named || !valued {
                return Err(wrong);
            }
            if name == "auth" {
                auth = Some(value);
            }
        }
        let (scheme, token) = auth.and_then(|auth| auth.split_once(' ')).ok_or(wrong.clone())?;
        let token = token.trim_start_matches(' ');
        let bare = token.trim_end_matches('=');
        let is_token = !bare.is_empty()
            && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_~+/.".contains(&byte));
        if !scheme.eq_ignore_ascii_case("bearer") || !is_token {
            return Err(wrong);
        }
        Ok(First { token: token.to_owned(), authzid })
    }

    /// The client's name, once its token is valid.
    pub fn finish(self, token: &Token) -> Result<String, Failure> {
        match self.authzid {
            Some(authzid) if authzid != token.subject => Err(Failure::Told(format!(
                "Authentication failed: Client requested an authorization id ({authzid}) that is different from the token's principal name ({})",
                token.subject
            ))),
            _ => Ok(token.subject.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { subject: "a,b".into(), expires_ms: 0 }
    }

    #[test]
    fn messages_are_read_as_kafka_reads_them() {
        let good = [
            "n,,\u{1}auth=Bearer a.b.c\u{1}\u{1}",
            "n,,\u{1}auth=bearer   a.b.c\u{1}\u{1}",
            "n,a=a=2Cb,\u{1}auth=Bearer a.b.c\u{1}\u{1}",
            "n,,\u{1}traceId=12 3\u{1}auth=BEARER a.b.c\u{1}logicalCluster=x=y\u{1}\u{1}",
        ];
        for good in good {
            let first = First::parse(good.as_bytes()).expect(good);
            assert_eq!(first.token, "a.b.c");
            assert_eq!(format!("{first:?}"), "First([hidden])");
            assert_eq!(first.finish(&token()).unwrap(), "a,b");
        }
        assert_eq!(First::parse(b"n,,\x01auth=Bearer a==\x01\x01").unwrap().token, "a==");
        let wrong = [
            "",
            "\u{1}",
            "n,,",
            "n,,\u{1}",
            "n,,\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}",
            "y,,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,b,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,a=,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,,\u{1}auth=Basic a\u{1}\u{1}",
            "n,,\u{1}auth=Bearer\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer ==\u{1}\u{1}",
            "n,,\u{1}x=y\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}x\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}1=y\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}x=\u{1}\u{1}",
            "n,,\u{1}auth=Bearer ä\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}\u{1}\u{1}",
        ];
        for wrong in wrong {
            assert!(matches!(First::parse(wrong.as_bytes()), Err(Failure::Untold(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_client_gets_no_other_name_than_its_tokens() {
        let first = First::parse(b"n,a=root,\x01auth=Bearer a\x01\x01").unwrap();
        let why = "Authentication failed: Client requested an authorization id (root) that is different from the token's principal name (a,b)";
        assert_eq!(first.finish(&token()), Err(Failure::Told(why.into())));
    }
}
