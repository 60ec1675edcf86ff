//! What a block may read as (rule 24): a write may take effect more than once while it is pending, and never after.
//!
//! Of one block: the set of (content, writes that took effect at least once) that fit what clients have seen so far.
//! A completion keeps those in which its write took effect; a read keeps those with the content that it returned.

/// Bit `content * 4 + effects`: content 0 (never written), 1 or 2; effects: bit `write - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Possible {
    set: u16,
    pending: u8,
}

impl Possible {
    pub(crate) fn new() -> Self {
        Self { set: 1, pending: 0 }
    }
    pub(crate) fn issue(&mut self, write: u8) {
        self.pending |= 1 << (write - 1);
        self.close();
    }
    pub(crate) fn complete(&mut self, write: u8) {
        let effect = 1 << (write - 1);
        self.pending &= !effect;
        self.retain(|_, effects| effects & effect != 0);
    }
    /// A read returned `content`.
    pub(crate) fn read(&mut self, content: u8) {
        self.retain(|c, _| c == content);
        self.close();
    }
    pub(crate) fn allows(self, content: u8) -> bool {
        self.set >> (content * 4) & 0xf != 0
    }
    fn retain(&mut self, keep: impl Fn(u8, u8) -> bool) {
        for at in 0..12 {
            if !keep(at / 4, at % 4) {
                self.set &= !(1 << at);
            }
        }
    }
    fn close(&mut self) {
        loop {
            let before = self.set;
            for at in (0..12).filter(|at| before >> at & 1 != 0) {
                for write in (1..=2).filter(|w| self.pending >> (w - 1) & 1 != 0) {
                    self.set |= 1 << (write * 4 + ((at % 4) | (1 << (write - 1))));
                }
            }
            if self.set == before {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Possible;

    #[test]
    fn a_pending_write_may_take_effect_twice_and_a_completed_one_never_again() {
        let mut block = Possible::new();
        block.issue(1);
        block.issue(2);
        assert!(block.allows(0) && block.allows(1) && block.allows(2));
        block.complete(2);
        assert!(block.allows(1) && block.allows(2) && !block.allows(0));
        block.read(2);
        assert!(block.allows(1), "1 is pending, and may take effect again");
        block.complete(1);
        let again = block;
        assert!(again.allows(1) && again.allows(2), "1 was before 2, or after it");
        block.read(1);
        assert!(!block.allows(2));
    }
}
