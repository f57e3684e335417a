//! SaslHandshake and SaslAuthenticate where they have no place: who speaks SASL is dealt with before requests get here.

use wire::messages as m;
use wire::{ErrorCode, Text};

const CODE: i16 = ErrorCode::IllegalSaslState.code();

/// Answers SaslHandshake on a listener without SASL, or after log-in where nobody has to log in again.
pub fn handshake() -> m::SaslHandshakeResponse {
    m::SaslHandshakeResponse { error_code: CODE, mechanisms: Vec::new() }
}

/// The same for SaslAuthenticate.
pub fn authenticate() -> m::SaslAuthenticateResponse {
    m::SaslAuthenticateResponse {
        error_code: CODE,
        error_message: Some(Text::from_static(
            "SaslAuthenticate request received after successful authentication",
        )),
        ..m::SaslAuthenticateResponse::default()
    }
}
