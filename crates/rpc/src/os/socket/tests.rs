use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use super::*;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(wait_for_connection(&listener, Duration::from_secs(10)));
    (listener.accept().unwrap().0, there)
}

/// Tries until something holds, or for long enough.
fn soon(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn a_listener_without_clients_is_left_after_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(!wait_for_connection(&listener, Duration::from_millis(20)));
}

#[test]
fn what_arrived_is_seen_and_stays() {
    let (here, mut there) = pair();
    assert!(matches!(arrived(&here), Ok(None)));
    there.write_all(b"x").unwrap();
    assert!(soon(|| matches!(arrived(&here), Ok(Some(1)))));
    let socket = TimedSocket::new(here, Some(Duration::from_secs(10)), None).unwrap();
    let mut byte = [0];
    assert_eq!(((&socket).read(&mut byte).unwrap(), byte), (1, *b"x"));
    assert!(matches!(arrived(socket.stream()), Ok(None)));
    drop(there);
    assert!(soon(|| matches!(arrived(socket.stream()), Ok(Some(0)))));
}

#[test]
fn reads_end_after_a_tick_and_go_on() {
    let (here, mut there) = pair();
    let socket = TimedSocket::new(here, Some(Duration::from_millis(30)), None).unwrap();
    let mut bytes = [0; 4];
    let error = (&socket).read(&mut bytes).unwrap_err();
    assert!(is_tick(&error), "{error:?}");
    there.write_all(b"abc").unwrap();
    assert!(soon(|| arrived(socket.stream()).unwrap() == Some(1)));
    assert_eq!((&socket).read(&mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"abc");
}

/// A write that ends early says how far it came, or that it came nowhere: nothing is sent twice and nothing is lost.
#[test]
fn writes_that_get_stuck_lose_nothing() {
    let (here, mut there) = pair();
    let socket = TimedSocket::new(here, None, Some(Duration::from_millis(30))).unwrap();
    let content: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
    let (mut sent, mut ticks) = (0, 0);
    let expected = content.clone();
    let mut reader = None;
    while sent < content.len() {
        let (a, b) = content[sent..].split_at((content.len() - sent) / 2);
        match (&socket).write_vectored(&[IoSlice::new(a), IoSlice::new(b)]) {
            Ok(bytes) => sent += bytes,
            Err(error) => {
                assert!(is_tick(&error), "{error:?}");
                ticks += 1;
            }
        }
        // The peer starts to read only once the connection is full.
        if ticks == 2 && reader.is_none() {
            let mut there = there.try_clone().unwrap();
            let len = content.len();
            reader = Some(std::thread::spawn(move || {
                let mut got = vec![0; len];
                there.read_exact(&mut got).map(|()| got)
            }));
        }
    }
    let got = match reader {
        Some(reader) => reader.join().unwrap().unwrap(),
        // Everything fitted at once.
        None => {
            let mut got = vec![0; content.len()];
            there.read_exact(&mut got).unwrap();
            got
        }
    };
    assert!(got == expected);
}

#[test]
fn a_read_ends_when_another_thread_shuts_the_connection() {
    let (here, _there) = pair();
    let socket = TimedSocket::new(here, None, None).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| (&socket).read(&mut [0]));
        std::thread::sleep(Duration::from_millis(50));
        socket.stream().shutdown(Shutdown::Both).unwrap();
        assert!(matches!(reading.join().unwrap(), Ok(0) | Err(_)));
    });
}

#[test]
fn those_that_left_are_told_from_those_that_wait() {
    let ((waits, mut busy), (left, leaving), (half, halving)) = (pair(), pair(), pair());
    // Bytes that were not read yet are no departure.
    busy.write_all(b"x").unwrap();
    drop(leaving);
    halving.shutdown(Shutdown::Write).unwrap();
    let streams = [&waits, &left, &half];
    assert!(soon(|| gone(&streams) == [false, true, true]), "{:?}", gone(&streams));
    assert!(gone(&[]).is_empty());
}

/// Wine, where tests for Windows run, looks no further than the next byte.
#[cfg(unix)]
#[test]
fn bytes_that_wait_hide_no_departure() {
    let (left, mut leaving) = pair();
    leaving.write_all(b"x").unwrap();
    drop(leaving);
    assert!(soon(|| gone(&[&left]) == [true]));
}

#[test]
fn a_listener_that_was_closed_can_be_opened_again() {
    // Where there are several addresses, one of which no other test is given a port.
    let host = if cfg!(target_os = "linux") { [127, 0, 0, 77] } else { [127, 0, 0, 1] };
    let open = |port: u16| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        allow_restart(&socket)?;
        socket.bind(&std::net::SocketAddr::from((host, port)).into())?;
        socket.listen(1).map(|()| TcpListener::from(socket))
    };
    let listener = open(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // Closed on this side first, a connection occupies the port for a while.
    drop(listener.accept().unwrap());
    drop((listener, there));
    open(port).unwrap();
}

#[test]
fn peers_are_asked_whether_they_are_there() {
    let (here, _there) = pair();
    let seconds = Duration::from_secs;
    let limits = KeepAlive { after: seconds(30), every: seconds(10), tries: 3, unacknowledged: seconds(60) };
    keep_alive(&here, &limits).unwrap();
    let options = SockRef::from(&here);
    assert!(options.keepalive().unwrap());
    #[cfg(target_os = "linux")]
    assert_eq!(options.tcp_user_timeout().unwrap(), Some(seconds(60)));
}
