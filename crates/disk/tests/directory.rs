//! The real engines on a directory of a disk, and on a memory file system.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::io::{ErrorKind, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::{
    AlignedBuffer, BufferPool, Disk, Engine, File, Finished, Queue, SECTOR, lock_directory, open_directory,
    scratch_directory,
};
use tempfile::TempDir;

const ENGINES: [Engine; 3] = [Engine::Plain, Engine::Direct, Engine::Uring];

fn filled(sectors: usize, value: u8) -> Bytes {
    let mut buffer = AlignedBuffer::zeroed(sectors * SECTOR);
    buffer.fill(value);
    buffer.into_bytes()
}

#[test]
fn a_new_file_has_its_blocks_and_a_sparse_one_has_not() {
    with_engines(|disk| {
        let file = disk.create("0000000001.log", 1 << 20).unwrap();
        // Some file systems cannot reserve blocks. After a write, the blocks are there.
        file.write_at(0, &AlignedBuffer::zeroed(1 << 20)).unwrap();
        file.sync().unwrap();
        assert!(file.is_allocated());
    });
    let directory = TempDir::new().unwrap();
    let disk = open_directory(directory.path(), Engine::Plain).unwrap();
    std::fs::File::create(directory.path().join("0000000002.log")).unwrap().set_len(1 << 20).unwrap();
    assert!(!disk.open("0000000002.log").unwrap().is_allocated());
}

/// Runs a test with each engine that this machine has.
fn with_engines(test: impl Fn(&dyn Disk)) {
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        match open_directory(directory.path(), engine) {
            Ok(disk) => {
                assert_eq!(disk.engine(), engine);
                test(&disk);
            }
            Err(error) => {
                assert_ne!(engine, Engine::Plain, "the plain engine works everywhere: {error}");
                eprintln!("not tested: {error}");
            }
        }
    }
}

fn finish_all(queue: &mut dyn Queue) -> Vec<Finished> {
    let mut finished = Vec::new();
    while queue.in_flight() > 0 {
        let before = finished.len();
        queue.wait(true, None, &mut finished).unwrap();
        assert!(finished.len() > before);
    }
    finished
}

fn read(file: &Arc<dyn File>, position: u64, length: usize) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(length);
    file.read_at(position, &mut bytes).unwrap();
    bytes
}

