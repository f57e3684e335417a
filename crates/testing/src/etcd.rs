//! An etcd of one member as a process: start, kill, start again, and a proxy in front of it that loses answers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ports::free_address;
use crate::process::LONG;

/// A running etcd. Dropping it kills the process.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    directory: PathBuf,
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    peer: String,
    options: Vec<String>,
}

impl Etcd {
    /// Whether etcd is installed. Where the variable `TESTS_NEED_ETCD` is set, its absence fails the test.
    pub fn is_installed() -> bool {
        let found = Command::new("etcd")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok();
        let required = std::env::var_os("TESTS_NEED_ETCD").is_some();
        assert!(found || !required, "etcd is not installed: scripts/setup-tests brings it");
        if !found {
            eprintln!("skipped: etcd is not installed (Debian's package etcd-server)");
        }
        found
    }

    /// Starts an etcd whose data is in `directory`, and waits until it has a leader.
    pub fn start(directory: PathBuf) -> Etcd {
        let etcd = Etcd::begin(directory, "http", &[]);
        etcd.await_leader();
        etcd
    }

    /// The same with TLS: the files have its certificate, its key, and the authority of clients.
    pub fn start_tls(directory: PathBuf, certificate: &str, key: &str, authority: &str) -> Etcd {
        let options = [
            ["--cert-file", certificate],
            ["--key-file", key],
            ["--trusted-ca-file", authority],
            ["--client-cert-auth", "--auto-tls=false"],
        ];
        Etcd::begin(directory, "https", &options.concat())
    }

    fn begin(directory: PathBuf, scheme: &str, options: &[&str]) -> Etcd {
        let (endpoint, peer) =
            (format!("{scheme}://{}", free_address()), format!("http://{}", free_address()));
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = run(&directory, &endpoint, &peer, &options);
        Etcd { child, directory, endpoint, peer, options }
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        self.endpoint.split_once("://").expect("it has a scheme").1
    }

    /// Sends one request to the gateway. Returns the answer's body.
    pub fn post(&self, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
    }

    fn await_leader(&self) {
        let begun = Instant::now();
        loop {
            // The empty key is refused; a key of one byte is not.
            match self.post("/v3/kv/range", r#"{"key":"AA=="}"#) {
                Ok(answer) if answer.contains("revision") || answer.contains("user name is empty") => return,
                other => assert!(begun.elapsed() < LONG, "etcd has no leader: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it. Its data stays.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started here");
    }

    /// Starts it again with the same data and the same addresses, after [`Etcd::kill`].
    pub fn start_again(&mut self) {
        self.child = run(&self.directory, &self.endpoint, &self.peer, &self.options);
        self.await_leader();
    }
}

fn run(directory: &PathBuf, client: &str, peer: &str, options: &[String]) -> Child {
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(directory);
    command.args(["--name", "one", "--log-level", "error"]);
    command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
    command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
    command.args(["--initial-cluster", &format!("one={peer}")]).args(options);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd is installed")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes connections on to an address, and loses the answers of some requests: it closes the connection in place of an
/// answer, which the server may have given, or it closes the connection before the server has the request.
#[derive(Debug)]
pub struct LossyProxy {
    /// `HOST:PORT`.
    pub address: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: String,
    /// In how many of 256 requests the connection is closed.
    lost: AtomicU32,
    /// Connections that were closed so.
    closed: AtomicU32,
    hangs: AtomicBool,
    random: Mutex<fastrand::Rng>,
}

impl LossyProxy {
    /// A proxy before `to`, which loses nothing yet.
    pub fn start(to: &str, seed: u64) -> LossyProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared {
            to: to.to_owned(),
            lost: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            hangs: AtomicBool::new(false),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        });
        let of_threads = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = of_threads.clone();
                std::thread::spawn(move || shared.pass(stream));
            }
        });
        LossyProxy { address, shared }
    }

    /// Closes the connection in so many of 256 requests from now on.
    pub fn lose(&self, of_256: u32) {
        self.shared.lost.store(of_256, Ordering::SeqCst);
    }

    /// Says whether nothing passes, as if the server's process stood still: connections stay open, and new ones are made.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::SeqCst);
    }

    /// How many connections were closed in place of an answer.
    pub fn closed(&self) -> u32 {
        self.shared.closed.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn wait_while_it_hangs(&self) {
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Passes the answers of a server on.
    fn pass_back(&self, answers: &mut TcpStream, client: &mut TcpStream) -> Option<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let length = answers.read(&mut bytes).ok().filter(|length| *length > 0)?;
            self.wait_while_it_hangs();
            client.write_all(&bytes[..length]).ok()?;
        }
    }

    fn pass(self: &Arc<Shared>, mut client: TcpStream) -> Option<()> {
        let mut server = TcpStream::connect(&self.to).ok()?;
        let (mut answers, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
        let shared = self.clone();
        std::thread::spawn(move || {
            shared.pass_back(&mut answers, &mut to_client);
            let _ = to_client.shutdown(std::net::Shutdown::Both);
        });
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let length = client.read(&mut bytes).ok().filter(|length| *length > 0)?;
            self.wait_while_it_hangs();
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            let (strikes, before) = (random.u32(0..256) < self.lost.load(Ordering::SeqCst), random.bool());
            drop(random);
            if strikes {
                self.closed.fetch_add(1, Ordering::SeqCst);
                let _ = client.shutdown(std::net::Shutdown::Both);
                if before {
                    return None;
                }
            }
            server.write_all(&bytes[..length]).ok()?;
            if strikes {
                // The server answers nobody.
                return None;
            }
        }
    }
}
