//! Measures writes through each engine into already written blocks: `latency DIRECTORY [KIB] [COUNT] [DEPTH]`.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use disk::{AlignedBuffer, Disk, Engine, open_directory};

const FILE_BYTES: u64 = 64 << 20;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize, default: usize| {
        arguments.get(place).and_then(|argument| argument.parse().ok()).unwrap_or(default)
    };
    let directory = Path::new(arguments.get(1).map_or(".", String::as_str));
    let (bytes, count, depth) = (number(2, 64) << 10, number(3, 500), number(4, 1));
    for engine in [Engine::Uring, Engine::Direct, Engine::Plain].repeat(2) {
        let disk = open_directory(directory, engine)?;
        for how in [How::Durable, How::ThenSync, How::NotDurable] {
            let mut times = measure(&disk, bytes, count, depth, how)?;
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
            println!(
                "{engine:?} {how:?} {} KiB depth {depth}: p50 {} us, p99 {} us",
                bytes >> 10,
                at(50),
                at(99)
            );
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Durable,
    ThenSync,
    NotDurable,
}

fn measure(disk: &dyn Disk, bytes: usize, count: usize, depth: usize, how: How) -> io::Result<Vec<Duration>> {
    let file = disk.create("latency", FILE_BYTES)?;
    let zeros = AlignedBuffer::zeroed(1 << 20);
    for position in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write_at(position, &zeros)?;
    }
    file.sync()?;
    let data = AlignedBuffer::zeroed(bytes).into_bytes();
    let mut queue = disk.queue(depth)?;
    let mut started = vec![Instant::now(); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let (mut times, mut finished, mut position) = (Vec::new(), Vec::new(), 0);
    while times.len() < count {
        while let Some(place) = free.pop() {
            started[place] = Instant::now();
            queue.write(place as u64, &file, position, data.clone(), how == How::Durable);
            position = (position + bytes as u64) % (FILE_BYTES - bytes as u64).next_multiple_of(4096);
        }
        queue.wait(true, None, &mut finished)?;
        for operation in finished.drain(..) {
            operation.result?;
            let place = usize::try_from(operation.token).map_err(io::Error::other)?;
            if how == How::ThenSync {
                file.sync()?;
            }
            times.push(started[place].elapsed());
            free.push(place);
        }
    }
    drop(queue);
    disk.remove("latency")?;
    Ok(times)
}
