//! `oxcart serve`: a model behind HTTP, for everything that speaks to one.
//!
//! What there is to say goes to stderr. Signals end it once answers are complete, a second one at once; another one has the keys
//! read again.

pub(crate) mod key_file;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use oxcart::llm::file_type::FileType;
use oxcart::llm::runner::EncoderOptions;
use oxcart_http::{About, Config, Keys, Limits, Models, Served, Server, ServerError, Tls};

use crate::cluster;
use crate::door;
use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::os::requests::{Request, Requests, SERVE_HELP};
use crate::speculation::SpeculationArgs;
use crate::terminal::Terminal;
use crate::units;

/// How long answers may take to end after the first request to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Contexts whose tokens are held at a time, unless --tokens says otherwise.
const CONTEXTS: usize = 4;

/// Serve a model over HTTP, as OpenAI, Anthropic, Ollama and llama-server do
///
/// The first time the default model, smollm2, is fetched (94 MB). Many clients may ask at a time; their requests are computed
/// together.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{SERVE_HELP}"))]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    /// Address to listen on; anything but this machine's own (loopback) needs API keys
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 for any
    #[arg(long, default_value_t = 8080)]
    port: u16,

    /// What clients call the model. By default, as it is named here, or as its file is
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,

    /// Requests that are computed at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,

    /// Tokens of all requests together, those that are kept for the next message included. By default, four contexts
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,

    /// Requests that may wait; more are told to come back later
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    queue: u32,

    /// How long a request may take, waiting included, for example 10m
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::time)]
    time_limit: Duration,

    /// A key that clients need; may be repeated. Others on this machine can see it: --api-key-file keeps it to yourself
    #[arg(long = "api-key", value_name = "KEY")]
    api_keys: Vec<String>,

    /// A file with keys that clients need, one per line; lines that begin with # are left out
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Encrypt, with a certificate made for this run; its fingerprint is printed
    #[arg(long)]
    tls: bool,

    /// Encrypt, with the certificate in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls")]
    tls_cert: Option<PathBuf>,

    /// The key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Let clients call this machine by this name; may be repeated. Without keys, only addresses and localhost are taken
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,

    /// Let pages of this origin use the server from a browser, for example http://localhost:3000, or * for all; may be repeated
    #[arg(long = "cors", value_name = "ORIGIN")]
    origins: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  oxcart serve
      smollm2 on http://127.0.0.1:8080, for clients on this machine
  oxcart serve -m model.gguf --ctx 16384 --parallel 4
      A model of your own, with a larger context
  oxcart serve -m model.gguf --workers 192.168.1.5:50052,192.168.1.6:50052
      A model over several machines
  oxcart serve --host 192.168.1.7 --api-key-file keys --tls
      For other machines, encrypted";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let addresses = resolve(&args.host, args.port)?;
    let keys = Keys::new(key_file::all_keys(&args.api_keys, args.api_key_file.as_deref())?)
        .map_err(|error| Failure::Usage(format!("API keys: {error}")))?;
    // Before the model is loaded, which may take a while.
    if let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback())
        && keys.is_empty()
    {
        return Err(open_to_all(*address));
    }
    let tls = tls(args)?;
    let requests = Requests::watch(Request::Reread)
        .map_err(|error| Failure::Machine(format!("cannot watch for signals: {error}")))?;

    let mut engine = args.engine.clone();
    engine.sequences = usize::from(args.parallel);
    engine.with_departures = true;
    engine.tokens = args.tokens.unwrap_or(CONTEXTS * engine.context_size());
    let Opened::Ready(loaded) = Loaded::open(&engine, terminal, out, false)? else { return Ok(()) };
    let models = models(args, &engine, &loaded, terminal, out)?;
    let config = Config {
        addresses,
        models,
        keys: keys.clone(),
        tls: tls.clone(),
        hosts: args.allow_hosts.clone(),
        origins: args.origins.clone(),
        machines: Some(cluster::machines(&loaded.workers)),
    };
    let server = Server::start(config).map_err(|error| match error {
        ServerError::Open { address } => open_to_all(address),
        error @ ServerError::Listen { .. } => Failure::Machine(format!("{error}, is another program there?")),
        error => Failure::Machine(error.to_string()),
    })?;
    announce(args, &server, tls.as_ref(), keys.is_empty());
    until_stopped(&requests, args, &keys);
    say("stopping: answers may end, nothing new is taken");
    // It ends with the process.
    let _ = thread::Builder::new().spawn(move || {
        while requests.next() != Request::Stop {}
        std::process::exit(1);
    });
    server.shutdown(GRACE);
    Ok(())
}

