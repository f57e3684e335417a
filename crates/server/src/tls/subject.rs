//! The subject of a certificate in the form of Kafka's principals, and the certificate's expiry.
//!
//! The subject is written as in RFC 2253 and in Java's `X500Principal.getName()`: the last part first, nine keywords,
//! every other attribute as its number with the value in hexadecimal.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::{Decode, Encode, Tag, Tagged};

/// A certificate with less remaining validity than this is warned of.
const SHORT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The attributes with a keyword in RFC 2253.
const KEYWORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The information read from a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub subject: String,
    /// The expiry, as a time and as text.
    pub not_after: SystemTime,
    pub not_after_text: String,
}

impl Holder {
    /// Reads a certificate in DER.
    pub fn of(certificate: &[u8]) -> Result<Holder, String> {
        let unreadable = |error: x509_cert::der::Error| format!("a certificate cannot be read: {error}");
        let certificate = Certificate::from_der(certificate).map_err(unreadable)?;
        let certificate = certificate.tbs_certificate();
        let parts: Result<Vec<String>, String> = certificate
            .subject()
            .iter_rdn()
            .map(|part| {
                let attributes: Result<Vec<String>, String> = part.iter().map(shown).collect();
                Ok(attributes?.join("+"))
            })
            .collect();
        let mut parts = parts?;
        parts.reverse();
        let not_after = certificate.validity().not_after;
        Ok(Holder {
            subject: parts.join(","),
            not_after: UNIX_EPOCH + not_after.to_unix_duration(),
            not_after_text: not_after.to_date_time().to_string(),
        })
    }

    /// The warning about the expiry at the time `now`, if one is due.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let subject = &self.subject;
        match self.not_after.duration_since(now) {
            Err(_) => Some(format!("the certificate of {subject} has expired: {}", self.not_after_text)),
            Ok(left) if left < SHORT => {
                let days = left.as_secs() / (24 * 3600);
                Some(format!("the certificate of {subject} expires in {days} days: {}", self.not_after_text))
            }
            Ok(_) => None,
        }
    }
}

/// Formats one attribute as `keyword=value`.
fn shown(attribute: &AttributeTypeAndValue) -> Result<String, String> {
    let oid = attribute.oid.to_string();
    let keyword = KEYWORDS.iter().find(|(number, _)| *number == oid).map(|(_, keyword)| *keyword);
    let value = keyword.and_then(|keyword| Some((keyword, text_of(attribute)?)));
    if let Some((keyword, text)) = value {
        return Ok(format!("{keyword}={}", escaped(&text)));
    }
    let der = attribute.value.to_der().map_err(|error| format!("an attribute of the subject: {error}"))?;
    let mut text = format!("{oid}=#");
    for byte in der {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The value, if it is one of the text types.
fn text_of(attribute: &AttributeTypeAndValue) -> Option<String> {
    let bytes = attribute.value.value();
    match attribute.value.tag() {
        Tag::PrintableString | Tag::Utf8String | Tag::Ia5String | Tag::TeletexString => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        Tag::BmpString => {
            let units = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            Some(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
        }
        _ => None,
    }
}

/// Escapes as Java does: also = and # in any position, and every blank at either end.
fn escaped(text: &str) -> String {
    let blank = |letter: char| matches!(letter, ' ' | '\r');
    let lead = text.chars().take_while(|letter| blank(*letter)).count();
    let length = text.chars().count();
    let trail = length - text.chars().rev().take_while(|letter| blank(*letter)).count();
    let mut result = String::with_capacity(text.len());
    for (at, letter) in text.chars().enumerate() {
        if letter == '\0' {
            result.push_str("\\00");
            continue;
        }
        if at < lead || at >= trail || ",=+<>#;\"\\".contains(letter) {
            result.push('\\');
        }
        result.push(letter);
    }
    result
}

#[cfg(test)]
mod tests {
    use testing::certificates::{DnType, DnValue, self_signed};

    use super::*;

    fn of(attributes: &[(DnType, DnValue)]) -> String {
        Holder::of(&self_signed(attributes)).unwrap().subject
    }

    fn text(text: &str) -> DnValue {
        DnValue::Utf8String(text.into())
    }

    #[test]
    fn subjects_are_written_as_java_writes_them() {
        let usual = [
            (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap())),
            (DnType::StateOrProvinceName, text("Bayern")),
            (DnType::LocalityName, text("Köln")),
            (DnType::OrganizationName, text("Example, Inc.")),
            (DnType::OrganizationalUnitName, text("a+b=c #d")),
            (DnType::CommonName, text(" ops\\\"<>; ")),
        ];
        let expected = r#"CN=\ ops\\\"\<\>\;\ ,OU=a\+b\=c \#d,O=Example\, Inc.,L=Köln,ST=Bayern,C=DE"#;
        assert_eq!(of(&usual), expected);
        let others = [
            (
                DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 25]),
                DnValue::Ia5String("org".try_into().unwrap()),
            ),
            (DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]), text("u1")),
            (
                DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]),
                DnValue::Ia5String("a@b".try_into().unwrap()),
            ),
        ];
        assert_eq!(of(&others), "1.2.840.113549.1.9.1=#1603614062,UID=u1,DC=org");
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn the_end_of_a_certificate_is_warned_of_in_time() {
        let end = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let holder = Holder { subject: "CN=x".into(), not_after: end, not_after_text: "then".into() };
        assert_eq!(holder.warning(end - SHORT), None);
        let soon = holder.warning(end - Duration::from_secs(2 * 24 * 3600)).unwrap();
        assert_eq!(soon, "the certificate of CN=x expires in 2 days: then");
        let late = holder.warning(end + Duration::from_secs(1)).unwrap();
        assert_eq!(late, "the certificate of CN=x has expired: then");
    }
}
