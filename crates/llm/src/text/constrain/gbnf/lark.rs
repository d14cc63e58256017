//! Rules as Lark.
//!
//! Invariant: what is written is not nested, and is as long as the rules that the root reaches, within a constant factor.

use std::fmt::Write;

use super::{Atom, Item, Rule};

pub(super) fn write(rules: &[Rule]) -> String {
    let regular = regular(rules);
    let mut writer = Writer { rules, regular, text: String::new(), merged: Vec::new() };
    let root = writer.name(0);
    writer.line(&format!("start: {root}"));
    for rule in reached(rules) {
        writer.rule(rule);
    }
    for (number, items) in std::mem::take(&mut writer.merged).into_iter().enumerate() {
        writer.line(&format!("M{number}: {items}"));
    }
    writer.text
}

struct Writer<'a> {
    rules: &'a [Rule],
    /// For every rule, whether it is a regular expression.
    regular: Vec<bool>,
    text: String,
    /// Runs of regular items within rules that are not.
    merged: Vec<String>,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn is_regular(&self, atom: &Atom) -> bool {
        match atom {
            Atom::Regex(_) => true,
            Atom::Rule(rule) => self.regular.get(*rule).copied().unwrap_or_default(),
            Atom::Token(_) => false,
        }
    }

    /// Terminals have large letters.
    fn name(&self, rule: usize) -> String {
        match self.regular.get(rule) {
            Some(true) => format!("T{rule}"),
            _ => format!("r{rule}"),
        }
    }

    fn rule(&mut self, rule: usize) {
        let Some(Rule { alternatives }) = self.rules.get(rule) else { return };
        let regular = self.regular.get(rule).copied().unwrap_or_default();
        let written: Vec<String> = alternatives
            .iter()
            .map(|items| if regular { self.terminal(items) } else { self.sequence(items) })
            .collect();
        self.line(&format!("{}: {}", self.name(rule), written.join(" | ")));
    }

    /// Items that are all regular.
    fn terminal(&self, items: &[Item]) -> String {
        join(items.iter().filter(|item| item.most != Some(0)).map(|item| self.item(item)))
    }

    /// Items of which runs that are regular become terminals of their own.
    fn sequence(&mut self, items: &[Item]) -> String {
        let runs = items.chunk_by(|a, b| self.is_regular(&a.atom) == self.is_regular(&b.atom));
        let runs: Vec<&[Item]> = runs.collect();
        let mut parts = Vec::new();
        for run in runs {
            let merges = run.first().is_some_and(|item| self.is_regular(&item.atom));
            match run {
                // Has a name already.
                [item] if matches!(item.atom, Atom::Rule(_)) => parts.push(self.terminal(run)),
                _ if merges => {
                    let items = self.terminal(run);
                    parts.push(format!("M{}", self.merged.len()));
                    self.merged.push(items);
                }
                _ => parts.push(self.terminal(run)),
            }
        }
        join(parts)
    }

    fn item(&self, item: &Item) -> String {
        let mut written = match &item.atom {
            // An empty expression is written as an empty string.
            Atom::Regex(regex) if regex.is_empty() => "\"\"".to_owned(),
            Atom::Regex(regex) => format!("/{regex}/"),
            Atom::Rule(rule) => self.name(*rule),
            Atom::Token(token) => token.clone(),
        };
        let suffix = match (item.least, item.most) {
            (1, Some(1)) => return written,
            (0, None) => "*",
            (1, None) => "+",
            (0, Some(1)) => "?",
            (least, most) => {
                let most = most.map_or_else(String::new, |most| most.to_string());
                // A string takes whatever is written to it.
                let _ = write!(written, "{{{least},{most}}}");
                return written;
            }
        };
        written.push_str(suffix);
        written
    }
}

fn join(parts: impl IntoIterator<Item = String>) -> String {
    let joined = parts.into_iter().collect::<Vec<_>>().join(" ");
    if joined.is_empty() { "\"\"".to_owned() } else { joined }
}

/// The rules that a rule uses.
fn used(rule: &Rule) -> impl Iterator<Item = usize> {
    rule.alternatives.iter().flatten().filter_map(|item| match item.atom {
        Atom::Rule(used) => Some(used),
        _ => None,
    })
}

/// The rules that the root reaches, in ascending order.
fn reached(rules: &[Rule]) -> Vec<usize> {
    let mut seen = vec![false; rules.len()];
    let mut todo = vec![0];
    while let Some(rule) = todo.pop() {
        if let (Some(seen @ false), Some(rule)) = (seen.get_mut(rule), rules.get(rule)) {
            *seen = true;
            todo.extend(used(rule));
        }
    }
    (0..rules.len()).filter(|&rule| seen.get(rule).copied().unwrap_or_default()).collect()
}

/// For every rule, whether it reaches neither a recursion nor a token: then it is a regular expression.
fn regular(rules: &[Rule]) -> Vec<bool> {
    let mut users = vec![Vec::new(); rules.len()];
    // How many of the rules that it uses are not known to be regular yet.
    let mut open = vec![0_usize; rules.len()];
    let mut todo = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let mut count = 0;
        for used in used(rule) {
            count += 1;
            if let Some(users) = users.get_mut(used) {
                users.push(number);
            }
        }
        let tokens = rule.alternatives.iter().flatten().any(|item| matches!(item.atom, Atom::Token(_)));
        match (count, tokens) {
            (0, false) => todo.push(number),
            (_, true) => count = usize::MAX,
            _ => {}
        }
        if let Some(open) = open.get_mut(number) {
            *open = count;
        }
    }
    let mut regular = vec![false; rules.len()];
    while let Some(rule) = todo.pop() {
        if let Some(regular) = regular.get_mut(rule) {
            *regular = true;
        }
        for &user in users.get(rule).into_iter().flatten() {
            if let Some(open) = open.get_mut(user).filter(|open| **open != usize::MAX) {
                *open -= 1;
                if *open == 0 {
                    todo.push(user);
                }
            }
        }
    }
    regular
}
