//! `oxcart worker`: lends this machine's devices to machines that it is paired with, and to clients that speak ggml's RPC protocol.
//!
//! What happens is logged. A signal asks for the counters; others end it once running graphs are done, a second
//! one at once.

mod install;
mod listen_on;
mod log;
mod tidy;
mod unit;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use oxcart::backend::{ByteSize, Device, StreamOptions};
use oxcart::digests::Digests;
use oxcart::own_models::{Offered, OwnModels};
use oxcart::rpc::client::Endpoint;
use oxcart::rpc::link::{Book, MachineName, Network};
use oxcart::rpc::worker::{
    CacheSettings, Config, DialectChoice, Domain, Limits, Plain, Trust, WeightCache, Worker,
};

use crate::failure::Failure;
use crate::listed::listed;
use crate::local::DeviceArgs;
use crate::log::{Readers, Style};
use crate::os::requests::{HELP, Request, Requests};
use crate::settings::Setting;
use crate::trust;
use crate::units;
use crate::workers::{self, DEFAULT_PORT};
use listen_on::ListenOn;
use tidy::tidy;

/// What `--protocol` is said to take.
const PROTOCOLS: [&str; 6] = ["auto", "7.0", "5.1", "4.0", "3.6", "2.0"];

/// How long running graphs may take to end after the first request to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Bytes of weights that are kept, unless --cache-size says otherwise.
const CACHE_SIZE: u64 = 32 << 30;

/// Bytes of scratch memory that a client's graph may need.
const MAX_SCRATCH: usize = 512 << 20;

/// Lend this machine's devices to other machines
///
/// Clients are other machines with Oxcart that are paired with this one (oxcart join, with the line shown at the start), or
/// llama.cpp with --rpc HOST:PORT. Many may be connected at the same time; they take turns on the devices and see nothing of each other.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = format!("{EXAMPLES}\n\n{HELP}"),
    mut_arg("gpu_layers", |layers| layers.help("0 does not lend this machine's graphics cards; any other number, or all, does"))
)]
pub(crate) struct Args {
    /// Address to listen on
    ///
    /// Clients on other machines have to be paired (oxcart join, with the line that the worker shows); what goes between them is encrypted.
    #[arg(short = 'H', long, default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on
    #[arg(short, long, default_value_t = DEFAULT_PORT, value_parser = units::whole(0..=u16::MAX))]
    port: u16,

    /// Listen here instead, optionally with a protocol version of its own; may be repeated
    ///
    /// For example 127.0.0.1, at port 50052, or 2.0@127.0.0.1:50053 for old clients.
    #[arg(long, value_name = "[VERSION@]HOST[:PORT]", conflicts_with_all = ["host", "port"])]
    listen: Vec<ListenOn>,

    #[command(flatten)]
    local: DeviceArgs,

    /// Lend at most this much memory of each device, for example 8G. By default, what is free at the start
    ///
    /// Without it, some of this machine's own memory is kept back for the worker itself. A client that asks for more than is left gets an error, and
    /// can continue with less.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_memory: Option<u64>,

    /// Keep the weights that clients send, on disk in DIR or in the user's cache folder, so that a model is sent only once
    ///
    /// Weights are served only to the client that sent them: a paired machine, a user of this machine, or the address of
    /// another machine. Files that you move into its subfolder 'shared' are served to all clients.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = cache_at())]
    cache: Option<CacheAt>,

    /// Keep at most this much there; what was used least recently goes first. By default, 32G
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    cache_size: Option<u64>,

    /// Take weights from the .gguf files in DIR and its subfolders, so that clients need not send models that are there
    ///
    /// Any client that may use this worker gets a tensor of these files if it knows the tensor's digest, so name no folder with models
    /// that some of them may not have.
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,

    /// Accept at most this many connections at the same time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = units::whole(1..=65536_u32))]
    max_clients: u32,

    /// Close connections that have sent no request for this long, for example 30m. By default, never
    ///
    /// Clients may keep a model loaded between requests for days; they lose it when their connection is closed.
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    idle_timeout: Option<Duration>,

    /// Version of the protocol
    ///
    /// A client does not say which version it speaks. 'auto' speaks 2.0 with clients whose greeting is empty (versions 2
    /// and 3) and 7.0 with others. For clients of another version, name it; for several, listen on several ports.
    #[arg(long, value_name = "VERSION", default_value = "auto", value_parser = listed(PROTOCOLS, str::parse::<DialectChoice>))]
    protocol: DialectChoice,

