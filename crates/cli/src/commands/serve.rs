//! `oxcart serve`: a model behind HTTP, for everything that speaks to one.
//!
//! What there is to say goes to stderr. Signals end it once answers are complete, a second one at once; another one has the keys
//! read again.

mod catalogue;
pub(crate) mod key_file;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use oxcart::llm::model::limits::MAX_CONTEXT;
use oxcart_http::{Config, Keeping, Keys, Limits, Listeners, Models, Server, ServerError, Tls};

use crate::cluster;
use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::os::requests::{Request, Requests, SERVE_HELP};
use crate::speculation::SpeculationArgs;
use crate::terminal::Terminal;
use crate::units;
use crate::workers::Workers;
use catalogue::Settings;

/// How long answers may take to end after the first request to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Contexts whose tokens are held at a time, unless --tokens says otherwise.
const CONTEXTS: usize = 4;

/// Serve a model over HTTP, with the APIs of OpenAI, Anthropic, Ollama and llama-server
///
/// The default model, smollm2, is fetched on first use (94 MiB). Requests of many clients are computed together.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{SERVE_HELP}"))]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    /// Address to listen on; any but a loopback address needs API keys
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 for any
    #[arg(long, default_value_t = 8080, value_parser = units::whole(0..=u16::MAX))]
    port: u16,

    /// Name of the model for clients. By default, the name given with -m, or that of its file
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,

    /// Serve several models, each loaded when a client asks for it: names as for --model, or folders with .gguf files
    #[arg(long, value_name = "MODEL|FOLDER,…", value_delimiter = ',', conflicts_with_all = ["model", "alias", "draft", "plan"])]
    models: Vec<String>,

    /// How many of --models are loaded at the same time; for another one, the least recently used is unloaded
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = units::whole(1..=1024_u16), requires = "models")]
    max_models: u16,

    /// How long a model of --models stays loaded after its last answer, for example 1h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::time, requires = "models")]
    keep: Duration,

    /// Requests to compute at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = units::whole(1..=256_u16))]
    parallel: u16,

    /// Tokens held in memory for all requests together, including those kept for a next message. By default, four times --ctx
    #[arg(long, value_name = "N", value_parser = units::whole(1..=MAX_CONTEXT))]
    tokens: Option<usize>,

    /// Requests that may wait in the queue; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = units::whole(1..=65536_u32))]
    queue: u32,

    /// How long a request may take, waiting included, for example 10m
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::time)]
    time_limit: Duration,

    /// API key that clients need; may be repeated. Other users of this machine can see it; --api-key-file keeps it private
    #[arg(long = "api-key", value_name = "KEY")]
    api_keys: Vec<String>,

    /// Compute the beginnings of prompts for each API key anew. By default they are computed once for all keys, so a key can tell, by time or
    /// by cached_tokens, whether another one has sent the same
    #[arg(long)]
    separate_prompts: bool,

    /// File with API keys that clients need, one per line; lines that begin with # are ignored
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Encrypt with a certificate made for this run; its fingerprint is printed
    #[arg(long)]
    tls: bool,

    /// Encrypt with the certificate in this PEM file; needs --tls-key
    #[arg(long, value_name = "FILE", conflicts_with = "tls")]
    tls_cert: Option<PathBuf>,

    /// PEM file with the key of the certificate
    #[arg(long, value_name = "FILE", conflicts_with = "tls")]
    tls_key: Option<PathBuf>,

    /// Accept requests to this host name; may be repeated. Without API keys, only addresses and localhost are accepted
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,

    /// Let web pages of this origin use the server, for example http://localhost:3000, or * for all; may be repeated
    #[arg(long = "cors", value_name = "ORIGIN")]
    origins: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  oxcart serve
      smollm2 on http://127.0.0.1:8080, for clients on this machine
  oxcart serve -m model.gguf --ctx 16384 --parallel 4
      A model of your own, with a larger context
  oxcart serve --models ~/models,smollm2
      All models in a folder and one more, loaded on demand
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
    // Before the model is loaded, too; clients that come meanwhile wait for it.
    let wanted = if args.engine.plan { &[][..] } else { &addresses };
    let listeners = Listeners::bind(wanted).map_err(not_started)?;
    let requests = Requests::watch(Request::Reread)
        .map_err(|error| Failure::Machine(format!("cannot watch for signals: {error}")))?;

    let mut engine = args.engine.clone();
    engine.sequences = usize::from(args.parallel);
    engine.with_departures = true;
    engine.tokens = args.tokens.unwrap_or(CONTEXTS * engine.context_size());
    let settings = Settings {
        engine,
        speculation: args.speculation.clone(),
        limits: Limits {
            queue: usize::try_from(args.queue).unwrap_or(usize::MAX),
            time: args.time_limit,
            separate_prompts: args.separate_prompts,
        },
        terminal,
    };
    let chosen = match args.models.is_empty() {
        true => one_model(args, &settings, out)?,
        false => Some(several_models(args, settings)?),
    };
    let Some((models, workers)) = chosen else { return Ok(()) };
    let config = Config {
        models,
        keys: keys.clone(),
        tls: tls.clone(),
        hosts: args.allow_hosts.clone(),
        origins: args.origins.clone(),
        machines: Some(cluster::machines(&workers)),
        silence: Config::SILENCE,
    };
    let server = Server::start(listeners, config).map_err(not_started)?;
    announce(args, &server, tls.as_ref(), keys.is_empty());
    until_stopped(&requests, args, &keys);
    say("stopping: running requests may finish, new ones are refused");
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
                    Ok(()) => say(&format!("keys reloaded; {} in use", keys.len())),
                    Err(error) => say(&format!("the keys were not changed: {error}")),
                },
                Err(failure) => say(&format!("the keys were not changed: {failure}")),
            },
        }
    }
}

