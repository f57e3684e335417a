//! The processes of a contender and their data.
//!
//! Dropping a [`Running`] contender stops it and removes its data. It also ends with this process (see [`child`]).

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::child;
use crate::contender::Contender;
use crate::interrupt;
use crate::usage::ServerProcess;

/// Interval at which the log of a starting server is read.
pub const START_POLL: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A contender that runs: one server, or the processes of a cluster.
#[derive(Debug)]
pub struct Running {
    contender: Contender,
    /// Hosts and ports for clients, separated by commas.
    pub bootstrap: String,
    /// Further settings for the server's clients.
    pub client_properties: Vec<(String, String)>,
    /// Its version and settings, for the record. The paths of certificates are left out.
    pub setup: Vec<(String, String)>,
    processes: Vec<Process>,
    // This field is dropped after the processes are stopped. Dropping it removes the data.
    data: DataDirectory,
}

/// A process and its log.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// The load kills it.
    is_victim: bool,
}

impl Running {
    /// A contender without a process yet, and a fresh data directory below `data_parent`.
    pub fn begin(contender: Contender, data_parent: &Path, keep_data: bool) -> anyhow::Result<Running> {
        let data = DataDirectory::create(data_parent, contender.name(), keep_data)?;
        Ok(Running {
            contender,
            bootstrap: String::new(),
            client_properties: Vec::new(),
            setup: Vec::new(),
            processes: Vec::new(),
            data,
        })
    }

    /// Starts the process `name`, whose log goes to a file of that name in `directory`.
    pub fn spawn(&mut self, name: &str, mut command: Command, directory: &Path) -> anyhow::Result<()> {
        let log = directory.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("{command:?} cannot be run"))?;
        self.processes.push(Process { name: name.to_owned(), child, log, is_victim: false });
        Ok(())
    }

    /// Waits until the log of the process `name` tells `ready` an address, and something listens there. Returns it.
    pub fn until_ready(
        &mut self,
        name: &str,
        deadline: Instant,
        ready: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<String> {
        let log = self.log(name).to_owned();
        let mut address = None;
        self.until(name, deadline, || {
            let text = fs::read(&log)?;
            address = ready(&String::from_utf8_lossy(&text));
            address.as_deref().map_or(Ok(false), connects)
        })?;
        address.context("it was just there")
    }

    /// Waits until `is_so`, on account of the process `name`.
    pub fn until(
        &mut self,
        name: &str,
        deadline: Instant,
        mut is_so: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            self.check()?;
            if is_so()? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let seconds = deadline.saturating_duration_since(begun).as_secs_f64();
                bail!("it does not serve after {seconds:.1} s; {}", child::last_lines(self.log(name)));
            }
            thread::sleep(START_POLL);
        }
    }

    /// The log of the process `name`.
    pub fn log(&self, name: &str) -> &Path {
        let process = self.processes.iter().find(|process| process.name == name);
        &process.expect("only processes that were started are asked for").log
    }

    /// The kind of server.
    pub fn contender(&self) -> Contender {
        self.contender
    }

    /// The id of the process that was started last, which may end from now on.
    pub fn victim(&mut self) -> Option<u32> {
        let process = self.processes.last_mut()?;
        process.is_victim = true;
        Some(process.child.id())
    }

    /// The ids of all processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.child.id()).collect()
    }

    /// The largest resident sets of all processes, added up. `None` if one has ended.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        self.pids().into_iter().map(|pid| ServerProcess::of(pid).peak_memory_bytes()).sum()
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data.path
    }

    /// Returns an error with the end of the log if a process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for Process { name, child, log, .. } in self.processes.iter_mut().filter(|process| !process.is_victim)
        {
            if let Some(status) = child.try_wait()? {
                bail!("the {name} has ended ({status}); {}", child::last_lines(log));
            }
        }
        Ok(())
    }

    /// Stops all processes and removes their data.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // What was started last needs the others.
        for process in self.processes.iter_mut().rev() {
            child::stop(&mut process.child, child::STOP_GRACE);
        }
    }
}

/// Whether something listens at an address.
pub fn connects(address: &str) -> anyhow::Result<bool> {
    let address: SocketAddr = address
        .parse()
        .with_context(|| format!("it says that it is ready on {address:?}, which is no address"))?;
    Ok(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// A fresh directory for a server's data. Dropping it removes the directory, unless the data is to be kept.
#[derive(Debug)]
struct DataDirectory {
    path: PathBuf,
    keep: bool,
}

impl DataDirectory {
    fn create(parent: &Path, name: &str, keep: bool) -> anyhow::Result<DataDirectory> {
        static STARTS: AtomicU32 = AtomicU32::new(1);
        let start = STARTS.fetch_add(1, Ordering::Relaxed);
        // A server may have another working directory, and Kafka requires an absolute path.
        let path = std::path::absolute(parent)?.join(format!("{name}-{}-{start}", std::process::id()));
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(&path))
            .with_context(|| format!("the data directory {} cannot be created", path.display()))?;
        Ok(DataDirectory { path, keep })
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("data kept in {}", self.path.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} cannot be removed: {error}", self.path.display());
        }
        // The device frees the blocks now, not while the next contender is measured.
        let parent = self.path.parent().and_then(|parent| File::open(parent).ok());
        let _ = parent.map(|parent| parent.sync_all());
    }
}