    /// Accept clients of this network without a key, for example 192.168.1.0/24; may be repeated
    ///
    /// For llama.cpp and others that cannot be paired. Anyone on that network can then use the devices and read what is sent.
    #[arg(long, value_name = "NETWORK")]
    allow_plain: Vec<Network>,

    /// Require a key of clients on this machine, too
    ///
    /// For machines at the end of a proxy or a tunnel, whose clients seem to be on this machine. --allow-plain 127.0.0.0/8 accepts them
    /// again.
    #[arg(long)]
    no_plain: bool,

    /// Where other machines reach this one, for the join line, if it is behind NAT or a proxy or in a container; may be repeated
    ///
    /// Implies --no-plain, because clients that come through a proxy seem to be on this machine.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = workers::endpoint)]
    advertise: Vec<Endpoint>,

    /// Name of this machine for those it is paired with. By default, its host name
    #[arg(long, value_name = "NAME", value_parser = trust::name)]
    name: Option<MachineName>,

    /// Log one JSON object per line instead of text
    #[arg(long)]
    json: bool,

    /// Have systemd start a worker with these options, now and from then on
    ///
    /// Writes the unit oxcart-worker.service of this user; run again, it replaces it. Pairings and this machine's key stay as they are. The
    /// worker runs while you are logged in, or with loginctl enable-linger from the start of the machine on.
    #[arg(long, conflicts_with_all = ["uninstall", "until_stdin_ends"])]
    install: bool,

    /// End that worker, and remove the unit that --install wrote
    #[arg(long, conflicts_with = "until_stdin_ends")]
    uninstall: bool,

    /// End when stdin does: for workers that another command starts for itself, however that ends
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

const EXAMPLES: &str = "Examples:
  oxcart worker
      Clients on this machine: llama-cli --rpc 127.0.0.1:50052 -ngl 99 -m model.gguf
  oxcart worker --host 192.168.1.7 --max-memory 24G
      For machines that pair with this one, with the line it shows: oxcart join LINE
  oxcart worker --host 192.168.1.7 --allow-plain 192.168.1.0/24
      Also llama.cpp on a network that you trust
  oxcart worker --listen 127.0.0.1:50052 --listen 3.6@127.0.0.1:50053
      Old and new clients at the same time, each on its own port
  oxcart worker --cache --cache-size 100G
      Returning clients do not have to send their model again
  oxcart worker --models ~/models
      Clients do not have to send models that are in this folder, too
  oxcart worker --host 0.0.0.0 --cache --install
      From now on, and after each start of this machine";

/// Where weights are kept. Words rather than the presence of the option, so that it can be a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CacheAt {
    Nowhere,
    /// The user's cache folder.
    Usual,
    Folder(PathBuf),
}

/// Reads it from what stands behind `--cache=`.
fn cache_at() -> impl TypedValueParser<Value = CacheAt> {
    PathBufValueParser::new().map(|path| match path.to_str() {
        Some("false") => CacheAt::Nowhere,
        Some("true") => CacheAt::Usual,
        _ => CacheAt::Folder(path),
    })
}

impl Args {
    /// How lines of its log look.
    pub(crate) fn log_style(&self) -> Style {
        if self.json { Style::Json } else { Style::Timed }
    }
}

pub(crate) fn run(
    args: &Args,
    readers: Readers,
    set: &[Setting],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if args.uninstall {
        return install::uninstall(out);
    }
    check(args)?;
    match args.install {
        true => install::install(&args.local.plugins, set, out),
        false => lend(args, readers),
    }
}

/// Options that do not go together, as far as the parser does not see that.
fn check(args: &Args) -> Result<(), Failure> {
    // It would not see that --cache is a setting.
    match args.cache_size.is_some() && args.cache.is_none() {
        true => Err(Failure::Usage("--cache-size also needs --cache".into())),
        false => Ok(()),
    }
}

