//! Warmed up, an arena takes and gives back without the heap.

use memory::{Arena, Class};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_warm_arena_never_touches_the_heap() {
    let arena = Arena::small(16 << 20);
    let lens = [1, 5000, 4096, 70_000, 1 << 20, 16_384];
    let mut held: [Option<memory::Reads>; 6] = Default::default();
    let mut round = || {
        for (slot, len) in held.iter_mut().zip(lens) {
            let reads = arena.take(len, Class::Client).unwrap().filled();
            drop(reads.share());
            *slot = Some(reads);
        }
    };
    round();
    round();
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
