//! A model behind HTTP: the interfaces of OpenAI, Anthropic, Ollama and llama-server.
//!
//! A [`Service`] runs an engine on a thread of its own; [`Models`] are what a [`Server`] serves, on threads of its own too. A
//! program starts one with [`Server::start`] and ends it with [`Server::shutdown`]; it needs no async runtime and sees none.
//!
//! | layer | files |
//! |---|---|
//! | an engine that many can ask at a time | `service` |
//! | what all interfaces' requests come down to, and their answers | `ask`, `answers`, `embed`, `models` |
//! | the interfaces: typed requests and responses, one file per family of endpoints | `openai`, `anthropic`, `ollama`, `llama` |
//! | the page, and the picture of the cluster that it shows | `page`, `cluster` |
//! | a description of all routes | `openapi` |
//! | who may ask, and how it gets there | `server`, `lobby`, `route`, `call`, `bodies`, `turns`, `keys`, `origin`, `tls`, `patient`, `os`, `reply`, `json`, `error` |
//!
//! It must not know devices, files or the command line.
#![forbid(unsafe_code)]

mod answers;
mod anthropic;
mod app;
mod ask;
mod base64;
mod bodies;
mod call;
mod cluster;
#[doc(hidden)]
pub mod edges;
mod embed;
mod error;
mod ids;
mod json;
mod keys;
mod limits;
mod llama;
mod lobby;
mod models;
mod ollama;
mod openai;
mod openapi;
mod origin;
mod os;
mod page;
mod patient;
mod reply;
mod route;
mod server;
mod service;
mod tls;
mod turns;

pub use cluster::{
    Cluster, ClusterInterruption, ClusterPlacement, ClusterPlacements, CurrentPlacements, DeviceBlocks,
    DeviceMemory, DeviceShare, Link, LostMachine, Machine, Machines, ModelState, PlacementWithout, Presence,
    Purpose, RequestState,
};
pub use keys::{KeyError, Keys};
pub use models::{About, Available, Features, Keeping, LoadError, Models, ModelsError, Served, Source};
pub use server::{Config, Listeners, Server, ServerError};
pub use service::{
    Client, EmbeddingService, Event, Explain, Interruption, Limits, Refused, RequestFailure, Running,
    Service, Snapshot, Ticket, Totals, Update, Updates,
};
pub use tls::{Fingerprint, NoFingerprint, Tls, TlsError};
