//! An input taken apart: what is missing at its end reads as zeros, so that every input means something.

/// What is left of an input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, as many of them as there are.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        head
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let there = self.bytes(N);
        bytes[..there.len()].copy_from_slice(there);
        bytes
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }
}
