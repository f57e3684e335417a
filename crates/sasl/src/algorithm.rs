//! The signature algorithms of tokens (RFC 7518).

/// The signature algorithm of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA with PKCS#1 padding.
    Rs256,
    /// RSA with PKCS#1 padding.
    Rs384,
    /// RSA with PKCS#1 padding.
    Rs512,
    /// RSA with PSS padding.
    Ps256,
    /// RSA with PSS padding.
    Ps384,
    /// RSA with PSS padding.
    Ps512,
    /// ECDSA on P-256.
    Es256,
    /// ECDSA on P-384.
    Es384,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
        Algorithm::Es256,
        Algorithm::Es384,
    ];

    /// The name in RFC 7518.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
            Algorithm::Ps256 => "PS256",
            Algorithm::Ps384 => "PS384",
            Algorithm::Ps512 => "PS512",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
        }
    }

    pub(crate) fn is_rsa(self) -> bool {
        !matches!(self, Algorithm::Es256 | Algorithm::Es384)
    }
}
