//! An allocator that counts.
//!
//! Counting is off in timed slices, where the shared counter would cost the contestants with many allocations more than
//! the others.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator. Counts calls of `alloc`, `alloc_zeroed` and `realloc` while counting is on.
pub struct Counting;

/// Turns counting on or off.
pub fn count(is_on: bool) {
    IS_COUNTING.store(is_on, Relaxed);
}

/// How many allocations have been counted so far.
pub fn counted() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

fn note() {
    if IS_COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise about `layout` is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise about `layout` is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: `at` came from the system's allocator with this layout, as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}
