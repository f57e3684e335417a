//! Two brokers on one log. Each leads half of the partitions, and they pass partitions to each other while clients run.
//! With `tests/clients/run --moving`, real clients follow the moves.
//!
//!     two_brokers DIRECTORY PORT PORT MILLISECONDS
//!
//! At each interval of MILLISECONDS, a part of all partitions moves. Partitions of internal topics move with their
//! coordinators. Both ports print a line once they listen. The program ends with its standard input, and prints the
//! number of moved partitions.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker::{Answer, Broker, Config, Listener, LogDirectory, Origin, Principal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use wire::Bytes;

const LISTENER: &str = "PLAINTEXT";
const FRAME_BYTES_MAX: usize = 100 << 20;
/// Bound of the requests in flight on one connection.
const IN_FLIGHT_MAX: usize = 100;
/// The share of all partitions that move at a time.
const MOVING: f64 = 0.3;
/// The same for partitions of internal topics. A member that leaves is lost if its coordinator moves in that moment, since clients
/// do not repeat the request. It has to expire, and each new coordinator gives it its whole session again, as in Kafka.
const MOVING_COORDINATORS: f64 = 0.03;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, first, second, ms] = arguments.as_slice() else {
        return Err("two_brokers DIRECTORY PORT PORT MILLISECONDS".into());
    };
    let (ports, ms) = ([first.parse()?, second.parse()?], ms.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(PathBuf::from(directory), ports, Duration::from_millis(ms)))
}

async fn serve(directory: PathBuf, ports: [u16; 2], every: Duration) -> Result<()> {
    let mut config = Config::default();
    config.set("group.initial.rebalance.delay.ms", "0")?;
    std::fs::create_dir_all(&directory)?;
    let disk = Arc::new(disk::open_directory(&directory, disk::Engine::Auto)?);
    let logs = vec![LogDirectory::new("the data directory", move |_| Ok(disk.clone()))];
    let one = Broker::open(config, logs, &directory)?;
    let other = one.beside(2);
    let listeners = |port: u16| BTreeMap::from([(LISTENER.to_owned(), ("127.0.0.1".to_owned(), port))]);
    one.set_others(BTreeMap::from([(2, listeners(ports[1]))]));
    other.set_others(BTreeMap::from([(1, listeners(ports[0]))]));
    let brokers = [(one.clone(), ports[0]), (other, ports[1])];
    for (broker, port) in brokers {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        println!("listening on 127.0.0.1:{port}");
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                tokio::spawn(connection(broker.clone(), stream, peer));
            }
        });
    }
    let (mover, moves) = (one.clone(), Arc::new(AtomicUsize::new(0)));
    let moved = moves.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            mover.place(|topic, _, node| {
                let share = if topic.starts_with("__") { MOVING_COORDINATORS } else { MOVING };
                let moves = fastrand::f64() < share;
                moved.fetch_add(usize::from(moves), Ordering::Relaxed);
                if moves { 3 - node } else { node }
            });
        }
    });
    let mut input = [0];
    while tokio::task::spawn_blocking(move || std::io::Read::read(&mut std::io::stdin(), &mut input))
        .await??
        > 0
    {}
    one.close().await;
    eprintln!("moved {} partitions", moves.load(Ordering::Relaxed));
    Ok(())
}

/// Serves one connection. Requests begin in order and are answered in order.
async fn connection(broker: Arc<Broker>, stream: TcpStream, peer: SocketAddr) -> Result<()> {
    stream.set_nodelay(true)?;
    let origin = Origin {
        principal: Principal::anonymous(),
        peer,
        local: stream.local_addr()?,
        listener: Arc::new(Listener { name: LISTENER.into(), advertised: None }),
    };
    let mut client = broker.connect(origin);
    let (mut input, mut output) = stream.into_split();
    let (answers, mut due) = mpsc::channel::<Answer>(IN_FLIGHT_MAX);
    let writing = tokio::spawn(async move {
        while let Some(answer) = due.recv().await {
            output.write_all(&answer.await?.to_bytes()).await?;
        }
        Result::Ok(())
    });
    while let Ok(bytes) = input.read_u32().await {
        let bytes = usize::try_from(bytes)?;
        if bytes > FRAME_BYTES_MAX {
            break;
        }
        let mut frame = vec![0; bytes];
        input.read_exact(&mut frame).await?;
        if let Some(answer) = client.begin(Bytes::from(frame)).await?
            && answers.send(answer).await.is_err()
        {
            break;
        }
    }
    drop(answers);
    writing.await?
}