fn lend(args: &Args, readers: Readers) -> Result<(), Failure> {
    let places = match args.listen.as_slice() {
        [] => vec![ListenOn::new(&args.host, args.port)],
        listed => listed.to_vec(),
    };
    let addresses = listen_on::resolve(&places)?;
    let requests = Requests::watch(Request::Stop)
        .map_err(|error| Failure::Machine(format!("cannot watch for signals: {error}")))?;

    // What clients leave behind goes back to the system.
    oxcart::cpu::return_freed_memory();
    log::catch_panics();
    let mut config = config(args)?;
    let cache_size = args.cache_size.unwrap_or(CACHE_SIZE);
    config.cache = match &args.cache {
        None | Some(CacheAt::Nowhere) => None,
        Some(CacheAt::Usual) => Some(cache(None, cache_size)?),
        Some(CacheAt::Folder(folder)) => Some(cache(Some(folder), cache_size)?),
    };
    if let Some(folder) = &args.models {
        config.copies = Some(own_models(folder)?);
    }
    let on_loopback = !args.no_plain && args.advertise.is_empty();
    config.plain = Plain { on_loopback, networks: args.allow_plain.clone() };
    if !args.allow_plain.is_empty() {
        log::allowing_plain(&args.allow_plain);
    }
    let is_reached = addresses.iter().flatten().any(|address| !address.ip().is_loopback());
    // A worker that a command starts for itself is used by that command alone.
    if !args.until_stdin_ends {
        match trust(args) {
            Ok(trust) => config.trust = Some(Arc::new(trust)),
            // No client could come.
            Err(failure) if (is_reached || !on_loopback) && args.allow_plain.is_empty() => {
                return Err(failure);
            }
            Err(failure) => log::not_pairing(&failure.to_string()),
        }
    }
    let trust = config.trust.clone();
    let mut worker =
        Worker::new(config).map_err(|error| Failure::Machine(format!("cannot open the devices: {error}")))?;
    for (device, bytes) in worker.devices() {
        log::lending(device.name(), device.description(), bytes as u64);
    }
    let (mut endpoints, mut own) = (args.advertise.clone(), None);
    for (place, address) in places.iter().zip(&addresses) {
        let choice = place.choice.unwrap_or(args.protocol);
        let bound = worker.listen(address.as_slice(), choice).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => "; another program is listening there, so choose another --port",
                io::ErrorKind::AddrNotAvailable => {
                    "; this machine has no such address, so give one that it has"
                }
                io::ErrorKind::PermissionDenied if address.iter().any(|address| address.port() < 1024) => {
                    "; ports below 1024 need special rights"
                }
                _ => "",
            };
            Failure::Machine(format!("cannot listen on {place}: {error}{advice}"))
        })?;
        endpoints.extend(trust::reachable(bound));
        own.get_or_insert(bound);
    }
    if let Some(trust) = &trust {
        let mut known = Vec::new();
        endpoints.retain(|endpoint| {
            let is_new = !known.contains(endpoint);
            known.push(endpoint.clone());
            is_new
        });
        trust.invitations().set_endpoints(endpoints);
        let shows_one = own.map_or_else(|| INVITE.to_owned(), invite);
        show_line(trust, readers, is_reached || !args.advertise.is_empty(), &shows_one);
    }
    if args.until_stdin_ends {
        let stop = requests.sender();
        thread::spawn(move || {
            // What comes before the end does not matter, and what cannot be read has ended.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = stop.send(Request::Stop);
        });
    }
    while requests.next() != Request::Stop {
        log::counters(&worker.counters());
    }
    log::stopping();
    // It ends with the process.
    let _ = thread::Builder::new().spawn(move || {
        while requests.next() != Request::Stop {}
        std::process::exit(1);
    });
    log::counters(&worker.shutdown(GRACE));
    drop(std::panic::take_hook());
    Ok(())
}

/// Shows a join line, if there is someone to show it to. Anyone who reads it can pair a machine for good, and while it is open strangers may
/// talk: so a service that starts again and again shows none once it has its machines, and a log that others can read has none at all.
fn show_line(trust: &Trust, readers: Readers, is_reachable: bool, shows_one: &str) {
    // What is left out of the log is not opened.
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    match readers {
        Readers::Others => log::no_invitation("other users can read this log", shows_one),
        Readers::User if trust.has_guests() => {
            log::no_invitation("machines are paired with this one already", shows_one)
        }
        Readers::User | Readers::Terminal => {
            if let Some(invitation) = trust.invitations().open() {
                log::invitation(&invitation, is_reachable);
            }
        }
    }
}

/// The command that has a worker show a join line, as far as it listens at the usual place.
const INVITE: &str = "oxcart trust invite";