/// Tells the operator something.
fn say(line: &str) {
    tracing::info!("{line}");
}

fn announce(args: &Args, server: &Server, tls: Option<&Tls>, is_open: bool) {
    let scheme = if tls.is_some() { "https" } else { "http" };
    for address in server.addresses() {
        say(&format!("listening on {scheme}://{address}"));
    }
    if let Some(tls) = tls.filter(|_| args.tls) {
        say(&format!("certificate fingerprint {}", tls.fingerprint()));
    }
    if tls.is_none() && !is_open && server.addresses().iter().any(|address| !address.ip().is_loopback()) {
        say("keys and answers are not encrypted: others on the network can read them; --tls encrypts");
    }
}

fn not_started(error: ServerError) -> Failure {
    match error {
        ServerError::Open { address } => open_to_all(address),
        error @ ServerError::Listen { .. } => {
            Failure::Machine(format!("{error}; is another program using that port?"))
        }
        error => Failure::Machine(error.to_string()),
    }
}

fn open_to_all(address: SocketAddr) -> Failure {
    Failure::Usage(format!(
        "{address} can be reached from other machines, and any of them could use the model: give --api-key-file, or --api-key; \
         openssl rand -hex 16 makes one"
    ))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!("cannot listen on '{}': {error}", host.escape_debug()))
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
        // Never without encryption where it was asked for. The parser would not see what is a setting.
        (Some(_), None) => return Err(Failure::Usage("--tls-cert also needs --tls-key".into())),
        (None, Some(_)) => return Err(Failure::Usage("--tls-key also needs --tls-cert".into())),
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend([args.host.clone()].into_iter().chain(args.allow_hosts.iter().cloned()));
    names.sort();
    names.dedup();
    Tls::self_made(&names).map(Some).map_err(usage)
}

/// The model of --model, loaded, and the workers; none if only the plan was asked for.
fn one_model(
    args: &Args,
    settings: &Settings,
    out: &mut dyn Write,
) -> Result<Option<(Models, Arc<Workers>)>, Failure> {
    let Opened::Ready(loaded) = Loaded::open(&settings.engine, settings.terminal, out, false)? else {
        return Ok(None);
    };
    let name = args.alias.clone().unwrap_or_else(|| catalogue::name(&settings.engine.model.model));
    let workers = Arc::clone(&loaded.workers);
    let served = settings.served(&name, loaded, out)?;
    let models = Models::new(vec![served]).map_err(|error| Failure::Machine(error.to_string()))?;
    Ok(Some((models, workers)))
}

/// The models of --models, none of them loaded yet, and the workers.
fn several_models(args: &Args, mut settings: Settings) -> Result<(Models, Arc<Workers>), Failure> {
    let workers = settings.engine.connect()?;
    settings.engine.connected = Some(Arc::clone(&workers));
    let Limits { queue, time, .. } = settings.limits;
    let keeping = Keeping { most: usize::from(args.max_models), idle: args.keep, queue, time };
    let available = catalogue::find(&args.models, &Arc::new(settings))?;
    say(&format!("models: {}, each loaded on demand", available.len()));
    let models = Models::on_demand(available, keeping).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok((models, workers))
}
