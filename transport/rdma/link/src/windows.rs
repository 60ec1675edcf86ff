//! The windows of a connection: which are free, and the key of each, which is another one at every use.

/// A window and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) index: u8,
    pub(crate) key: u32,
}

#[derive(Debug)]
pub(crate) struct Windows {
    keys: Vec<u32>,
    free: Vec<u8>,
}

impl Windows {
    /// With the keys that the device gave them.
    pub(crate) fn new(keys: Vec<u32>) -> Self {
        let free = (0..).take(keys.len()).collect();
        Self { keys, free }
    }

    /// One that nobody looks through, under its next key: the low byte is ours to count, so a key is not valid again for 255 uses.
    pub(crate) fn take(&mut self) -> Option<Window> {
        let index = self.free.pop()?;
        let key = self.keys.get_mut(usize::from(index))?;
        *key = *key & !0xff | (*key & 0xff).wrapping_add(1) & 0xff;
        Some(Window { index, key: *key })
    }

    /// The same for a part that is sent: the last one is kept for a receive, of which there is one at a time. A peer that has no memory to
    /// read what it was lent may be waiting to get rid of what it wants to give.
    pub(crate) fn take_for_send(&mut self) -> Option<Window> {
        if self.free.len() > 1 { self.take() } else { None }
    }

    /// It is shut.
    pub(crate) fn give(&mut self, index: u8) {
        debug_assert!(!self.free.contains(&index), "a window is shut once");
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_used_again_at_once() {
        let mut windows = Windows::new(vec![0x12ff]);
        let first = windows.take().unwrap();
        assert_eq!((first.key, windows.take()), (0x1200, None));
        windows.give(first.index);
        assert_eq!(windows.take().unwrap().key, 0x1201);
    }
}
