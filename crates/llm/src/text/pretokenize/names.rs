//! The names that files give their pre-tokenizers, and what each means.

use super::Stage::{self, Cut, Match};
use super::{
    cut_before_thousands, cut_numbers_from_right, cut_spaces_by_powers, cut_trailing_spaces, patterns as p,
};

/// A pre-tokenizer and what goes with its name.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    /// How text is cut.
    pub(crate) stages: &'static [Stage],
    /// A word that is a token as a whole is taken as it is, whatever merges say.
    pub(crate) ignore_merges: bool,
    /// Turning tokens back into a whole text tidies up spaces.
    pub(crate) clean_spaces: bool,
    /// A beginning-of-text token comes first unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// A separator comes last unless the file says otherwise.
    pub(crate) add_sep: bool,
    /// The usual beginning-of-text token is there even where the file names none.
    pub(crate) default_bos: bool,
    /// A file may come without merges.
    pub(crate) merges_optional: bool,
    /// How text is spelled in tokens.
    pub(crate) spelling: Spelling,
}

/// How text is spelled in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Every byte is a character of its own.
    Bytes,
    /// As it is, with U+2581 for spaces; `newlines` says whether a run of newlines that is a token is taken as it is.
    Plain { newlines: bool },
    /// As it is.
    Verbatim,
    /// As it is, but for `\t`, `\n`, `\r` and `\x00`, which Python writes so.
    Escaped,
}

const BASE: Named = Named {
    stages: &[],
    ignore_merges: false,
    clean_spaces: false,
    add_bos: false,
    add_sep: false,
    default_bos: true,
    merges_optional: false,
    spelling: Spelling::Bytes,
};

const fn exact(stages: &'static [Stage]) -> Named {
    Named { stages, ..BASE }
}

const fn clean(stages: &'static [Stage]) -> Named {
    Named { stages, clean_spaces: true, ..BASE }
}

const GPT2: &[Stage] = &[Match(p::gpt2)];
const DIGITS_GPT2: &[Stage] = &[Match(p::number), Match(p::gpt2)];
const LLAMA3: &[Stage] = &[Match(p::llama3)];
const QWEN2: &[Stage] = &[Match(p::qwen2)];
const LINES: &[Stage] = &[Match(p::newline_runs)];

/// For files that name none.
pub(crate) const DEFAULT: Named =
    clean(&[Match(p::punctuation), Match(p::gpt2), Match(p::numbers), Match(p::three_digits)]);

/// For files whose model is `gemma4`.
pub(crate) const GEMMA4: Named =
    Named { add_bos: true, spelling: Spelling::Plain { newlines: true }, ..clean(LINES) };

/// The pre-tokenizer of this name, if it is known.
pub(crate) fn by_name(name: &str) -> Option<Named> {
    Some(match name {
        "default" => DEFAULT,
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => Named { ignore_merges: true, add_bos: true, ..clean(LLAMA3) },
        "dbrx" | "smaug-bpe" => clean(LLAMA3),
        "chatglm-bpe" => Named { default_bos: false, ..clean(LLAMA3) },
        "glm4" | "glm5" => Named { default_bos: false, ignore_merges: true, ..clean(LLAMA3) },
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "exaone4" | "mellum" | "modern-bert" | "gigachat"
        | "a.x-4.0" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" => clean(GPT2),
        "jina-v1-en" | "jina-v2-code" | "roberta-bpe" => Named { add_sep: true, ..clean(GPT2) },
        "trillion" | "granite-docling" => exact(GPT2),
        "smollm" | "command-r" => exact(DIGITS_GPT2),
        "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => clean(DIGITS_GPT2),
        "falcon" => clean(&[Match(p::punctuation_and_backtick), Match(p::gpt2), Match(p::three_digits)]),
        // The pattern of the bailing family ends lines with `\s*[\r\n]` where the one of qwen2 has `\s*[\r\n]+`; both
        // match the same.
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "hunyuan" | "solar-open" | "grok-2"
        | "bailingmoe" | "bailingmoe2" | "llada-moe" => exact(QWEN2),
        "stablelm2" | "megrez" => clean(QWEN2),
        "qwen35" => exact(&[Match(p::qwen35)]),
        "ufakzeka" => exact(&[Match(p::qwen2_plain)]),
        "laguna" => exact(&[Match(p::newline_runs), Match(p::qwen2)]),
        "deepseek-llm" => exact(&[
            Match(p::newline),
            Match(p::spaced_cased_letters),
            Match(p::spaced_marks),
            Cut(cut_trailing_spaces),
            Match(p::east_asian),
            Match(p::numbers),
        ]),
        "deepseek-coder" => exact(&[
            Match(p::newline),
            Match(p::spaced_letters),
            Match(p::spaced_punctuation),
            Match(p::east_asian),
            Match(p::number),
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            exact(&[Match(p::numbers3), Match(p::chinese_and_kana), Match(p::deepseek3)])
        }
        "tekken" => Named { ignore_merges: true, add_bos: true, ..exact(&[Match(p::tekken)]) },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => exact(&[Match(p::gpt4o)]),
        "seed-coder" => exact(&[Match(p::seed)]),
        "minicpm5" => {
            Named { ignore_merges: true, ..clean(&[Match(p::numbers3), Match(p::llama3_whole_numbers)]) }
        }
        "bloom" | "gpt3-finnish" => clean(&[Match(p::bloom)]),
        "poro-chat" => exact(&[Match(p::bloom)]),
        "viking" => exact(&[Match(p::bloom), Match(p::number)]),
        "tiny_aya" | "cohere2moe" => exact(&[Cut(cut_numbers_from_right), Match(p::gpt4o_marks)]),
        "afmoe" => exact(&[Cut(cut_numbers_from_right), Match(p::asian), Match(p::deepseek3)]),
        "spark2_5" => {
            exact(&[Match(p::numbers3), Match(p::chinese_and_kana), Match(p::spark), Match(p::number)])
        }
        "youtu" => Named { ignore_merges: true, ..exact(&[Match(p::east_asian_kinds), Match(p::youtu)]) },
        "granite-embed-multi-97m" => Named { ignore_merges: true, ..exact(&[Match(p::gpt4o_cased_marks)]) },
        "jais-2" => clean(&[Match(p::llama3), Cut(cut_spaces_by_powers)]),
        "exaone-moe" => clean(&[Match(p::exaone_moe)]),
        "chameleon" => Named {
            add_bos: true,
            ..exact(&[
                Match(p::sentinel),
                Match(p::image_token),
                Match(p::indents),
                Match(p::number),
                Match(p::punctuation_mark),
                Match(p::gpt2),
            ])
        },
        "whitespace" => Named { spelling: Spelling::Verbatim, ..clean(&[Match(p::not_space)]) },
        "superbpe" => exact(&[Match(p::numbers), Cut(cut_before_thousands)]),
        "kimi-k2" => Named { merges_optional: true, ..exact(&[Match(p::kimi)]) },
        "gemma4" | "granite-embed-multi-311m" => GEMMA4,
        "sarvam-moe" => Named { spelling: Spelling::Plain { newlines: false }, ..exact(LINES) },
        _ => return None,
    })
}
