//! Sleeps with microsecond precision. tokio's timers count in milliseconds, which would show in every latency.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::clock::Nanos;

/// A `timerfd` of the task that owns it.
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Must be called inside a runtime.
    pub fn new() -> io::Result<Timer> {
        let descriptor =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // The function is deprecated for descriptors that other code may close. This descriptor is owned. The successor
        // of the function is unsafe.
        #[allow(deprecated, reason = "sound for an owned descriptor")]
        let timer = AsyncFd::new(descriptor)?;
        Ok(Timer(timer))
    }

    pub async fn sleep(&self, length: Nanos) -> io::Result<()> {
        const SECOND: Nanos = 1_000_000_000;
        // Zero would disarm the timer.
        let length = length.max(1);
        let value = Timespec {
            tv_sec: i64::try_from(length / SECOND).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(length % SECOND).expect("below a second"),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|descriptor| Ok(rustix::io::read(descriptor.get_ref(), &mut [0; 8])?));
            match read {
                Ok(read) => return read.map(|_| ()),
                // The readiness comes from an earlier sleep.
                Err(_) => continue,
            }
        }
    }
}
