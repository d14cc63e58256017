//! Every bound on what a client may send, hold or wait for, named once.
//!
//! Invariant: what the server holds for clients is bounded by these numbers and by what the operator says ([`Limits`]),
//! never by what a client sends.
//!
//! [`Limits`]: crate::Limits

use std::time::Duration;

use crate::os::KeepAlive;

/// Connections at a time. For another one, the one that has waited longest for its client makes way; while all are busy, it waits.
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// Bytes of a request's head: its first line and all headers.
pub(crate) const MAX_HEAD_BYTES: usize = 32 << 10;

/// Headers of a request.
pub(crate) const MAX_HEADERS: usize = 64;

/// Bytes of a path with its query.
pub(crate) const MAX_TARGET_BYTES: usize = 2 << 10;

/// Bytes of a body. A prompt of 128,000 tokens has some 600,000.
pub(crate) const MAX_BODY_BYTES: usize = 8 << 20;

/// Bytes of a body that counts as small, if its length is announced. It is read as JSON at once; a large one, by another thread.
pub(crate) const SMALL_BODY_BYTES: usize = 64 << 10;

/// Bytes of all small bodies that are being read or answered, and as many of what they are as JSON: there is room for one of each
/// connection. What takes more than that is not small.
pub(crate) const MAX_SMALL_BODIES_BYTES: usize = 2 * MAX_CONNECTIONS * SMALL_BODY_BYTES;

/// Bytes of all other bodies that are being read or answered, with what they are as JSON. One client has a quarter at most.
pub(crate) const MAX_LARGE_BODIES_BYTES: usize = 128 << 20;

/// Values in a body's JSON: strings and numbers; an object, a list and a member of an object count as several.
pub(crate) const MAX_JSON_VALUES: usize = 1 << 18;

/// What each takes at most once it is read, beside its text.
pub(crate) const JSON_VALUE_BYTES: usize = 80;

/// Tokens of a text that are listed in a response: about as many as a request may list.
pub(crate) const MAX_LISTED_TOKENS: usize = MAX_JSON_VALUES;

/// Nesting of a body's JSON; serde's own bound is twice that.
pub(crate) const MAX_JSON_DEPTH: usize = 64;

/// Bytes of what is told to a client whose request is refused.
pub(crate) const MAX_MESSAGE_BYTES: usize = 500;

/// Answers that one request may ask for.
pub(crate) const MAX_CHOICES: usize = 16;

/// Prompts of one request; and answers to all its prompts together.
pub(crate) const MAX_PROMPTS: usize = 256;

/// Texts to be embedded of one request. OpenAI has as many; the libraries of others send a thousand.
pub(crate) const MAX_TEXTS: usize = 2048;

/// Messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 4096;

/// Tools of a request.
pub(crate) const MAX_TOOLS: usize = 128;

/// Calls of tools, the latest ones, among which that of a result is looked for.
pub(crate) const MAX_CALLS_BACK: usize = 256;

/// Likeliest tokens that may be asked for beside each token. OpenAI has 20.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;

/// Tokens that a request may make more or less likely; every answer has its own list of them.
pub(crate) const MAX_LOGIT_BIASES: usize = 4096;

/// Bytes of an API key, at least: keys beyond loopback must not be guessed.
pub(crate) const MIN_KEY_BYTES: usize = 16;

/// Bytes of a key that a client may send.
pub(crate) const MAX_KEY_BYTES: usize = 512;

/// Keys of a server.
pub(crate) const MAX_KEYS: usize = 4096;

/// Tokens that a client may have had more of than one that waits, before one of its requests makes way.
pub(crate) const TURN_TOKENS: u64 = 512;

/// Likelihoods of tokens that a response has which is sent whole. Each takes some 250 bytes until it is sent.
pub(crate) const MAX_LIKELIHOODS: usize = 1 << 20;

/// Updates of a request's answers that wait for their reader. A reader that falls behind by more loses the answer.
pub(crate) const MAX_UPDATES: usize = 1024;

/// Events that wait for a watcher; one that falls behind by more misses the oldest.
pub(crate) const MAX_EVENTS: usize = 1024;

/// Losses and returns of devices that are remembered of a model, the latest ones.
pub(crate) const MAX_INTERRUPTIONS: usize = 8;

/// How long the head of a request may take, from when a connection could send it.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(20);

/// How long a body may take.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(60);

/// How long a stream says nothing, unless the program that serves has it otherwise.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How long the other side may take none of what is sent to it, whether at once or now and then: what it takes gives it time again.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(60);

/// Bytes a second that it has to take, while it is waited for, to be waited for any longer.
pub(crate) const SLOWEST_RATE: f64 = 4096.0;

/// When a client whose machine is gone without a word (asleep, unplugged) is taken for lost: within a minute.
pub(crate) const KEEPALIVE: KeepAlive = KeepAlive {
    after: Duration::from_secs(30),
    every: Duration::from_secs(10),
    tries: 3,
    unacknowledged: STALL_TIME,
};

/// How long is waited for the connection that makes way before the next one has to.
pub(crate) const ROOM_TIME: Duration = Duration::from_millis(50);

/// How long greetings of TLS may take.
pub(crate) const TLS_TIME: Duration = Duration::from_secs(10);

/// Threads that prepare requests: templates, tokens, grammars.
pub(crate) const PREPARING_THREADS: usize = 4;

const _: () = {
    assert!(MAX_TARGET_BYTES < MAX_HEAD_BYTES && MAX_KEY_BYTES < MAX_HEAD_BYTES);
    assert!(MAX_HEAD_BYTES >= 8192, "hyper's least");
    assert!(MAX_BODY_BYTES <= MAX_LARGE_BODIES_BYTES / 16, "a client may send a few at a time");
    assert!(SMALL_BODY_BYTES < MAX_BODY_BYTES);
    let most = MAX_BODY_BYTES + MAX_JSON_VALUES * JSON_VALUE_BYTES;
    assert!(most <= MAX_LARGE_BODIES_BYTES / 4, "any body fits what one client has");
    assert!(MAX_JSON_DEPTH < 128, "where serde_json refuses by itself");
    assert!(MAX_TOP_LOGPROBS <= oxcart_llm::text::limits::MAX_TOP_LOGPROBS);
    assert!(MAX_LOGIT_BIASES <= oxcart_llm::text::limits::MAX_LOGIT_BIASES);
};
