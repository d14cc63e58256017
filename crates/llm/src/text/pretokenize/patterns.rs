//! The patterns that pre-tokenizers are made of, as functions: how many glyphs match at the beginning of a piece?
//!
//! They stand for regular expressions with leftmost alternatives and greedy repetition, which are given in the comments;
//! `\s`, `\p{L}` and so on are as in Unicode, `CON` is `'s|'t|'re|'ve|'m|'ll|'d` in any case. Written out by hand they
//! need no look-around and no backtracking.
//!
//! Invariant: cutting a text takes time linear in its length. What a function looks at beyond its match, it does not look
//! at again more than once.

use super::glyph::Glyph;

/// How many glyphs at the beginning are of a kind.
pub(super) fn run(text: &[Glyph], kind: impl Fn(Glyph) -> bool) -> usize {
    text.iter().position(|&glyph| !kind(glyph)).unwrap_or(text.len())
}

/// The same, where more than `most` do not count, nor are they looked at.
fn run_up_to(text: &[Glyph], most: usize, kind: impl Fn(Glyph) -> bool) -> usize {
    run(text.get(..most).unwrap_or(text), kind)
}

fn after(text: &[Glyph], count: usize) -> &[Glyph] {
    text.get(count..).unwrap_or_default()
}

fn starts(text: &[Glyph], kind: impl Fn(Glyph) -> bool) -> bool {
    text.first().is_some_and(|&glyph| kind(glyph))
}

/// The first alternative that matches.
macro_rules! first_of {
    ($($alternative:expr),+ $(,)?) => {{
        $(
            let count = $alternative;
            if count > 0 {
                return count;
            }
        )+
        0
    }};
}

/// `lead? kind+`, where the lead may be of that kind too.
fn led(text: &[Glyph], lead: impl Fn(Glyph) -> bool, kind: impl Fn(Glyph) -> bool) -> usize {
    if starts(text, lead) {
        let count = run(after(text, 1), &kind);
        if count > 0 {
            return 1 + count;
        }
    }
    run(text, kind)
}

fn is_blank(glyph: Glyph) -> bool {
    glyph.is(' ')
}

/// `[^\s\p{L}\p{N}]`
fn is_other(glyph: Glyph) -> bool {
    !(glyph.is_space() || glyph.is_letter() || glyph.is_number())
}

/// `[^\r\n\p{L}\p{N}]`
fn is_lead(glyph: Glyph) -> bool {
    !(glyph.is_newline() || glyph.is_letter() || glyph.is_number())
}

