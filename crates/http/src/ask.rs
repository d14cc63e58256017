//! What every interface's requests come down to, and how that becomes requests of an engine.
//!
//! Invariant: everything a client says is checked here or by what is called here, once and for all interfaces; making
//! an [`Ask`] of a request only renames.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use oxcart_llm::engine::Request;
use oxcart_llm::text::limits::{MAX_STOP_BYTES, MAX_STOP_STRINGS};
use oxcart_llm::text::{
    AnswerParser, ChatOptions, Encode, Grammar, Message, SamplerSettings, Token, TokenizerKind,
    TooManyTokens, Tool, ToolCall, ToolChoice, Vocab,
};
use serde_json::{Map, Value};

use crate::answers::Answers;
use crate::call::Context;
use crate::error::{ApiError, Kind};
use crate::limits::{
    MAX_CHOICES, MAX_LIKELIHOODS, MAX_LOGIT_BIASES, MAX_MESSAGES, MAX_PROMPTS, MAX_TOOLS, MAX_TOP_LOGPROBS,
};
use crate::models::{Lease, Served, Talker};

/// One turn of a conversation.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// The system, the developer or the user says something.
    Said { role: String, content: String },
    /// The assistant answered.
    Answered { content: String, reasoning: Option<String>, calls: Vec<ToolCall> },
    /// A tool gave a result.
    Returned { call: ToolCall, content: String },
}

/// A conversation, and what the answer to it may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) turns: Vec<Turn>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether several calls may be made at a time.
    pub(crate) parallel: bool,
    /// Variables of the template.
    pub(crate) variables: Map<String, Value>,
}

/// What an answer follows.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Chat(Conversation),
    /// A text as it is; control tokens in it count as such if `special`.
    Text {
        text: String,
        special: bool,
    },
    Tokens(Vec<Token>),
    /// What belongs between two texts, in the context of others.
    Gap {
        before: String,
        after: String,
        files: Vec<(String, String)>,
    },
}

/// What form the answer shall have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Form {
    #[default]
    Any,
    /// Some JSON object.
    Json,
    /// JSON by a schema.
    Schema(Value),
    /// By a grammar.
    Grammar(Grammar),
}

/// How tokens are chosen, as far as a client has said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    /// Tokens that count as lately; all where it is negative.
    pub(crate) repeat_last_n: Option<i64>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) logit_bias: Vec<(Token, f32)>,
    /// Penalties count the answer alone, all of it.
    pub(crate) answer_only: bool,
}

impl Sampling {
    fn settings(&self, vocab: &Vocab, logprobs: Option<usize>, choice: usize) -> SamplerSettings {
        let usual = SamplerSettings::default();
        let seed = self.seed.unwrap_or_else(any_seed).wrapping_add(choice as u64);
        let window = match (self.repeat_last_n, self.answer_only) {
            (Some(count), _) => usize::try_from(count).unwrap_or(usize::MAX),
            (None, true) => usize::MAX,
            (None, false) => usual.penalty_window,
        };
        let settings = SamplerSettings {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_p: self.top_p.unwrap_or(usual.top_p),
            top_k: self.top_k.unwrap_or(usual.top_k),
            min_p: self.min_p.unwrap_or(usual.min_p),
            typical_p: self.typical_p.unwrap_or(usual.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(usual.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            penalty_window: window,
            penalize_prompt: !self.answer_only,
            logit_bias: self.logit_bias.clone(),
            seed,
            logprobs,
            ..usual
        };
        settings.ban(vocab.suppressed())
    }
}

fn any_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) sampling: Sampling,
    /// Tokens at most.
    pub(crate) limit: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) form: Form,
    /// Answers to each prompt.
    pub(crate) choices: usize,
    /// Likeliest tokens to be told with each token.
    pub(crate) logprobs: Option<usize>,
    /// Goes on after tokens that end an answer.
    pub(crate) ignore_end: bool,
    /// Whether likelihoods are held until the answer is complete.
    pub(crate) is_whole: bool,
}

