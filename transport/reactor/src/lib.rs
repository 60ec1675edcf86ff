//! A reactor thread: its ring, op slab, timers and mailbox.