#[test]
fn files_are_created_listed_renamed_and_removed() {
    with_engines(|disk| {
        let file = disk.create("a", 1 << 20).unwrap();
        assert_eq!(file.length(), 1 << 20);
        assert!(read(&file, 0, 1 << 20).iter().all(|byte| *byte == 0));
        assert_eq!(disk.create("a", 4096).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(disk.open("b").unwrap_err().kind(), ErrorKind::NotFound);
        disk.create("b", 4096).unwrap();
        disk.rename("a", "b").unwrap();
        assert_eq!(disk.list().unwrap(), ["b"]);
        assert_eq!(disk.open("b").unwrap().length(), 1 << 20);
        assert!(disk.free_bytes().unwrap() > 1 << 20);
        assert!(disk.capacity_bytes().unwrap() > disk.free_bytes().unwrap());
        disk.remove("b").unwrap();
        assert!(disk.list().unwrap().is_empty());
        assert_eq!(disk.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn files_become_longer_and_shorter_and_keep_what_is_in_both() {
    with_engines(|disk| {
        let file = disk.create("a", 8192).unwrap();
        file.write_at(0, &filled(2, 1)).unwrap();
        drop(file);
        let file = disk.lengthen("a", 16384).unwrap();
        assert_eq!(file.length(), 16384);
        file.write_at(8192, &filled(1, 2)).unwrap();
        file.sync().unwrap();
        drop(file);
        let file = disk.shorten("a", 12288).unwrap();
        assert_eq!(disk.open("a").unwrap().length(), 12288);
        assert_eq!(read(&file, 0, 8192)[..], filled(2, 1)[..]);
        assert_eq!(read(&file, 8192, 4096)[..], filled(1, 2)[..]);
        let file = disk.lengthen("a", 16384).unwrap();
        assert_eq!(read(&file, 12288, 4096)[..], filled(1, 0)[..]);
        let free = disk.free_bytes().unwrap();
        let error = disk.lengthen("a", (free * 2).next_multiple_of(4096)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    });
}

#[test]
fn a_file_that_does_not_fit_leaves_nothing_behind() {
    with_engines(|disk| {
        let free = disk.free_bytes().unwrap();
        let error = disk.create("a", (free * 2).next_multiple_of(4096)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(disk.list().unwrap().is_empty());
    });
}

#[test]
fn blocking_operations_take_aligned_and_unaligned_memory() {
    with_engines(|disk| {
        let file = disk.create("a", 4 << 20).unwrap();
        let mut memory = vec![0u8; (3 << 20) + 1];
        let start = usize::from((memory.as_ptr() as usize).is_multiple_of(SECTOR));
        let bytes = &mut memory[start..start + (2 << 20) + SECTOR];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = (place / 1000) as u8;
        }
        let written = bytes.to_vec();
        file.write_at(4096, bytes).unwrap();
        file.sync().unwrap();
        bytes.fill(0);
        file.read_at(4096, bytes).unwrap();
        assert!(written == bytes);
        assert!(written[..] == read(&file, 4096, written.len())[..]);
        assert_eq!(file.read_at(4 << 20, &mut [0; SECTOR]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn one_read_fills_several_parts_whatever_their_memory() {
    with_engines(|disk| {
        let file = disk.create("a", 1 << 20).unwrap();
        let mut contents = AlignedBuffer::zeroed(1 << 20);
        for (place, byte) in contents.iter_mut().enumerate() {
            *byte = (place / 1000) as u8;
        }
        file.write_at(0, &contents).unwrap();
        for shift in [0, 1] {
            let mut first = AlignedBuffer::zeroed(3 * SECTOR);
            let mut second = AlignedBuffer::zeroed(2 * SECTOR + shift);
            let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second[shift..])];
            file.read_vectored_at(8192, &mut parts).unwrap();
            assert!(first[..] == contents[8192..8192 + 3 * SECTOR], "shift {shift}");
            assert!(second[shift..] == contents[8192 + 3 * SECTOR..8192 + 5 * SECTOR], "shift {shift}");
            let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second[shift..])];
            let error = file.read_vectored_at((1 << 20) - 4096, &mut parts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    });
}

#[test]
fn many_writes_in_flight_all_land() {
    with_engines(|disk| {
        let file = disk.create("a", 8 << 20).unwrap();
        let pool = BufferPool::new(64 << 10, 4);
        let mut queue = disk.queue(16).unwrap();
        let mut finished = Vec::new();
        for token in 0..128u64 {
            while queue.in_flight() == 16 {
                queue.wait(true, Some(Duration::from_secs(20)), &mut finished).unwrap();
            }
            let mut buffer = pool.take();
            buffer.unfilled().fill(token as u8 + 1);
            let data = buffer.freeze(64 << 10);
            queue.write(token, &file, (127 - token) << 16, data, token % 4 == 0);
            queue.wait(false, None, &mut finished).unwrap();
        }
        finished.extend(finish_all(&mut *queue));
        queue.sync(1000, &file);
        finished.extend(finish_all(&mut *queue));
        let mut tokens: Vec<u64> = finished.iter().map(|finished| finished.token).collect();
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq((0..128).chain([1000])));
        assert!(finished.iter().all(|finished| finished.result.is_ok()));
        for token in 0..128u64 {
            let bytes = read(&file, (127 - token) << 16, 64 << 10);
            assert!(bytes.iter().all(|byte| *byte == token as u8 + 1), "token {token}");
        }
        assert_eq!(pool.usage().out_bytes, 0, "finished operations hold no memory");
    });
}

#[test]
fn a_queue_may_be_made_in_one_thread_and_used_in_another() {
    with_engines(|disk| {
        let file = disk.create("a", 4096).unwrap();
        let mut queue = disk.queue(1).unwrap();
        queue.write(7, &file, 0, filled(1, 7), true);
        let thread = std::thread::spawn(move || finish_all(&mut *queue).pop().unwrap());
        let finished = thread.join().unwrap();
        assert_eq!((finished.token, finished.result.unwrap()), (7, ()));
        assert_eq!(read(&file, 0, 4096)[4095], 7);
    });
}

#[test]
fn dropping_a_queue_waits_for_its_operations() {
    with_engines(|disk| {
        let file = disk.create("a", 1 << 20).unwrap();
        let pool = BufferPool::new(64 << 10, 16);
        for round in 1..20u8 {
            let mut queue = disk.queue(16).unwrap();
            for place in 0..16u64 {
                let mut buffer = pool.take();
                buffer.unfilled().fill(round);
                queue.write(place, &file, place << 16, buffer.freeze(64 << 10), false);
            }
            if round % 2 == 0 {
                queue.wait(false, None, &mut Vec::new()).unwrap();
                queue.wait(true, Some(Duration::ZERO), &mut Vec::new()).unwrap();
            }
            drop(queue);
            assert_eq!(pool.usage().out_bytes, 0);
            assert!(read(&file, 0, 1 << 20).iter().all(|byte| *byte == round), "round {round}");
        }
    });
}

#[test]
fn timeout_bounds_a_wait() {
    with_engines(|disk| {
        let mut queue = disk.queue(1).unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            queue.wait(true, Some(Duration::from_millis(20)), &mut Vec::new()).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(20));
            assert!(start.elapsed() < Duration::from_secs(5));
        }
        let start = Instant::now();
        queue.wait(true, Some(Duration::ZERO), &mut Vec::new()).unwrap();
        queue.wait(false, None, &mut Vec::new()).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_wake_up_before_the_wait_is_kept_for_it_and_only_for_it() {
    with_engines(|disk| {
        let mut queue = disk.queue(1).unwrap();
        let waker = queue.waker();
        for _ in 0..100 {
            waker.wake();
            waker.wake();
            queue.wait(false, None, &mut Vec::new()).unwrap();
            let start = Instant::now();
            queue.wait(true, Some(Duration::from_secs(20)), &mut Vec::new()).unwrap();
            assert!(start.elapsed() < Duration::from_secs(10));
            let start = Instant::now();
            queue.wait(true, Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(1), "one wake-up ends one wait");
        }
    });
}

/// Wakes from another thread in lock step. `between` runs before each wait.
fn wake_many_times(queue: &mut dyn Queue, rounds: u64, mut between: impl FnMut(&mut dyn Queue, u64)) {
    let (sent, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (waker, counts) = (queue.waker(), (sent.clone(), seen.clone()));
    let thread = std::thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 1..=rounds {
            for _ in 0..rng.u32(..2000) {
                std::hint::spin_loop();
            }
            counts.0.store(round, Ordering::Release);
            waker.wake();
            while counts.1.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        }
    });
    let mut finished = Vec::new();
    let mut round = 0;
    while round < rounds {
        between(queue, round);
        let start = Instant::now();
        queue.wait(true, Some(Duration::from_secs(20)), &mut finished).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "a wake-up was lost in round {round}");
        let now = sent.load(Ordering::Acquire);
        assert!(now > round || !finished.is_empty(), "woken for nothing in round {round}");
        round = now;
        seen.store(round, Ordering::Release);
    }
    thread.join().unwrap();
    finished.extend(finish_all(queue));
    assert!(finished.iter().all(|finished| finished.result.is_ok()));
}

#[test]
fn no_wake_up_is_lost() {
    with_engines(|disk| {
        let mut queue = disk.queue(1).unwrap();
        wake_many_times(&mut *queue, 20_000, |_, _| ());
    });
}

#[test]
fn no_wake_up_is_lost_while_writes_finish() {
    with_engines(|disk| {
        let file = disk.create("a", 1 << 20).unwrap();
        file.write_at(0, &filled(256, 1)).unwrap();
        let data = filled(1, 3);
        let mut queue = disk.queue(4).unwrap();
        wake_many_times(&mut *queue, 5_000, |queue, round| {
            if queue.in_flight() < 4 {
                queue.write(round, &file, round % 256 * 4096, data.clone(), false);
            }
        });
    });
}

#[test]
fn list_leaves_out_what_is_not_data() {
    let directory = TempDir::new().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join(".hidden"), "x").unwrap();
    let _lock = lock_directory(directory.path()).unwrap();
    let disk = open_directory(directory.path(), Engine::Auto).unwrap();
    disk.create("data", 4096).unwrap();
    assert_eq!(disk.list().unwrap(), ["data"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4, "probing leaves nothing behind");
}

#[test]
fn a_directory_has_one_lock() {
    let directory = TempDir::new().unwrap();
    let lock = lock_directory(directory.path()).unwrap();
    assert_eq!(lock_directory(directory.path()).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(lock);
    lock_directory(directory.path()).unwrap();
    let noted = std::fs::read_to_string(directory.path().join("lock")).unwrap();
    assert_eq!(noted.trim(), std::process::id().to_string());
}

#[test]
fn opening_what_is_not_a_directory_fails() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file");
    assert_eq!(open_directory(&path, Engine::Auto).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::write(&path, "x").unwrap();
    assert_eq!(open_directory(&path, Engine::Auto).unwrap_err().kind(), ErrorKind::NotADirectory);
}

#[test]
fn a_memory_file_system_works_with_auto_and_plain() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    for engine in [Engine::Auto, Engine::Plain] {
        let directory = TempDir::new_in("/dev/shm").unwrap();
        let disk = open_directory(directory.path(), engine).unwrap();
        eprintln!("{engine:?} on /dev/shm is {:?}", disk.engine());
        let file = disk.create("a", 1 << 20).unwrap();
        let mut queue = disk.queue(4).unwrap();
        for place in 0..4u64 {
            queue.write(place, &file, place << 16, filled(16, place as u8 + 1), place % 2 == 0);
        }
        assert!(finish_all(&mut *queue).iter().all(|finished| finished.result.is_ok()));
        queue.sync(4, &file);
        assert!(finish_all(&mut *queue)[0].result.is_ok());
        for place in 0..4u64 {
            assert!(read(&file, place << 16, 1 << 16).iter().all(|byte| *byte == place as u8 + 1));
        }
        disk.rename("a", "b").unwrap();
        disk.remove("b").unwrap();
    }
}

#[test]
fn scratch_files_are_read_as_they_were_written_and_synced_by_nobody() {
    for engine in [Engine::Auto, Engine::Plain] {
        let directory = TempDir::new().unwrap();
        let disk = scratch_directory(directory.path(), engine).unwrap();
        let file = disk.create("a", 1 << 20).unwrap();
        assert!(!file.wants_zeros(), "nobody waits for a sync of it");
        let mut queue = disk.queue(4).unwrap();
        for place in 0..3u64 {
            queue.write(place, &file, place << 16, filled(16, place as u8 + 1), place % 2 == 0);
        }
        queue.sync(3, &file);
        let finished = finish_all(&mut *queue);
        assert!(
            finished.len() == 4 && finished.iter().all(|finished| finished.result.is_ok()),
            "{finished:?}"
        );
        // An open of its own sees what is in the page cache.
        let again = disk.open("a").unwrap();
        for place in 0..3u64 {
            assert!(read(&again, place << 16, 1 << 16).iter().all(|byte| *byte == place as u8 + 1));
        }
    }
}

#[test]
#[should_panic(expected = "operations in flight")]
fn more_than_depth_in_flight_panics() {
    let directory = TempDir::new().unwrap();
    let disk = open_directory(directory.path(), Engine::Auto).unwrap();
    let file = disk.create("a", 4096).unwrap();
    let mut queue = disk.queue(1).unwrap();
    queue.sync(1, &file);
    queue.sync(2, &file);
}
