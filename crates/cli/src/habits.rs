//! What people type who come from llama.cpp: options of several letters behind one dash, and names that are others here.
//!
//! Invariant: only whole words are rewritten, before anything is parsed, and never behind `--`; whatever is not in the table and
//! names no option of the command stays as it was typed.

use std::ffi::OsString;

use clap::Command;

use crate::settings::nearest;

/// As typed elsewhere, and as it is called here.
const NAMES: [(&str, &str); 21] = [
    ("-ngl", "--gpu-layers"),
    ("--n-gpu-layers", "--gpu-layers"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-fa", "--attention"),
    ("--flash-attn", "--attention"),
    ("-ts", "--split"),
    ("--tensor-split", "--split"),
    ("-dev", "--device"),
    ("-sys", "--system"),
    ("--system-prompt", "--system"),
    ("-md", "--draft"),
    ("--model-draft", "--draft"),
    ("-hf", "--model"),
    ("-hfr", "--model"),
    ("--hf-repo", "--model"),
    ("-mu", "--model"),
    ("--model-url", "--model"),
    ("-np", "--parallel"),
    ("-no-cnv", "--raw"),
    ("--no-conversation", "--raw"),
];

/// The words of a command line as the parser knows them.
pub(crate) fn rewritten(words: impl IntoIterator<Item = OsString>, parser: &Command) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut new: Vec<OsString> = words.by_ref().take(1).collect();
    let mut command = None;
    let mut is_over = false;
    for word in words {
        let Some(text) = word.to_str().filter(|_| !is_over) else {
            new.push(word);
            continue;
        };
        is_over = text == "--";
        if command.is_none() {
            command = parser.find_subcommand(text);
        }
        new.push(command.and_then(|command| known(text, command)).map_or(word, OsString::from));
    }
    new
}

/// A word as a command knows it, if that is another one. What follows `=` stays.
fn known(word: &str, command: &Command) -> Option<String> {
    let (name, rest) = word.split_at(word.find('=').unwrap_or(word.len()));
    let has = |long: &str| {
        command.get_arguments().any(|argument| {
            let names = argument.get_long_and_visible_aliases().unwrap_or_default();
            names.contains(&long) || argument.get_all_aliases().unwrap_or_default().contains(&long)
        })
    };
    if let Some((_, here)) = NAMES.iter().find(|(there, here)| *there == name && has(&here[2..])) {
        return Some(format!("{here}{rest}"));
    }
    // One dash instead of two.
    let letters = name.strip_prefix('-').filter(|letters| letters.len() > 1 && !letters.starts_with('-'))?;
    has(letters).then(|| format!("--{letters}{rest}"))
}

/// What is wrong with a word of several letters behind one dash, if that is why a command line was refused: the parser takes `-tmep 0`
/// for `-t mep`, and complains of `mep`, or of `-t` if there is none. `argument` and `value` are what it complains of.
pub(crate) fn unknown(words: &[OsString], argument: &str, value: &str, parser: &Command) -> Option<String> {
    let mut words = words.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    let command = words.find_map(|word| parser.find_subcommand(word))?;
    let is_meant = |word: &&str| {
        let Some((first, rest)) = word.strip_prefix('-').and_then(|letters| letters.split_at_checked(1))
        else {
            return false;
        };
        let is_name = rest.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        first != "-" && !rest.is_empty() && is_name && (rest == value || argument == format!("-{first}"))
    };
    let word = words.find(is_meant)?;
    let names: Vec<String> =
        command.get_arguments().filter_map(|known| Some(format!("--{}", known.get_long()?))).collect();
    let near = nearest(&format!("-{word}"), names.iter().map(String::as_str));
    let help = format!("oxcart {} --help lists all options", command.get_name());
    Some(format!("there is no option {word}{}", if near.is_empty() { format!("; {help}") } else { near }))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn parser() -> Command {
        Command::new("oxcart").subcommand(
            Command::new("run")
                .arg(Arg::new("gpu").long("gpu-layers"))
                .arg(Arg::new("n").short('n').long("n"))
                .arg(Arg::new("temp").long("temp").alias("temperature"))
                .arg(Arg::new("raw").long("raw").action(ArgAction::SetTrue))
                .arg(Arg::new("prompt")),
        )
    }

    fn words(line: &str) -> String {
        let words = rewritten(line.split(' ').map(OsString::from), &parser());
        words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn unknown_words_are_named_as_they_were_typed() {
        let said = |line: &str, argument: &str, value: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            unknown(&words, argument, value, &parser())
        };
        let typo = "there is no option -tepm; did you mean '--temp'?";
        assert_eq!(said("oxcart run -tepm 0", "--threads <N>", "epm").as_deref(), Some(typo));
        let other = "there is no option -ub; oxcart run --help lists all options";
        assert_eq!(said("oxcart run -ub 5", "-u", "").as_deref(), Some(other));
        // What else may be wrong.
        for (line, argument, value) in [
            ("oxcart run -n few", "-n <N>", "few"),
            ("oxcart run -n5x", "-n <N>", "5x"),
            ("oxcart run --tepm 0", "--tepm", ""),
            ("oxcart run -- -tepm", "--threads <N>", "epm"),
            ("oxcart", "", ""),
        ] {
            assert_eq!(said(line, argument, value), None, "{line}");
        }
    }

    #[test]
    fn whole_words_are_rewritten() {
        for (typed, want) in [
            ("oxcart run -ngl 99 -n 5", "oxcart run --gpu-layers 99 -n 5"),
            ("oxcart run -ngl=99", "oxcart run --gpu-layers=99"),
            ("oxcart run -temp 0", "oxcart run --temp 0"),
            ("oxcart run -temperature 0", "oxcart run --temperature 0"),
            ("oxcart run -no-cnv", "oxcart run --raw"),
            // What stays.
            ("oxcart run -n5 -x -nglx", "oxcart run -n5 -x -nglx"),
            ("oxcart run -- -ngl", "oxcart run -- -ngl"),
            ("oxcart run -ctk q8_0", "oxcart run -ctk q8_0"),
            ("oxcart -ngl 99", "oxcart -ngl 99"),
        ] {
            assert_eq!(words(typed), want);
        }
    }
}
