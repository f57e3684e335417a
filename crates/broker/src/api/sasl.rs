//! SaslHandshake and SaslAuthenticate out of place. On SASL listeners, a connection logs in before its requests get
//! here.

use wire::messages as m;
use wire::{ErrorCode, Text};

use crate::request::Request;

const CODE: i16 = ErrorCode::IllegalSaslState.code();

/// Answers SaslHandshake on a listener without SASL, or after a log-in that need not be repeated.
pub async fn handshake(_: Request<m::SaslHandshakeRequest>) -> m::SaslHandshakeResponse {
    m::SaslHandshakeResponse { error_code: CODE, mechanisms: Vec::new() }
}

/// Answers SaslAuthenticate in the same cases.
pub async fn authenticate(_: Request<m::SaslAuthenticateRequest>) -> m::SaslAuthenticateResponse {
    m::SaslAuthenticateResponse {
        error_code: CODE,
        error_message: Some(Text::from_static(
            "SaslAuthenticate request received after successful authentication",
        )),
        ..m::SaslAuthenticateResponse::default()
    }
}
