//! Listens, and answers on every connection.
//!
//! Invariants: a server runs on threads of its own and ends with [`Server::shutdown`], or when it is dropped. Shutting down
//! takes no new connections, lets answers that are under way end within the time that they are given, then ends them with a last event,
//! and closes every connection after its response. Connections are bounded; a new one that finds no room takes the place of the one
//! that has waited longest for its client to say something.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::cluster::Machines;
use crate::keys::Keys;
use crate::limits::{
    BODY_TIME, HEAD_TIME, KEEPALIVE, MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_HEADERS, PREPARING_THREADS,
    ROOM_TIME, SILENCE, TLS_TIME,
};
use crate::lobby::{Lobby, Seat, Sending};
use crate::models::Models;
use crate::origin::Origins;
use crate::os;
use crate::patient::Patient;
use crate::route;
use crate::tls::Tls;

/// Addresses that are taken: clients can connect from now on, and are answered once a server has started on them.
#[derive(Debug)]
pub struct Listeners(Vec<(StdListener, SocketAddr)>);

impl Listeners {
    /// Takes addresses, which tells whether they can be had before a model is loaded for them.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Listeners, ServerError> {
        let bind = |&address: &SocketAddr| {
            let failed = |source| ServerError::Listen { address, source };
            let listener = StdListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok((listener, bound))
        };
        addresses.iter().map(bind).collect::<Result<_, _>>().map(Listeners)
    }

    /// Any port that only this machine can reach.
    pub fn local() -> Result<Listeners, ServerError> {
        Listeners::bind(&[(Ipv4Addr::LOCALHOST, 0).into()])
    }
}

/// What is served, and to whom.
#[derive(Clone)]
pub struct Config {
    /// What to serve.
    pub models: Models,
    /// Keys that clients need. Without any, every client is answered.
    pub keys: Keys,
    /// What the server proves who it is with. Without it, nothing is encrypted.
    pub tls: Option<Tls>,
    /// Names by which clients may call this machine, beside addresses and `localhost`; without effect where keys are needed.
    pub hosts: Vec<String>,
    /// Origins whose pages may use the server from a browser; `*` for all.
    pub origins: Vec<String>,
    /// Says how the machines are, for `/cluster` and `/metrics`.
    pub machines: Option<Machines>,
    /// How long a stream may say nothing, before and between the parts of an answer: many clients and proxies give up after a minute without a
    /// word. Until then, a failure can still be told by the status of the response.
    pub silence: Duration,
}

impl Config {
    /// How long a stream says nothing where nothing else is wanted.
    pub const SILENCE: Duration = SILENCE;