/// Waits for the request to stop.
fn until_stopped(requests: &Requests, args: &Args, keys: &Keys) {
    loop {
        match requests.next() {
            Request::Stop => return,
            Request::Report => {}
            Request::Reread => match key_file::all_keys(&args.api_keys, args.api_key_file.as_deref()) {
                Ok(read) => match keys.replace(read) {
                    Ok(()) => say(&format!("{} keys are known now", keys.len())),
                    Err(error) => say(&format!("keys are as they were: {error}")),
                },
                Err(failure) => say(&format!("keys are as they were: {failure}")),
            },
        }
    }
}

/// Tells the operator something.
fn say(line: &str) {
    // It goes on if that cannot be printed.
    let _ = writeln!(door::stderr(), "{line}");
}

fn announce(args: &Args, server: &Server, tls: Option<&Tls>, is_open: bool) {
    let scheme = if tls.is_some() { "https" } else { "http" };
    for address in server.addresses() {
        say(&format!("listening on {scheme}://{address}"));
    }
    if let Some(tls) = tls.filter(|_| args.tls) {
        say(&format!("certificate {}", tls.fingerprint()));
    }
    if tls.is_none() && !is_open && server.addresses().iter().any(|address| !address.ip().is_loopback()) {
        say("keys and answers are not encrypted: others on the network can read them; --tls encrypts");
    }
}

fn open_to_all(address: SocketAddr) -> Failure {
    Failure::Usage(format!(
        "{address} can be reached from other machines, and any of them could use the model: give --api-key-file, or --api-key; \
         openssl rand -hex 16 makes a key"
    ))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!("'{}' is no address to listen on: {error}", host.escape_debug()))
    };
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|error| wrong(&error))?.collect();
    match found.as_slice() {
        [] => Err(wrong(&"the name has no address")),
        // With any port, several addresses would get several.
        [first, ..] if port == 0 => Ok(vec![*first]),
        _ => Ok(found),
    }
}

fn tls(args: &Args) -> Result<Option<Tls>, Failure> {
    let usage = |error: oxcart_http::TlsError| Failure::Usage(error.to_string());
    match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            return Tls::from_files(certificate, key).map(Some).map_err(usage);
        }
        (None, None) if args.tls => {}
        (None, None) => return Ok(None),
        // Never without encryption where it was asked for.
        _ => return Err(Failure::Usage("--tls-cert and --tls-key need each other".into())),
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend([args.host.clone()].into_iter().chain(args.allow_hosts.iter().cloned()));
    names.sort();
    names.dedup();
    Tls::self_made(&names).map(Some).map_err(usage)
}

fn models(
    args: &Args,
    settings: &EngineArgs,
    loaded: &Loaded,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<Models, Failure> {
    let name = args.alias.clone().unwrap_or_else(|| name(&settings.model.model));
    let limits = Limits { queue: usize::try_from(args.queue).unwrap_or(usize::MAX), time: args.time_limit };
    let about = about(loaded);
    let served = if loaded.model.hyper().is_encoder() {
        let encoder = loaded.encoder(EncoderOptions { pooling: None })?;
        Served::embedding(&name, encoder, Arc::clone(&loaded.vocab), about, limits)
    } else {
        let mut engine = loaded.engine()?;
        args.speculation.apply(&mut engine, settings, terminal, out)?;
        Served::talking(&name, engine, about, limits)
    };
    let failed =
        |error: oxcart_http::ModelsError| Failure::Usage(format!("{}: {error}", loaded.path.display()));
    let served = served.map_err(failed)?.placed(cluster::plans(loaded));
    Models::new(vec![served]).map_err(failed)
}

/// What a model is called: the name of its file, or as it was fetched.
fn name(model: &str) -> String {
    let path = Path::new(model);
    match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        true => path.file_stem().map_or_else(|| model.to_owned(), |stem| stem.to_string_lossy().into_owned()),
        false => model.to_owned(),
    }
}

fn about(loaded: &Loaded) -> About {
    let (hyper, metadata) = (loaded.model.hyper(), loaded.model.metadata());
    let number = |key: &str| metadata.get(key).and_then(|entry| entry.u64().ok());
    About {
        architecture: hyper.architecture().to_owned(),
        parameters: number("general.parameter_count"),
        quantization: number("general.file_type")
            .and_then(FileType::from_number)
            .map(|kind| kind.to_string()),
        bytes: loaded.model.placement().shares().iter().map(|share| share.weights as u64).sum(),
        trained_context: hyper.context,
        embedding: hyper.embedding,
        source: loaded.path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_as_people_call_them() {
        assert_eq!(name("smollm2"), "smollm2");
        assert_eq!(name("/models/Qwen3-4B.Q4_K_M.gguf"), "Qwen3-4B.Q4_K_M");
        assert_eq!(name("owner/name"), "owner/name");
    }
}
