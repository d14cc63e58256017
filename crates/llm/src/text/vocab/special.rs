//! Tokens with a role: which they are, by what the file says and, where it says nothing, by their texts.
//!
//! The names of texts are those that llama.cpp knows, so that the same tokens end an answer here and there.

use super::{Attributes, Token};
use crate::text::pieces::Pieces;

/// Tokens with a role, as far as a vocabulary has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<Token>,
    /// Ends a text.
    pub eos: Option<Token>,
    /// Ends a turn of a conversation.
    pub eot: Option<Token>,
    /// Ends a message that goes on elsewhere, such as a call of a tool.
    pub eom: Option<Token>,
    /// Stands for what has no token.
    pub unk: Option<Token>,
    /// Stands between two texts.
    pub sep: Option<Token>,
    /// Fills up.
    pub pad: Option<Token>,
    /// Stands for what is to be guessed.
    pub mask: Option<Token>,
    /// Comes before the text in front of a gap.
    pub fim_pre: Option<Token>,
    /// Comes before the text behind a gap.
    pub fim_suf: Option<Token>,
    /// Comes before what goes into the gap.
    pub fim_mid: Option<Token>,
    /// Fills up around a gap.
    pub fim_pad: Option<Token>,
    /// Names a repository.
    pub fim_rep: Option<Token>,
    /// Stands between files.
    pub fim_sep: Option<Token>,
}

const DEEPSEEK_END: &str = "<｜end▁of▁sentence｜>";

const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    DEEPSEEK_END,
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PRE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];

const END: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    DEEPSEEK_END,
    "[e~[",
];

/// Parts of a message that gpt-oss shows to programs, which must see them.
const HARMONY: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialTokens {
    /// Fills in the roles that the file leaves open, and marks their tokens as control tokens.
    pub(super) fn find(&mut self, texts: &Pieces, attributes: &mut [Attributes]) {
        let eos = self.eos;
        let roles = [
            (&mut self.eot, EOT),
            (&mut self.eom, EOM),
            (&mut self.fim_pre, FIM_PRE),
            (&mut self.fim_suf, FIM_SUF),
            (&mut self.fim_mid, FIM_MID),
            (&mut self.fim_pad, FIM_PAD),
            (&mut self.fim_rep, FIM_REP),
            (&mut self.fim_sep, FIM_SEP),
        ];
        for (role, names) in roles {
            if role.is_some() {
                continue;
            }
            // Of several, the first one in the vocabulary, but rather one that is not the end of a text already.
            let found = names.iter().filter_map(|name| texts.find(name.as_bytes()));
            *role = found.min_by_key(|&token| (Some(token) == eos, token));
            add(attributes, *role, Attributes::CONTROL);
        }
    }

    /// The tokens that end an answer, ascending.
    pub(super) fn end_of_generation(&self, texts: &Pieces, attributes: &mut [Attributes]) -> Vec<Token> {
        let token = |name: &str| texts.find(name.as_bytes());
        let mut ends: Vec<Token> = END.iter().filter_map(|name| token(name)).collect();
        for &end in &ends {
            add(attributes, Some(end), Attributes::CONTROL);
        }
        for name in HARMONY {
            set(attributes, token(name), Attributes::USER_DEFINED);
        }
        ends.extend(
            [self.eos, self.eot, self.eom, self.fim_pad, self.fim_rep, self.fim_sep].into_iter().flatten(),
        );

        let both =
            |a: &str, b: &str| [a, b].iter().all(|name| token(name).is_some_and(|t| ends.contains(&t)));
        let mut not_ends = Vec::new();
        if both("<|return|>", "<|call|>") || both("<|calls|>", "<|flush|>") {
            not_ends.push(("<|end|>", Attributes::USER_DEFINED));
        }
        if ["<|tool_response>", "<|plamo:eos|>"]
            .iter()
            .any(|name| token(name).is_some_and(|t| ends.contains(&t)))
        {
            not_ends.push(("</s>", Attributes::NORMAL));
        }
        for (name, becomes) in not_ends {
            let Some(token) = token(name).filter(|token| ends.contains(token)) else { continue };
            ends.retain(|&end| end != token);
            set(attributes, Some(token), becomes);
        }
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

fn add(attributes: &mut [Attributes], token: Option<Token>, more: Attributes) {
    if let Some(own) = token.and_then(|token| attributes.get_mut(token as usize)) {
        own.insert(more);
    }
}

fn set(attributes: &mut [Attributes], token: Option<Token>, new: Attributes) {
    if let Some(own) = token.and_then(|token| attributes.get_mut(token as usize)) {
        *own = new;
    }
}
