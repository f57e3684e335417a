//! The memory cost of hostile frames: no decoder may take more than a fixed multiple of the frame's length, nor hold
//! memory after it has failed.
//!
//! The counting allocator needs `unsafe`; it only forwards to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use wire::reader::{BUDGET_BYTES_MIN, BUDGET_PER_FRAME_BYTE};
use wire::{Bytes, Message, Reader, messages};

struct Counting;

// Of each thread alone: the test's harness allocates on another at any time. Without a destructor, so that an allocator
// may use them.
thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` holds at its peak, and bytes that it still holds at its end.
fn cost(work: impl FnOnce()) -> (usize, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    let bytes = |end: isize| usize::try_from(end - before).unwrap_or(0);
    (bytes(PEAK.get()), bytes(LIVE.get()))
}

/// The bytes that a decoder may hold for a frame of `len` bytes: the budget for elements, and as much again for the
/// encoder behind `recode` and for reference counts.
fn allowance(len: usize) -> usize {
    2 * BUDGET_BYTES_MIN.max(len * BUDGET_PER_FRAME_BYTE)
}

/// Frames that claim as much as they can: lengths of 2^31, a million elements, and as many elements as there are
/// bytes, in both encodings.
fn hostile_frames() -> Vec<Bytes> {
    let mut frames = Vec::new();
    for len in [16usize, 400, 5_000] {
        let small = u32::try_from(len / 2).expect("frames here are short");
        for word in [0x7fff_ffff_u32, 0xffff_fffe, 1_000_000, small, 1, 2] {
            frames.push(Bytes::from(word.to_be_bytes().repeat(len / 4)));
        }
        for byte in [0u8, 1, 2, 3, 0x7f, 0x80, 0xff] {
            frames.push(Bytes::from(vec![byte; len]));
        }
        for varint in
            [&b"\xff\xff\xff\xff\x07"[..], b"\xff\xff\xff\xff\x0f", b"\xc1\x84\x3d", b"\x80\x02", b"\x90\x4e"]
        {
            frames.push(Bytes::from(varint.repeat(len / varint.len())));
        }
        let mut state = 99u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0] % 5
        };
        frames.extend((0..5).map(|_| Bytes::from((0..len).map(|_| next()).collect::<Vec<u8>>())));
    }
    frames
}

#[test]
fn memory_is_bounded_by_the_frames_length() {
    let frames = hostile_frames();
    for info in messages::MESSAGES {
        for version in info.version_min..=info.version_max {
            for frame in &frames {
                // Cloned before the count begins, because the first clone of a frame allocates its reference count.
                let input = frame.clone();
                let (peak, kept) = cost(|| {
                    let _ = (info.recode)(&mut Reader::new(input), version);
                });
                let allowed = allowance(frame.len());
                assert!(peak <= allowed, "{} v{version} took {peak} of {allowed} bytes", info.name);
                assert_eq!(kept, 0, "{} v{version} leaks", info.name);
            }
        }
    }

    let claim = Bytes::from_static(b"\x7f\xff\xff\xff");
    let (peak, _) = cost(|| assert!(messages::MetadataRequest::decode(&mut Reader::new(claim), 0).is_err()));
    assert!(peak < 1024, "two billion topics took {peak} bytes");

    let topics = 100_000u32;
    let mut honest = topics.to_be_bytes().to_vec();
    honest.extend((0..topics).flat_map(|_| [0, 1, b'a']));
    let frame = Bytes::from(honest);
    let (peak, _) = cost(|| {
        let request = messages::MetadataRequest::decode(&mut Reader::new(frame.clone()), 0).unwrap();
        assert_eq!(request.topics.map(|topics| topics.len()), Some(100_000));
    });
    assert!(
        peak <= frame.len() * BUDGET_PER_FRAME_BYTE,
        "an honest frame of {} bytes took {peak}",
        frame.len()
    );
}