/// The same for a worker that listens at an address.
fn invite(at: SocketAddr) -> String {
    let ip = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    match at.port() {
        DEFAULT_PORT if ip == Ipv4Addr::LOCALHOST => INVITE.to_owned(),
        port => format!("{INVITE} {}", SocketAddr::new(ip, port)),
    }
}

/// Who this machine is, and whom it knows.
fn trust(args: &Args) -> Result<Trust, Failure> {
    let identity = trust::identity()?;
    let book = Book::open(trust::file()?).map_err(|error| Failure::Machine(error.to_string()))?;
    Trust::new(&identity, book, trust::own_name(args.name.as_ref()))
        .map_err(|error| Failure::Machine(format!("TLS cannot be used: {error}")))
}

fn config(args: &Args) -> Result<Config, Failure> {
    let mut config = Config::new([]);
    config.devices = args.local.chosen()?;
    // Of the memory of this machine, which messages, graphs and scratch come out of as well.
    let is_here = |device: &&Arc<dyn Device>| device.buffer_type().is_host();
    let free = config
        .devices
        .iter()
        .filter(is_here)
        .find_map(|device| device.memory().ok())
        .map(|memory| memory.free);
    let limits = free.map_or_else(Limits::default, Limits::for_memory);
    let max_scratch = Some(free.map_or(MAX_SCRATCH, |free| MAX_SCRATCH.min(free / 16)));
    config.stream = StreamOptions { max_scratch, ..args.local.stream_options() };
    if let Some(wanted) = args.max_memory {
        check_memory(wanted, &config.devices)?;
    }
    config.max_memory = args.max_memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let clients = usize::try_from(args.max_clients).unwrap_or(usize::MAX);
    config.limits = Limits { clients, idle: args.idle_timeout, ..limits };
    config.limits.ungreeted = config.limits.ungreeted.min(clients);
    config.observer = tidy(log::observer());
    Ok(config)
}

/// No device can lend more than it has.
fn check_memory(wanted: u64, devices: &[Arc<dyn Device>]) -> Result<(), Failure> {
    let totals =
        devices.iter().filter_map(|device| Some((device.memory().ok()?.total as u64, device.name())));
    match totals.max() {
        Some((most, name)) if wanted > most => Err(Failure::Usage(format!(
            "--max-memory is {}, but {name} has {} in all",
            ByteSize(wanted),
            ByteSize(most)
        ))),
        _ => Ok(()),
    }
}

fn own_models(folder: &Path) -> Result<Arc<OwnModels>, Failure> {
    let shown = folder.display().to_string();
    let named = shown.clone();
    let told = Box::new(move |offered: &Offered| log::own_models(&named, offered));
    OwnModels::start(folder, Digests::of_user(), told).map_err(|error| {
        let shown = shown.escape_debug();
        Failure::Machine(format!("cannot look for models in '{shown}': {error}; it must be a folder"))
    })
}

fn cache(folder: Option<&Path>, size: u64) -> Result<Arc<WeightCache>, Failure> {
    let nowhere = || {
        Failure::Usage(
            "there is no home folder to keep weights in; name a folder with --cache=DIR".to_owned(),
        )
    };
    let folder = folder.map(Path::to_owned).or_else(oxcart::folders::weights).ok_or_else(nowhere)?;
    let settings = CacheSettings { max_bytes: size, ..CacheSettings::new(&folder) };
    let shown = folder.display().to_string();
    let cache = WeightCache::open(&settings).map_err(|error| {
        let shown = shown.escape_debug();
        let advice = match error.kind() {
            io::ErrorKind::Unsupported => "start the worker without --cache",
            _ => "it must be a folder of yours that no other user can write to",
        };
        Failure::Machine(format!("cannot keep weights in '{shown}': {error}; {advice}"))
    })?;
    log::caching(&shown, size, Domain::users_untold());
    Ok(cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_says_how_it_is_asked_for_a_line() {
        for (at, want) in [
            ("127.0.0.1:50052", "oxcart trust invite"),
            ("0.0.0.0:50052", "oxcart trust invite"),
            ("127.0.0.2:50052", "oxcart trust invite 127.0.0.2:50052"),
            ("0.0.0.0:7", "oxcart trust invite 127.0.0.1:7"),
            ("192.0.2.1:50052", "oxcart trust invite 192.0.2.1:50052"),
            ("[::]:50052", "oxcart trust invite [::1]:50052"),
        ] {
            assert_eq!(invite(at.parse().unwrap()), want);
        }
    }
}
