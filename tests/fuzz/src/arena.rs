//! The memory that sessions and stores take their buffers from: made once, since that asks the system how its memory lies.

use memory::Arena;

/// What one input may take of it at most.
const BYTES: usize = 16 << 20;

thread_local! {
    static ARENA: Arena = Arena::small(BYTES);
}

/// The same for every input; whoever takes it leaves nothing in it.
pub(crate) fn shared() -> Arena {
    ARENA.with(Clone::clone)
}
