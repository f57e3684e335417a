//! Frames: a 4-byte size, a header, a message. The header's own version follows from the API and its version.
//!
//! ```text
//! request   size i32 | api key i16 | version i16 | correlation id i32 | client id | [tags] | message
//! response  size i32 | correlation id i32 | [tags] | message
//! ```
//!
//! Two exceptions: the client id keeps its 16-bit length in every header version. The response to ApiVersions always
//! has the header without tags, because the client cannot know yet what the server speaks.

use crate::messages;
use crate::{ApiKey, Chunks, DecodeError, EncodeError, Message, Reader, Text, Writer};

/// What precedes the message of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The API.
    pub api_key: ApiKey,
    /// The version as the client claims it. It is not checked against [`ApiKey::valid_versions`], because ApiVersions
    /// has to answer any version.
    pub version: i16,
    /// Chosen by the client, repeated in the response.
    pub correlation_id: i32,
    /// The client's own name.
    pub client_id: Option<Text>,
}

/// Reads the header at the front of a request frame (without its size) and leaves `reader` at the message.
///
/// [`DecodeError::UnknownApiKey`] carries the fields that are needed to answer an API key that this crate does not
/// know.
pub fn decode_request_header(reader: &mut Reader) -> Result<RequestHeader, DecodeError> {
    let (key, version, correlation_id) = (reader.i16()?, reader.i16()?, reader.i32()?);
    let Some(api_key) = ApiKey::from_i16(key) else {
        return Err(DecodeError::UnknownApiKey { key, version, correlation_id });
    };
    let client_id = reader.nullable_text(false, true)?;
    if api_key.request_header_version(version) >= 2 {
        reader.skip_tags()?;
    }
    Ok(RequestHeader { api_key, version, correlation_id, client_id })
}

/// Reads the header at the front of a response frame (without its size). Returns the correlation id.
pub fn decode_response_header(
    reader: &mut Reader,
    api_key: ApiKey,
    version: i16,
) -> Result<i32, DecodeError> {
    let header = messages::ResponseHeader::decode(reader, api_key.response_header_version(version))?;
    Ok(header.correlation_id)
}

/// A whole request frame, size included.
pub fn encode_request<M: Message>(
    api_key: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: Option<&Text>,
    message: &M,
) -> Result<Chunks, EncodeError> {
    debug_assert_eq!(M::KEY, Some(api_key as i16));
    let mut writer = Writer::new_frame();
    let header = messages::RequestHeader {
        request_api_key: api_key as i16,
        request_api_version: version,
        correlation_id,
        client_id: client_id.cloned(),
    };
    header.encode(&mut writer, api_key.request_header_version(version))?;
    message.encode(&mut writer, version)?;
    writer.finish_frame()
}

/// A whole response frame, size included.
pub fn encode_response<M: Message>(
    correlation_id: i32,
    api_key: ApiKey,
    version: i16,
    message: &M,
) -> Result<Chunks, EncodeError> {
    debug_assert_eq!(M::KEY, Some(api_key as i16));
    let mut writer = Writer::new_frame();
    let header = messages::ResponseHeader { correlation_id };
    header.encode(&mut writer, api_key.response_header_version(version))?;
    message.encode(&mut writer, version)?;
    writer.finish_frame()
}