fn is_letter_or_mark(glyph: Glyph) -> bool {
    glyph.is_letter() || glyph.is_mark()
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in any case or in lower case alone.
fn contraction(text: &[Glyph], any_case: bool) -> usize {
    let letter = |at: usize| {
        let code = text.get(at).map_or(0, |glyph| glyph.code());
        u8::try_from(code).map_or(0, |byte| if any_case { byte.to_ascii_lowercase() } else { byte })
    };
    if letter(0) != b'\'' {
        return 0;
    }
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

/// ` ?kind+tail*`
fn symbols(text: &[Glyph], kind: impl Fn(Glyph) -> bool, tail: impl Fn(Glyph) -> bool) -> usize {
    let count = led(text, is_blank, kind);
    if count == 0 { 0 } else { count + run(after(text, count), tail) }
}

/// `\s*[\r\n]+`: up to the last newline among the white space. (So is `\s*[\r\n]`, since `\s*` takes newlines too.)
fn lines(text: &[Glyph]) -> usize {
    let spaces = text.get(..run(text, Glyph::is_space)).unwrap_or_default();
    spaces.iter().rposition(|glyph| glyph.is_newline()).map_or(0, |last| last + 1)
}

/// `\s+(?!\S)|\s+`: white space, without the last one where something follows that it may belong to.
fn spaces(text: &[Glyph]) -> usize {
    let count = run(text, Glyph::is_space);
    if count > 1 && count < text.len() { count - 1 } else { count }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(text: &[Glyph]) -> usize {
    first_of!(
        contraction(text, false),
        led(text, is_blank, Glyph::is_letter),
        led(text, is_blank, Glyph::is_number),
        led(text, is_blank, is_other),
        spaces(text),
    )
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn words(text: &[Glyph], digits: usize) -> usize {
    first_of!(
        led(text, is_lead, Glyph::is_letter),
        run_up_to(text, digits, Glyph::is_number),
        symbols(text, is_other, Glyph::is_newline),
        lines(text),
        spaces(text),
    )
}

/// `CON` and words with numbers of up to three digits.
pub(super) fn llama3(text: &[Glyph]) -> usize {
    first_of!(contraction(text, true), words(text, 3))
}

/// `CON` and words with whole numbers.
pub(super) fn llama3_whole_numbers(text: &[Glyph]) -> usize {
    first_of!(contraction(text, true), words(text, usize::MAX))
}

/// `CON` and words with single digits.
pub(super) fn qwen2(text: &[Glyph]) -> usize {
    first_of!(contraction(text, true), words(text, 1))
}

/// Words with single digits, contractions being nothing special.
pub(super) fn qwen2_plain(text: &[Glyph]) -> usize {
    words(text, 1)
}

/// As [`qwen2`], with marks counted among the letters:
/// `CON|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(super) fn qwen35(text: &[Glyph]) -> usize {
    first_of!(
        contraction(text, true),
        led(text, is_lead, is_letter_or_mark),
        run_up_to(text, 1, Glyph::is_number),
        symbols(text, |glyph| is_other(glyph) && !glyph.is_mark(), Glyph::is_newline),
        lines(text),
        spaces(text),
    )
}

/// As [`qwen2`], with no newlines behind symbols.
pub(super) fn seed(text: &[Glyph]) -> usize {
    first_of!(
        contraction(text, true),
        led(text, is_lead, Glyph::is_letter),
        run_up_to(text, 1, Glyph::is_number),
        symbols(text, is_other, |_| false),
        lines(text),
        spaces(text),
    )
}

fn may_be_upper(glyph: Glyph) -> bool {
    if glyph.is_ascii() { glyph.is_ascii_and(u8::is_ascii_uppercase) } else { glyph.is_letter() }
}

fn may_be_lower(glyph: Glyph) -> bool {
    if glyph.is_ascii() { glyph.is_ascii_and(u8::is_ascii_lowercase) } else { glyph.is_letter() }
}

/// `[^\r\n\p{L}\p{N}]?upper*lower+|[^\r\n\p{L}\p{N}]?upper+lower*`, where letters outside ASCII may be either.
fn cased(text: &[Glyph], upper: impl Fn(Glyph) -> bool, lower: impl Fn(Glyph) -> bool) -> usize {
    let ends_lower = |text: &[Glyph]| {
        let uppers = run(text, &upper);
        let lowers = run(after(text, uppers), &lower);
        if lowers > 0 {
            return uppers + lowers;
        }
        // One of those that may be either has to be the lower one: the last of them.
        let given_back = text.get(..uppers).unwrap_or_default().iter().rposition(|&glyph| lower(glyph));
        given_back.map_or(0, |last| last + 1)
    };
    let begins_upper = |text: &[Glyph]| {
        let uppers = run(text, &upper);
        if uppers == 0 { 0 } else { uppers + run(after(text, uppers), &lower) }
    };
    let led = |body: &dyn Fn(&[Glyph]) -> usize| {
        let count = if starts(text, is_lead) { body(after(text, 1)) } else { 0 };
        if count > 0 { 1 + count } else { body(text) }
    };
    first_of!(led(&ends_lower), led(&begins_upper))
}

/// A word, and `CON` behind it if there is one.
fn contracted(text: &[Glyph], count: usize) -> usize {
    if count == 0 { 0 } else { count + contraction(after(text, count), true) }
}

fn is_newline_or_slash(glyph: Glyph) -> bool {
    glyph.is_newline() || glyph.is('/')
}

/// Cased words, single digits, symbols with newlines and slashes behind them.
pub(super) fn tekken(text: &[Glyph]) -> usize {
    first_of!(
        cased(text, may_be_upper, may_be_lower),
        run_up_to(text, 1, Glyph::is_number),
        symbols(text, is_other, is_newline_or_slash),
        lines(text),
        spaces(text),
    )
}

/// Cased words with contractions, up to three digits, symbols with newlines and slashes behind them.
pub(super) fn gpt4o(text: &[Glyph]) -> usize {
    first_of!(
        contracted(text, cased(text, may_be_upper, may_be_lower)),
        run_up_to(text, 3, Glyph::is_number),
        symbols(text, is_other, is_newline_or_slash),
        lines(text),
        spaces(text),
    )
}

/// As [`gpt4o`], where letters and marks of any case make a word.
pub(super) fn gpt4o_marks(text: &[Glyph]) -> usize {
    first_of!(
        contracted(text, led(text, is_lead, is_letter_or_mark)),
        run_up_to(text, 3, Glyph::is_number),
        symbols(text, is_other, is_newline_or_slash),
        lines(text),
        spaces(text),
    )
}

/// As [`gpt4o_marks`], with single digits.
pub(super) fn youtu(text: &[Glyph]) -> usize {
    first_of!(
        contracted(text, led(text, is_lead, is_letter_or_mark)),
        run_up_to(text, 1, Glyph::is_number),
        symbols(text, is_other, is_newline_or_slash),
        lines(text),
        spaces(text),
    )
}

/// As [`gpt4o`], where marks are among the letters of any case.
pub(super) fn gpt4o_cased_marks(text: &[Glyph]) -> usize {
    let upper = |glyph: Glyph| may_be_upper(glyph) || glyph.is_mark();
    let lower = |glyph: Glyph| may_be_lower(glyph) || glyph.is_mark();
    first_of!(
        contracted(text, cased(text, upper, lower)),
        run_up_to(text, 3, Glyph::is_number),
        symbols(text, is_other, is_newline_or_slash),
        lines(text),
        spaces(text),
    )
}

/// Words with single spaces between them are one:
/// `CON|[^\r\n\p{L}\p{N}]?(\p{L}\p{M}*( \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`
pub(super) fn exaone_moe(text: &[Glyph]) -> usize {
    let sentence = |text: &[Glyph]| {
        let mut count = 0;
        while let Some(rest) = text.get(count..) {
            let space = usize::from(count > 0 && starts(rest, is_blank));
            if !starts(after(rest, space), Glyph::is_letter) {
                break;
            }
            count += space + 1;
            count += run(after(text, count), Glyph::is_mark);
        }
        count
    };
    let led_sentence = || {
        let count = if starts(text, is_lead) { sentence(after(text, 1)) } else { 0 };
        if count > 0 { 1 + count } else { sentence(text) }
    };
    let signs = || {
        let count = led(text, is_blank, is_other);
        let tail = count > 0 && starts(after(text, count), is_newline_or_slash);
        count + usize::from(tail)
    };
    first_of!(
        contraction(text, true),
        led_sentence(),
        run_up_to(text, 1, Glyph::is_number),
        signs(),
        lines(text),
        spaces(text),
    )
}

/// Chinese characters, by the blocks that hold nothing else.
fn is_han(glyph: Glyph) -> bool {
    matches!(
        glyph.code(),
        0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x2_a6df | 0x2_a700..=0x2_ebef
            | 0x2_f800..=0x2_fa1f
    )
}

/// Chinese characters apart from other words, which are letters of any case with contractions; the rest as in [`llama3`].
pub(super) fn kimi(text: &[Glyph]) -> usize {
    first_of!(
        run(text, is_han),
        contracted(text, led(text, is_lead, |glyph| glyph.is_letter() && !is_han(glyph))),
        run_up_to(text, 3, Glyph::is_number),
        symbols(text, is_other, Glyph::is_newline),
        lines(text),
        spaces(text),
    )
}

/// `P[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, `P` being ASCII
/// punctuation and symbols.
pub(super) fn deepseek3(text: &[Glyph]) -> usize {
    first_of!(
        signed_word(text),
        led(text, is_unsigned_lead, is_letter_or_mark),
        symbols(text, is_sign, Glyph::is_newline),
        lines(text),
        spaces(text),
    )
}

/// As [`deepseek3`], with every newline for itself: `…| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+`
pub(super) fn spark(text: &[Glyph]) -> usize {
    first_of!(
        signed_word(text),
        led(text, is_unsigned_lead, is_letter_or_mark),
        symbols(text, is_sign, |_| false),
        newline(text),
        spaces(text),
    )
}

/// `[\p{P}\p{S}]`
fn is_sign(glyph: Glyph) -> bool {
    glyph.is_punctuation() || glyph.is_symbol()
}

/// `[^\r\n\p{L}\p{P}\p{S}]`
fn is_unsigned_lead(glyph: Glyph) -> bool {
    !(glyph.is_newline() || glyph.is_letter() || is_sign(glyph))
}

/// ASCII punctuation or a symbol, and ASCII letters.
fn signed_word(text: &[Glyph]) -> usize {
    if !starts(text, |glyph| glyph.is_ascii_and(u8::is_ascii_punctuation)) {
        return 0;
    }
    let letters = run(after(text, 1), |glyph| glyph.is_ascii_and(u8::is_ascii_alphabetic));
    if letters > 0 { 1 + letters } else { 0 }
}

/// An optional space and characters that are neither white space nor sentence marks.
pub(super) fn bloom(text: &[Glyph]) -> usize {
    led(text, is_blank, |glyph| {
        let mark = matches!(
            char::from_u32(glyph.code()),
            Some(
                '(' | ')'
                    | '|'
                    | '.'
                    | ','
                    | '!'
                    | '?'
                    | '\u{2026}'
                    | '\u{3002}'
                    | '\u{ff0c}'
                    | '\u{3001}'
                    | '\u{964}'
                    | '\u{6d4}'
                    | '\u{60c}'
            )
        );
        !(mark || glyph.is_space())
    })
}

/// `[\p{P}$+<=>^~|]+`
pub(super) fn punctuation(text: &[Glyph]) -> usize {
    run(text, |glyph| {
        glyph.is_punctuation()
            || glyph
                .is_ascii_and(|byte| matches!(byte, b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'~' | b'|'))
    })
}

/// The same and the backtick.
pub(super) fn punctuation_and_backtick(text: &[Glyph]) -> usize {
    run(text, |glyph| {
        glyph.is_punctuation()
            || glyph.is_ascii_and(|byte| {
                matches!(byte, b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'~' | b'|' | b'`')
            })
    })
}

/// Runs of newlines and runs of anything else.
pub(super) fn newline_runs(text: &[Glyph]) -> usize {
    let newlines = starts(text, |glyph| glyph.is('\n'));
    run(text, |glyph| glyph.is('\n') == newlines)
}

/// `[\r\n]`
pub(super) fn newline(text: &[Glyph]) -> usize {
    usize::from(starts(text, Glyph::is_newline))
}

/// `\p{N}`
pub(super) fn number(text: &[Glyph]) -> usize {
    usize::from(starts(text, Glyph::is_number))
}

/// `\p{N}{1,3}`
pub(super) fn numbers3(text: &[Glyph]) -> usize {
    run_up_to(text, 3, Glyph::is_number)
}

/// `\p{N}+`
pub(super) fn numbers(text: &[Glyph]) -> usize {
    run(text, Glyph::is_number)
}

/// `[0-9][0-9][0-9]`
pub(super) fn three_digits(text: &[Glyph]) -> usize {
    let digits = text.iter().take(3).take_while(|glyph| glyph.is_ascii_and(u8::is_ascii_digit)).count();
    if digits == 3 { 3 } else { 0 }
}

/// `\s?\p{L}+`
pub(super) fn spaced_letters(text: &[Glyph]) -> usize {
    led(text, Glyph::is_space, Glyph::is_letter)
}

/// `\s?\p{P}+`
pub(super) fn spaced_punctuation(text: &[Glyph]) -> usize {
    led(text, Glyph::is_space, Glyph::is_punctuation)
}

/// Chinese, Korean and much between, white space excepted.
pub(super) fn east_asian(text: &[Glyph]) -> usize {
    run(text, |glyph| !glyph.is_space() && matches!(glyph.code(), 0x800..=0x9fa5 | 0xac00..=0xd7ff))
}

/// Chinese characters and kana.
pub(super) fn chinese_and_kana(text: &[Glyph]) -> usize {
    run(text, |glyph| matches!(glyph.code(), 0x4e00..=0x9fa5 | 0x3040..=0x30ff))
}

/// `\s?` and letters of scripts with case.
pub(super) fn spaced_cased_letters(text: &[Glyph]) -> usize {
    led(text, Glyph::is_space, super::cased::is_cased_letter)
}

/// `\s?` and ASCII or wide punctuation, which here takes in ASCII letters.
pub(super) fn spaced_marks(text: &[Glyph]) -> usize {
    led(text, Glyph::is_space, |glyph| {
        !glyph.is_space()
            && matches!(
                glyph.code(),
                0x21..=0x2f | 0x3a..=0x7e | 0xff01..=0xff0f | 0xff1a..=0xff5e | 0x2018..=0x201f | 0x3000..=0x3002
            )
    })
}

/// Scripts of East and South-East Asia. The last of the large blocks was meant to begin with U+F900, but its first character
/// has the same looks as U+8C48, which is what stands in the reference.
pub(super) fn asian(text: &[Glyph]) -> usize {
    run(text, |glyph| {
        matches!(
            glyph.code(),
            0x4e00..=0xfaff | 0x3400..=0x4dbf | 0x3040..=0x30ff | 0xff65..=0xff9f | 0x2f00..=0x2fdf
                | 0xe40..=0xeff | 0x1780..=0x17ff | 0x1000..=0x109f | 0x1100..=0x11ff
        )
    })
}

/// Korean; wide punctuation; bopomofo; Chinese and kana: each for itself.
pub(super) fn east_asian_kinds(text: &[Glyph]) -> usize {
    let kinds: [fn(Glyph) -> bool; 4] = [
        |glyph| matches!(glyph.code(), 0xac00..=0xd7a3 | 0x3131..=0x318e),
        |glyph| {
            matches!(
                glyph.code(),
                0xff01 | 0x2026 | 0x201c | 0x201d | 0x2018 | 0x2019 | 0x2014 | 0xff1a | 0xff1b | 0xff0c
                    | 0x3001..=0x303f | 0xfe30..=0xfe4f
            )
        },
        |glyph| matches!(glyph.code(), 0x3105..=0x312f),
        |glyph| matches!(glyph.code(), 0x4e00..=0x9fa5 | 0x3040..=0x30ff),
    ];
    kinds.into_iter().map(|kind| run(text, kind)).find(|&count| count > 0).unwrap_or(0)
}

/// `\S+`
pub(super) fn not_space(text: &[Glyph]) -> usize {
    run(text, |glyph| !glyph.is_space())
}

/// `<sentinel:[0-9]+>`
pub(super) fn sentinel(text: &[Glyph]) -> usize {
    let name = "<sentinel:";
    if !spells(text, name) {
        return 0;
    }
    let digits = run(after(text, name.len()), |glyph| glyph.is_ascii_and(u8::is_ascii_digit));
    let end = name.len() + digits;
    if digits > 0 && starts(after(text, end), |glyph| glyph.is('>')) { end + 1 } else { 0 }
}

/// `IMGIMG[A-I]{1,4}Z`
pub(super) fn image_token(text: &[Glyph]) -> usize {
    let name = "IMGIMG";
    if !spells(text, name) {
        return 0;
    }
    let letters = run_up_to(after(text, name.len()), 4, |glyph| matches!(glyph.code(), 0x41..=0x49));
    let end = name.len() + letters;
    if letters > 0 && starts(after(text, end), |glyph| glyph.is('Z')) { end + 1 } else { 0 }
}

/// Whether a text begins with these ASCII characters.
fn spells(text: &[Glyph], name: &str) -> bool {
    text.len() >= name.len() && name.chars().zip(text).all(|(c, glyph)| glyph.is(c))
}

/// `[\t\n]|    |  `
pub(super) fn indents(text: &[Glyph]) -> usize {
    if starts(text, |glyph| glyph.is('\t') || glyph.is('\n')) {
        return 1;
    }
    match run_up_to(text, 4, is_blank) {
        4 => 4,
        2 | 3 => 2,
        _ => 0,
    }
}

/// `[\p{P}!-/:-@\[-`{-~]`
pub(super) fn punctuation_mark(text: &[Glyph]) -> usize {
    let is_mark = |glyph: Glyph| glyph.is_punctuation() || glyph.is_ascii_and(u8::is_ascii_punctuation);
    usize::from(starts(text, is_mark))
}
