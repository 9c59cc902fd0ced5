//! The system's allocator, and the bytes that it has given out.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are live.
pub(crate) fn live() -> usize {
    LIVE.load(Relaxed)
}

/// Size of an allocation, with the allocator's own record.
fn size(bytes: usize) -> usize {
    transport::memory::allocation(bytes)
}

#[expect(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(size(layout.size()), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(size(layout.size()), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(size(layout.size()), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // What is new comes first, so that the sum never falls below what is live.
        LIVE.fetch_add(size(new), Relaxed);
        LIVE.fetch_sub(size(layout.size()), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
