//! How much memory one input may make a parser ask for.
//!
//! The allocator of every program of this package counts what the thread under test holds, and has no more above the limit: what asks
//! for it nevertheless ends the process, as it does where memory is really short.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread may still allocate; below zero is no limit.
    static LEFT: Cell<isize> = const { Cell::new(isize::MIN) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn take(bytes: usize) -> bool {
    LEFT.with(|left| match (left.get(), isize::try_from(bytes)) {
        (now, _) if now < 0 => true,
        (now, Ok(bytes)) if bytes <= now => {
            left.set(now - bytes);
            true
        }
        _ => false,
    })
}

/// What was there before the limit may be given back under it: then there is more than the limit, for what is there no longer.
fn give(bytes: usize) {
    LEFT.with(|left| {
        if left.get() >= 0 {
            left.set(left.get().saturating_add_unsigned(bytes));
        }
    });
}

// SAFETY: every request is the system allocator's to answer, unchanged, or refused with a null pointer; counting touches a plain cell
// of the thread, which needs no allocation and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller's promise about the pointer and its layout is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        give(layout.size());
        // SAFETY: the caller's promise about the pointer, its layout and the new size is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs something that may hold so many bytes more than there are now.
pub(crate) fn limited<T>(bytes: usize, run: impl FnOnce() -> T) -> T {
    /// Ends the limit, whatever ends the run.
    struct Unlimited;
    impl Drop for Unlimited {
        fn drop(&mut self) {
            LEFT.with(|left| left.set(isize::MIN));
        }
    }
    let _until_the_end = Unlimited;
    LEFT.with(|left| left.set(isize::try_from(bytes).unwrap_or(isize::MAX)));
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can_have(bytes: usize) -> bool {
        Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
    }

    #[test]
    fn there_is_as_much_as_the_limit_and_what_is_given_back_is_there_again() {
        limited(1 << 20, || {
            for _ in 0..10 {
                assert!(can_have(1 << 20));
            }
            assert!(!can_have((1 << 20) + 1));
            let held: Vec<u8> = Vec::with_capacity(1 << 19);
            assert!(!can_have(1 << 20) && can_have(1 << 19));
            drop(held);
            assert!(can_have(1 << 20));
        });
        assert!(can_have(2 << 20), "no limit without one");
    }
}