    /// Models, with nothing else.
    pub fn new(models: Models) -> Config {
        Config {
            models,
            keys: Keys::none(),
            tls: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            machines: None,
            silence: Config::SILENCE,
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An address where it cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// It can be reached from other machines, and any of them could use it.
    #[error("{address} can be reached from other machines, so API keys are needed")]
    Open {
        /// Where.
        address: SocketAddr,
    },
    /// The system would not start threads.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    runtime: Option<Runtime>,
    addresses: Vec<SocketAddr>,
    models: Models,
    /// Set when no new connections are taken and those that are there are to end.
    stop: watch::Sender<bool>,
    /// All of them are free when there are no connections.
    connections: Arc<Semaphore>,
    /// How many these are.
    most: usize,
}

impl Server {
    /// Answers clients from now on.
    pub fn start(listeners: Listeners, config: Config) -> Result<Server, ServerError> {
        Server::within(listeners, config, MAX_CONNECTIONS, BODY_TIME)
    }

    /// As [`start`](Server::start), with so many connections at a time, and so much time for a body.
    fn within(
        listeners: Listeners,
        config: Config,
        most: usize,
        body_time: Duration,
    ) -> Result<Server, ServerError> {
        let Listeners(listeners) = listeners;
        let Config { models, keys, tls, hosts, origins, machines, silence } = config;
        if let Some(&(_, address)) = listeners.iter().find(|(_, address)| !address.ip().is_loopback())
            && keys.is_empty()
        {
            return Err(ServerError::Open { address });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(PREPARING_THREADS)
            .thread_name("http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(ServerError::Threads)?;
        let origins = Origins { hosts, allowed: origins };
        let app = Arc::new(App::new(models.clone(), keys, origins, machines, silence, body_time));
        let (stop, stopped) = watch::channel(false);
        let (connections, lobby) = (Arc::new(Semaphore::new(most)), Arc::new(Lobby::default()));
        let tls = tls.map(|tls| TlsAcceptor::from(tls.config));
        let mut bound = Vec::new();
        for (listener, address) in listeners {
            let failed = |source| ServerError::Listen { address, source };
            bound.push(address);
            let _guard = runtime.enter();
            let door = Door {
                listener: TcpListener::from_std(listener).map_err(failed)?,
                app: Arc::clone(&app),
                tls: tls.clone(),
                connections: Arc::clone(&connections),
                lobby: Arc::clone(&lobby),
                stopped: stopped.clone(),
            };
            runtime.spawn(door.run());
        }
        Ok(Server { runtime: Some(runtime), addresses: bound, models, stop, connections, most })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes nothing new, gives answers so much time to end, and returns when all is ended.
    pub fn shutdown(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        // If all listeners are gone, none has to be told.
        let _ = self.stop.send(true);
        self.models.shutdown(grace);
        // Every answer has its end now; what is left is to send it.
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let connections = Arc::clone(&self.connections);
        let sent = async move { connections.acquire_many(all).await.map(drop) };
        // Clients that do not read their last bytes are not waited for.
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), sent).await });
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// A listener, and what its connections need.
struct Door {
    listener: TcpListener,
    app: Arc<App>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
    lobby: Arc<Lobby>,
    stopped: watch::Receiver<bool>,
}

impl Door {
    async fn run(mut self) {
        loop {
            let accepted = {
                let stopped = pin!(until(&mut self.stopped));
                let accepting = pin!(self.listener.accept());
                match first_of(stopped, accepting).await {
                    Either::First(()) => return,
                    Either::Second(accepted) => accepted,
                }
            };
            match accepted {
                Ok((stream, _)) => {
                    // An answer is many small pieces, each of which is wanted at once.
                    let _ = stream.set_nodelay(true);
                    // A machine that vanishes says nothing, and while an answer is waited for, nothing is sent that would fail.
                    let _ = os::keep_alive(&stream, &KEEPALIVE);
                    let Some(permit) = self.room().await else { return };
                    let (app, stopped) = (Arc::clone(&self.app), self.stopped.clone());
                    let seat = Seat::take(&self.lobby);
                    match self.tls.clone() {
                        None => drop(tokio::spawn(connection(stream, app, stopped, seat, permit))),
                        Some(tls) => drop(tokio::spawn(async move {
                            let greeting = pin!(tokio::time::timeout(TLS_TIME, tls.accept(stream)));
                            let greeted = first_of(pin!(seat.dismissed()), greeting).await;
                            if let Either::Second(Ok(Ok(stream))) = greeted {
                                connection(stream, app, stopped, seat, permit).await;
                            }
                        })),
                    }
                }
                // The client was quicker to leave.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Descriptors have run out: a connection that makes way leaves one.
                Err(_) => {
                    self.lobby.dismiss();
                    tokio::time::sleep(ROOM_TIME).await;
                }
            }
        }
    }

    /// Room for another connection, for which one that waits for its client makes way if need be; none if the server is to end.
    async fn room(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() {
                return Some(permit);
            }
            self.lobby.dismiss();
            // All may be busy; then one of them will be done.
            let room = tokio::time::timeout(ROOM_TIME, Arc::clone(&self.connections).acquire_owned());
            match first_of(pin!(until(&mut self.stopped)), pin!(room)).await {
                Either::First(()) => return None,
                Either::Second(Ok(permit)) => return permit.ok(),
                Either::Second(Err(_)) => {}
            }
        }
    }
}

/// Answers the requests of one connection.
async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: Arc<App>,
    mut stopped: watch::Receiver<bool>,
    seat: Arc<Seat>,
    _permit: OwnedSemaphorePermit,
) {
    let of_requests = Arc::clone(&seat);
    let service = service_fn(move |request: Request<Incoming>| {
        let (app, busy) = (Arc::clone(&app), of_requests.rise());
        async move {
            let reply = route::answer(app, request).await;
            Ok::<_, Infallible>(reply.map(|body| Sending::new(body, busy)))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(Patient::new(stream)), service));
    let mut is_stopped = pin!(until(&mut stopped));
    loop {
        let dismissed = pin!(seat.dismissed());
        let over = pin!(first_of(dismissed, connection.as_mut()));
        match first_of(is_stopped.as_mut(), over).await {
            Either::First(()) => break,
            // A request that came in the meantime is answered.
            Either::Second(Either::First(())) if !seat.is_waiting() => {}
            // What a client does wrong is its own concern.
            Either::Second(_) => return,
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Waits until a server is to end; it is, if the server itself is gone.
async fn until(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits for either; if both are there, the first counts.
async fn first_of<A: Future, B: Future>(
    mut a: Pin<&mut A>,
    mut b: Pin<&mut B>,
) -> Either<A::Output, B::Output> {
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = a.as_mut().poll(context) {
            return Poll::Ready(Either::First(output));
        }
        b.as_mut().poll(context).map(Either::Second)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// Asks how the server is, and goes on listening for what else comes.
    fn health(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        stream
    }

    /// A body that comes byte by byte is given its time, however busily it comes.
    #[test]
    fn a_body_that_comes_slowly_is_cut_off() {
        let models = Models::new(Vec::new()).unwrap();
        let config = Config::new(models);
        let server =
            Server::within(Listeners::local().unwrap(), config, MAX_CONNECTIONS, Duration::from_secs(2))
                .unwrap();
        let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (start, mut reading) = (std::time::Instant::now(), stream.try_clone().unwrap());
        let answer = std::thread::spawn(move || {
            let mut status = [0; 12];
            reading.read_exact(&mut status).map(|()| status)
        });
        // After the connection has ended, writing fails, at the latest the second time.
        while !answer.is_finished() && stream.write_all(b" ").is_ok() {
            assert!(start.elapsed() < Duration::from_secs(50), "it is still read");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(&answer.join().unwrap().unwrap(), b"HTTP/1.1 408");
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        drop(health(server.addresses()[0]));
    }

    /// As many clients as there may be, which hold their connections with what is never a request, keep no one out: those that
    /// have waited longest make way.
    #[test]
    fn connections_that_say_nothing_keep_no_client_out() {
        const MOST: usize = 4;
        let models = Models::new(Vec::new()).unwrap();
        let server =
            Server::within(Listeners::local().unwrap(), Config::new(models), MOST, BODY_TIME).unwrap();
        let address = server.addresses()[0];
        let mut silent: Vec<TcpStream> = (0..MOST)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                stream.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
                stream
            })
            .collect();
        let start = std::time::Instant::now();
        let open: Vec<TcpStream> = (0..3 * MOST).map(|_| health(address)).collect();
        for stream in &mut silent {
            // Closed or reset, and not after the twenty seconds that a head has.
            assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)));
        }
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        drop(open);
    }
}
