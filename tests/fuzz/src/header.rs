//! The 32-byte header, and the body behind it.
//!
//! The bytes are read as they are, and once more with their checksum made right: what is behind the checksum is looked at too.

use wire::{Flags, HEADER_LEN, Header, MAGIC, MAX_HANDSHAKE_BODY, MAX_PAYLOAD, Op, VERSION};

/// Where the header's checksum is: the field before the body.
const CRC_AT: usize = HEADER_LEN - 4;

pub(crate) fn target(data: &[u8]) {
    parse(data);
    if let Some(sealed) = sealed(data) {
        parse(&sealed);
    }
}

fn parse(bytes: &[u8]) {
    let Ok(Some((header, body))) = Header::parse(bytes) else { return };
    assert!(body.len() <= MAX_HANDSHAKE_BODY && header.payload_len <= MAX_PAYLOAD);
    let len = HEADER_LEN + body.len();
    let mut again = vec![0; len];
    assert_eq!(header.put(body, &mut again), len);
    assert_eq!(again, bytes[..len], "what was parsed is written as it was read");
    for cut in [1, CRC_AT, HEADER_LEN, len - 1] {
        assert_eq!(Header::parse(&bytes[..cut.min(len - 1)]), Ok(None), "{cut} bytes of it");
    }
}

/// The same with magic, version and checksum made right; nothing where it is too short for that.
pub(crate) fn sealed(data: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = data.to_vec();
    let head = bytes.get_mut(..HEADER_LEN)?;
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    let body = usize::from(u16::from_le_bytes([head[16], head[17]]));
    let end = (HEADER_LEN + body).min(bytes.len());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[HEADER_LEN..end]);
    bytes[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
    Some(bytes)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let frame = |header: Header, body: &[u8]| {
        let mut bytes = vec![0; HEADER_LEN + body.len()];
        header.put(body, &mut bytes);
        bytes
    };
    let data = Header { credits: 3, payload_len: 4096, payload_crc: 7, ..Header::new(Op(17), Flags::NONE, 1, 2) };
    vec![
        frame(Header::new(Op::PING, Flags::NONE, 0, 0), &[]),
        frame(Header::new(Op::GOODBYE, Flags::NONE, 0, 0), &[1, 0]),
        frame(Header::new(Op::HELLO, Flags::NONE, 0, 0), &[5; 200]),
        frame(Header::new(Op::REPLY, Flags::REPLY, 9, 9), &[0; 8]),
        frame(data, &[1; 48]),
    ]
}
