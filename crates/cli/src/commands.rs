//! One file per command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod graph;
pub(crate) mod imatrix;
pub(crate) mod inspect;
pub(crate) mod join;
pub(crate) mod list;
pub(crate) mod perplexity;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod serve;
pub(crate) mod tokenize;
pub(crate) mod top;
pub(crate) mod trust;
pub(crate) mod worker;
