//! A cursor over received bytes: every read is checked against what is really there.

use crate::HandshakeError;

/// What is left of a message.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], HandshakeError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(HandshakeError::Short)?;
        self.0 = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(HandshakeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, HandshakeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, HandshakeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, HandshakeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, HandshakeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reserved bytes: zero now, so that they can mean something later.
    pub(crate) fn zeros(&mut self, n: usize) -> Result<(), HandshakeError> {
        if self.take(n)?.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(HandshakeError::Reserved) }
    }

    /// The message must end here.
    pub(crate) fn end(self) -> Result<(), HandshakeError> {
        if self.0.is_empty() { Ok(()) } else { Err(HandshakeError::Trailing) }
    }
}
