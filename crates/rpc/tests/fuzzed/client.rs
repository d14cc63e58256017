//! Any bytes as the answers of a worker, for a client that does everything once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use oxcart_backend::{Error, Registry, Usage, allocate};
use oxcart_rpc::client::{Options, RemoteRegistry, Timeouts};
use oxcart_rpc::wire::{
    Command, Dialect, Interruption, NO_CAPABILITIES, NotDelivered, Reply, answer_capabilities,
};

use super::{Choices, conversation};

/// Whatever a worker answers, the client ends, with a result or an error.
pub fn check(bytes: &[u8]) {
    // Some answers never come.
    ends_well(bytes, Duration::from_millis(300));
}

/// Whether the client could do everything, if it waits so long for each answer.
pub fn ends_well(bytes: &[u8], patience: Duration) -> bool {
    let Some((&choice, script)) = bytes.split_first() else { return false };
    let dialect = Dialect::all()[usize::from(choice) % Dialect::all().len()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // One connection: the dialect is given, so that HELLO is said once.
            if let Ok((stream, _)) = listener.accept() {
                let _ = stream.set_nodelay(true);
                let _ = serve(stream, script, dialect);
            }
        });
        let timeouts = Timeouts {
            connect: patience,
            control: patience,
            data: patience,
            compute: patience,
            ..Timeouts::default()
        };
        let options = Options { dialect: Some(dialect), worker_cache: true, timeouts, ..Options::default() };
        let is_well = RemoteRegistry::connect(&endpoint, &options).is_ok_and(|registry| {
            let is_well = conversation::hold(&registry).is_ok() && write_weights(&registry).is_ok();
            // Whatever there is to be asked, there is an end.
            let _ = registry.devices().first().map(|device| device.memory());
            is_well
        });
        worker.join().unwrap();
        is_well
    })
}

/// Weights that a worker may have already: it is asked for them by what they are known by.
fn write_weights(registry: &RemoteRegistry) -> Result<(), Error> {
    /// Enough to be asked for.
    const WEIGHTS: usize = (128 << 10) + 4;
    let Some(device) = registry.devices().into_iter().next() else { return Ok(()) };
    let buffer = allocate(&device.buffer_type(), WEIGHTS)?;
    buffer.set_usage(Usage::Weights);
    let weights = vec![1; WEIGHTS];
    match buffer.content_of(&weights) {
        Some(content) => buffer.write_known(0, &weights, &content),
        None => Ok(()),
    }
}

/// Answers each request as a byte of the script says: honestly, with bytes of the script, with another length, with too much,
/// or not at all. When the script is over, honestly.
fn serve(mut stream: TcpStream, script: &[u8], dialect: &'static Dialect) -> std::io::Result<()> {
    let mut script = Choices(script);
    for made in 1.. {
        let mut prefix = [0; 9];
        stream.read_exact(&mut prefix)?;
        let size = u64::from_le_bytes(prefix[1..].try_into().unwrap());
        let mut body = Vec::new();
        (&mut stream).take(size.min(1 << 20)).read_to_end(&mut body)?;
        let Some(command) = Command::from_number(prefix[0], dialect) else { return Ok(()) };
        // What is asked for is the last field of a request.
        let asked = body.last_chunk().map_or(0, |asked| u64::from_le_bytes(*asked));
        let len = match command.reply(dialect) {
            Reply::None => continue,
            Reply::Bytes(len) => len,
            Reply::Data => (asked as usize).min(1 << 16),
        };
        let mut answer = honest(command, dialect, asked, made);
        answer.resize(len, 0);
        let mut announced = len as u64;
        match script.byte() {
            0..=0x7f => {}
            0x80..=0xdf => answer.fill_with(|| script.byte()),
            0xe0..=0xef => announced = script.long(),
            0xf0..=0xf7 => answer.push(0),
            0xf8..=0xfb => {
                announced = Interruption::LENGTH;
                let number = script.short().into();
                answer = Interruption { number, why: NotDelivered::Lost }.encode()[8..].to_vec();
            }
            _ => return Ok(()),
        }
        stream.write_all(&[&announced.to_le_bytes()[..], &answer].concat())?;
    }
    Ok(())
}

/// What a worker says that does no harm.
fn honest(command: Command, dialect: &Dialect, asked: u64, made: u64) -> Vec<u8> {
    let version = dialect.version;
    match command {
        Command::Hello => {
            let offer = answer_capabilities(dialect, &NO_CAPABILITIES);
            [&[version.major, version.minor, version.patch, 0][..], &offer].concat()
        }
        Command::DeviceCount | Command::CopyTensor => vec![1],
        Command::GetAlignment => vec![32],
        Command::GetMaxSize | Command::GetAllocSize => (1_u64 << 20).to_le_bytes().to_vec(),
        Command::AllocBuffer => [made, asked].map(u64::to_le_bytes).concat(),
        Command::BufferGetBase => (made << 32).to_le_bytes().to_vec(),
        Command::GetDeviceMemory => [1_u64 << 30; 2].map(u64::to_le_bytes).concat(),
        _ => Vec::new(),
    }
}
