//! Taking, sharing, giving back and reaping do not allocate once the places are there.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use refcount::atomic;

/// The system's allocator, counting what this thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged; the count is a constant-initialised thread local and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the ones `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Iocb;

refcount::reasons! {
    mod why for Iocb as "iocb" { Request "request", Posted "posted" }
}

macro_rules! steady_state_of {
    ($table:expr) => {
        let table = $table;
        let before = ALLOCATIONS.get();
        for _ in 0..1000 {
            let requests = [(); 8].map(|()| table.insert::<why::Request>(Iocb));
            drop(requests.each_ref().map(|request| request.share::<why::Posted>()));
            drop(requests.map(|request| request.rename::<why::Posted>()));
            while table.reap().is_some() {}
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    };
}

#[test]
fn plain_holds_do_not_allocate() {
    steady_state_of!(refcount::Table::with_capacity(8));
}

#[test]
fn atomic_holds_do_not_allocate() {
    steady_state_of!(atomic::Table::with_capacity(8));
}

#[test]
fn a_table_that_grew_keeps_its_places() {
    let table = refcount::Table::new();
    drop([(); 8].map(|()| table.insert::<why::Request>(Iocb)));
    while table.reap().is_some() {}
    steady_state_of!(table);
}