impl Ask {
    /// One answer to one prompt.
    pub(crate) fn new(prompt: Prompt) -> Ask {
        Ask {
            prompts: vec![prompt],
            sampling: Sampling::default(),
            limit: None,
            stop: Vec::new(),
            form: Form::Any,
            choices: 1,
            logprobs: None,
            ignore_end: false,
            is_whole: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let too_many = |field, count: usize, most: usize| match count > most {
            true => Err(ApiError::field(field, format!("{count} is too many; the limit is {most}"))),
            false => Ok(()),
        };
        too_many("n", self.choices, MAX_CHOICES)?;
        too_many("prompt", self.prompts.len(), MAX_PROMPTS)?;
        too_many("top_logprobs", self.logprobs.unwrap_or(0), MAX_TOP_LOGPROBS)?;
        // Every answer gets a copy of what follows, so it is bounded before there are any.
        too_many("n", self.prompts.len().saturating_mul(self.choices), MAX_PROMPTS)?;
        too_many("logit_bias", self.sampling.logit_bias.len(), MAX_LOGIT_BIASES)?;
        too_many("stop", self.stop.len(), MAX_STOP_STRINGS)?;
        let stop_bytes: usize = self.stop.iter().map(String::len).sum();
        if stop_bytes > MAX_STOP_BYTES {
            return Err(ApiError::field(
                "stop",
                format!("must not have more than {MAX_STOP_BYTES} bytes in all"),
            ));
        }
        if self.choices == 0 {
            return Err(ApiError::field("n", "must be at least 1"));
        }
        if self.prompts.is_empty() {
            return Err(ApiError::field("prompt", "must not be empty"));
        }
        if self.limit == Some(0) {
            return Err(ApiError::field("max_tokens", "must be at least 1"));
        }
        for prompt in &self.prompts {
            if let Prompt::Chat(conversation) = prompt {
                too_many("messages", conversation.turns.len(), MAX_MESSAGES)?;
                too_many("tools", conversation.tools.len(), MAX_TOOLS)?;
                if conversation.turns.is_empty() {
                    return Err(ApiError::field("messages", "must not be empty"));
                }
            }
        }
        Ok(())
    }

    /// Asks the model of a name, which is loaded first if it is not. The first word of the answer has come when this returns, so that what
    /// fails does so before anything is sent.
    pub(crate) async fn start(self, name: Option<String>, context: Context) -> Result<Answers, ApiError> {
        // What is wrong is not worth loading a model for.
        self.check()?;
        let model = context.app.models.talking(name.as_deref(), context.client).await?;
        self.send(&model, &context).await
    }

    /// As [`start`](Ask::start), a model that is there.
    pub(crate) async fn send(self, model: &Lease, context: &Context) -> Result<Answers, ApiError> {
        self.check()?;
        let served = model.clone();
        // Templates, tokens and grammars take time that connections do not have.
        let prepared = context.work("the request could not be prepared", move || prepare(&served, self));
        let (requests, parsers) = prepared.await??;
        let prompt_tokens = requests.first().map_or(0, |request| request.prompt.len());
        let updates = model.talker()?.service.submit_all(context.client, requests)?;
        Answers::begin(model.clone(), prompt_tokens, updates, parsers).await
    }
}

/// Makes requests of an engine, and what reads their answers: for each prompt, all its choices.
fn prepare(model: &Served, ask: Ask) -> Result<(Vec<Request>, Vec<Option<AnswerParser>>), ApiError> {
    let talker = model.talker()?;
    if let Some((token, _)) =
        ask.sampling.logit_bias.iter().find(|(token, _)| *token as usize >= model.vocab.len())
    {
        return Err(ApiError::field("logit_bias", format!("{token} is not a token of the vocabulary")));
    }
    let (mut requests, mut parsers, mut likelihoods) = (Vec::new(), Vec::new(), 0_usize);
    for prompt in &ask.prompts {
        let ready = render(model, talker, prompt, &ask.form)?;
        if ready.tokens.is_empty() {
            return Err(ApiError::bad("the prompt is empty"));
        }
        if let Some(top) = ask.logprobs.filter(|_| ask.is_whole) {
            let tokens = ask.limit.unwrap_or(usize::MAX).min(talker.context - ready.tokens.len());
            likelihoods += tokens * ask.choices * (1 + top);
            if likelihoods > MAX_LIKELIHOODS {
                let problem = format!(
                    "there may be more than {MAX_LIKELIHOODS} likelihoods, which is too many for one response; ask for fewer tokens or \
                     answers, or for a stream"
                );
                return Err(ApiError::field("logprobs", problem));
            }
        }
        let constraint = match &ready.grammar {
            Some(grammar) => Some(talker.constraints(&model.vocab)?.compile(grammar)?),
            None => None,
        };
        for choice in 0..ask.choices {
            requests.push(Request {
                sampler: ask.sampling.settings(&model.vocab, ask.logprobs, choice),
                limit: ask.limit.unwrap_or(usize::MAX),
                stop: ask.stop.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
                constraint: constraint.clone(),
                ignore_end: ask.ignore_end,
                shown: ready.shown.clone(),
                ..Request::new(ready.tokens.clone())
            });
            parsers.push(ready.parser.clone());
        }
    }
    Ok((requests, parsers))
}

/// A prompt as a model sees it.
struct Ready {
    tokens: Vec<Token>,
    /// None where the answer is nothing but text.
    parser: Option<AnswerParser>,
    grammar: Option<Grammar>,
    /// Control tokens that the parser must see.
    shown: Vec<Token>,
}

fn render(model: &Served, talker: &Talker, prompt: &Prompt, form: &Form) -> Result<Ready, ApiError> {
    let vocab = &model.vocab;
    // An answer has a token at least.
    let most = talker.context.saturating_sub(1);
    let too_long = |long: TooManyTokens| {
        let problem = format!("the prompt has {long}, but the context holds only {}", talker.context);
        ApiError::new(Kind::ContextFull, problem)
    };
    if vocab.kind() == TokenizerKind::None && !matches!(prompt, Prompt::Tokens(_)) {
        return Err(ApiError::bad("the model has no tokenizer, so prompts must be lists of tokens"));
    }
    let plain = |tokens: Vec<Token>| {
        let grammar = match form {
            Form::Any => None,
            Form::Json => Some(Grammar::JsonObject),
            Form::Schema(schema) => Some(Grammar::json_schema(schema.clone())),
            Form::Grammar(grammar) => Some(grammar.clone()),
        };
        Ready { tokens, parser: None, grammar, shown: Vec::new() }
    };
    match prompt {
        Prompt::Tokens(tokens) if tokens.len() > most => Err(too_long(TooManyTokens::exactly(tokens.len()))),
        Prompt::Tokens(tokens) => Ok(plain(tokens.clone())),
        Prompt::Text { text, special } => {
            let options = Encode { add_special: true, parse_special: *special };
            Ok(plain(vocab.encode_within(text, options, most).map_err(too_long)?))
        }
        Prompt::Gap { before, after, files } => {
            Ok(plain(gap(vocab, (before, after), files, most, too_long)?))
        }
        Prompt::Chat(conversation) => {
            let prompt = render_chat(model, talker, conversation)?;
            let tools: &[Tool] = match conversation.choice {
                ToolChoice::None => &[],
                _ => &conversation.tools,
            };
            let format = &talker.format;
            let calls =
                || format.grammar(vocab, prompt.text(), tools, &conversation.choice, conversation.parallel);
            let grammar = match form {
                Form::Any => calls().map_err(|error| ApiError::field("tools", error))?,
                Form::Grammar(grammar) => Some(grammar.clone()),
                Form::Json | Form::Schema(_) => {
                    if !tools.is_empty() && !matches!(conversation.choice, ToolChoice::Auto) {
                        let problem = "an answer cannot be both a tool call and of this format";
                        return Err(ApiError::field("response_format", problem));
                    }
                    let schema = match form {
                        Form::Schema(schema) => Some(schema),
                        _ => None,
                    };
                    let grammar = format.answer_grammar(vocab, prompt.text(), schema);
                    Some(grammar.map_err(|error| ApiError::field("response_format", error))?)
                }
            };
            Ok(Ready {
                tokens: vocab.encode_prompt_within(&prompt, most).map_err(too_long)?,
                parser: Some(format.parser(prompt.text(), tools)),
                grammar,
                shown: format.shown_tokens(vocab),
            })
        }
    }
}

/// A conversation by the model's template.
pub(crate) fn render_chat(
    model: &Served,
    talker: &Talker,
    conversation: &Conversation,
) -> Result<oxcart_llm::text::Prompt, ApiError> {
    let messages: Vec<Message> = conversation
        .turns
        .iter()
        .map(|turn| match turn {
            Turn::Said { role, content } => Message::new(role, content),
            Turn::Answered { content, reasoning, calls } => {
                talker.format.assistant_message(content, reasoning.as_deref(), calls)
            }
            Turn::Returned { call, content } => talker.format.tool_message(call, content),
        })
        .collect();
    let tools = match conversation.choice {
        ToolChoice::None => Vec::new(),
        _ => conversation.tools.iter().map(Tool::to_json).collect(),
    };
    let options = ChatOptions { tools, variables: conversation.variables.clone(), ..ChatOptions::default() };
    let prompt = talker.template.prompt(&messages, &options, &model.vocab);
    prompt.map_err(|error| ApiError::field("messages", error))
}

/// The tokens before what belongs between two texts, unless there are more than `most`.
fn gap(
    vocab: &Vocab,
    (before, after): (&str, &str),
    files: &[(String, String)],
    most: usize,
    too_long: impl Fn(TooManyTokens) -> ApiError,
) -> Result<Vec<Token>, ApiError> {
    let special = vocab.special();
    let (Some(prefix), Some(suffix), Some(middle)) = (special.fim_pre, special.fim_suf, special.fim_mid)
    else {
        let message = "the model cannot fill in text: its vocabulary has no fill-in-the-middle tokens";
        return Err(ApiError::new(Kind::NotSupported, message));
    };
    let bos = special.bos.filter(|_| vocab.adds_bos());
    let mut parts: Vec<(Option<Token>, Cow<'_, str>)> = vec![(bos, "".into())];
    for (name, content) in files {
        // Models that know of files have a token in front of each; for others a line has to do.
        parts.push(match special.fim_sep {
            Some(separator) => (Some(separator), format!("{name}\n").into()),
            None => (None, format!("\n\n--- {name} ---\n\n").into()),
        });
        parts.push((None, content.into()));
    }
    let separator = special.fim_sep.filter(|_| !files.is_empty());
    parts.extend([
        (separator, "".into()),
        (Some(prefix), before.into()),
        (Some(suffix), after.into()),
        (Some(middle), "".into()),
    ]);
    let mut tokens = Vec::new();
    for (token, text) in &parts {
        tokens.extend(*token);
        let options = Encode { add_special: false, parse_special: false };
        let more = vocab.encode_within(text.as_ref(), options, most.saturating_sub(tokens.len()));
        // What follows is not counted.
        let too_long = |long: TooManyTokens| {
            too_long(TooManyTokens { count: tokens.len() + long.count, is_exact: false })
        };
        let more = more.map_err(too_long)?;
        tokens.extend(more);
    }
    match tokens.len() > most {
        true => Err(too_long(TooManyTokens::exactly(tokens.len()))),
        false => Ok(tokens),
    }
}
