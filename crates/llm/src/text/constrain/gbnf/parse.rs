//! The text of a grammar into rules.
//!
//! Invariant: one pass without recursion. Groups have become rules; every rule that is used is defined.

use hashbrown::HashMap;

use super::{Atom, Item, Rule};
use crate::text::limits::MAX_GRAMMAR_DEPTH;

pub(super) fn parse(source: &str) -> Result<Vec<Rule>, String> {
    let mut parser = Parser { source, at: 0, rules: Vec::new(), names: HashMap::new(), defined: Vec::new() };
    parser.rule_of("root");
    parser.grammar().map_err(|fault| {
        let line = source.get(..parser.at).unwrap_or(source).matches('\n').count() + 1;
        format!("line {line}: {fault}")
    })?;
    if !parser.defined.first().copied().unwrap_or_default() {
        return Err("there is no rule 'root'".to_owned());
    }
    let mut missing: Vec<&str> = Vec::new();
    for (name, &rule) in &parser.names {
        if !parser.defined.get(rule).copied().unwrap_or_default() {
            missing.push(name);
        }
    }
    match missing.into_iter().min() {
        Some(name) => Err(format!("rule '{name}' is used, but not defined")),
        None => Ok(parser.rules),
    }
}

struct Parser<'a> {
    source: &'a str,
    at: usize,
    rules: Vec<Rule>,
    names: HashMap<&'a str, usize>,
    /// For every rule, whether its body was seen.
    defined: Vec<bool>,
}

/// A rule or group that is being read.
struct Open {
    rule: usize,
    alternatives: Vec<Vec<Item>>,
    items: Vec<Item>,
}

impl<'a> Parser<'a> {
    fn grammar(&mut self) -> Result<(), String> {
        self.skip_space(true);
        while self.peek().is_some() {
            let name = self.word();
            if name.is_empty() {
                return Err("the name of a rule should stand here".to_owned());
            }
            self.skip_space(false);
            self.expect("::=")?;
            let rule = self.rule_of(name);
            if self.defined.get(rule).copied().unwrap_or_default() {
                return Err(format!("rule '{name}' is defined twice"));
            }
            self.skip_space(true);
            self.body(rule)?;
            if !matches!(self.peek(), None | Some('\r' | '\n')) {
                return Err("a rule should end here".to_owned());
            }
            self.skip_space(true);
        }
        Ok(())
    }

    /// What follows `::=`.
    fn body(&mut self, rule: usize) -> Result<(), String> {
        let mut open = vec![Open { rule, alternatives: Vec::new(), items: Vec::new() }];
        while let Some(next) = self.peek() {
            let nested = open.len() > 1;
            let Some(innermost) = open.last_mut() else { break };
            match next {
                '"' => innermost.items.push(once(self.literal()?)),
                '[' => innermost.items.push(once(self.set()?)),
                '<' => innermost.items.push(once(self.token()?)),
                '!' => return Err("tokens cannot be excluded".to_owned()),
                '.' => {
                    self.at += 1;
                    innermost.items.push(once(Atom::Regex("(?s:.)".to_owned())));
                }
                '*' | '+' | '?' | '{' => {
                    let Some(item) = innermost.items.pop() else {
                        return Err(format!("'{next}' has nothing to repeat"));
                    };
                    let item = self.repeated(item)?;
                    innermost.items.push(item);
                }
                '|' => {
                    self.at += 1;
                    self.skip_space(true);
                    innermost.alternatives.push(std::mem::take(&mut innermost.items));
                }
                '(' => {
                    self.at += 1;
                    self.skip_space(true);
                    if open.len() > MAX_GRAMMAR_DEPTH {
                        return Err(format!("groups are nested by more than {MAX_GRAMMAR_DEPTH}"));
                    }
                    let rule = self.new_rule();
                    open.push(Open { rule, alternatives: Vec::new(), items: Vec::new() });
                }
                ')' if nested => {
                    self.at += 1;
                    let Some(group) = open.pop() else { break };
                    let rule = self.close(group);
                    if let Some(around) = open.last_mut() {
                        around.items.push(once(Atom::Rule(rule)));
                    }
                }
                c if is_word(c) => {
                    let name = self.word();
                    innermost.items.push(once(Atom::Rule(self.rule_of(name))));
                }
                _ => break,
            }
            self.skip_space(open.len() > 1);
        }
        match (open.pop(), open.is_empty()) {
            (Some(body), true) => {
                self.close(body);
                Ok(())
            }
            _ => Err("')' should stand here".to_owned()),
        }
    }

    /// Ends a rule or group and says which it is.
    fn close(&mut self, open: Open) -> usize {
        let Open { rule, mut alternatives, items } = open;
        alternatives.push(items);
        if let (Some(slot), Some(defined)) = (self.rules.get_mut(rule), self.defined.get_mut(rule)) {
            (slot.alternatives, *defined) = (alternatives, true);
        }
        rule
    }

    /// An item with the repetition that stands here.
    fn repeated(&mut self, item: Item) -> Result<Item, String> {
        let (least, most) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.bounds()?,
        };
        let atom = match item {
            Item { atom, least: 1, most: Some(1) } => atom,
            // A repetition of a repetition.
            item => {
                let rule = self.new_rule();
                Atom::Rule(self.close(Open { rule, alternatives: Vec::new(), items: vec![item] }))
            }
        };
        Ok(Item { atom, least, most })
    }

    /// What stands between braces, the first of which is behind us.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        self.skip_space(false);
        let least = self.number()?;
        self.skip_space(false);
        let most = match self.peek() {
            Some(',') => {
                self.at += 1;
                self.skip_space(false);
                let most =
                    self.peek().is_some_and(|c| c.is_ascii_digit()).then(|| self.number()).transpose()?;
                self.skip_space(false);
                most
            }
            _ => Some(least),
        };
        self.expect("}")?;
        match most {
            Some(most) if most < least => Err(format!("{{{least},{most}}} is more than it is less")),
            most => Ok((least, most)),
        }
    }

    fn number(&mut self) -> Result<u32, String> {
        let rest = self.source.get(self.at..).unwrap_or_default();
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest.get(..len).filter(|digits| !digits.is_empty());
        let digits = digits.ok_or("a number should stand here")?;
        let number = digits.parse().map_err(|_| format!("{digits} is too large"))?;
        self.at += len;
        Ok(number)
    }

    fn literal(&mut self) -> Result<Atom, String> {
        self.at += 1;
        let mut regex = String::new();
        loop {
            match self.peek().ok_or("a string has no end")? {
                '"' => break,
                _ => push_character(&mut regex, self.character()?),
            }
        }
        self.at += 1;
        Ok(Atom::Regex(regex))
    }

    fn set(&mut self) -> Result<Atom, String> {
        const ENDLESS: &str = "a set of characters has no end";
        self.at += 1;
        let mut regex = String::from("[");
        if self.peek() == Some('^') {
            self.at += 1;
            regex.push('^');
        }
        let before = regex.len();
        while self.peek().ok_or(ENDLESS)? != ']' {
            let first = self.character()?;
            regex.push_str(&format!("\\x{{{:X}}}", u32::from(first)));
            let rest = self.source.get(self.at..).unwrap_or_default();
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                self.peek().ok_or(ENDLESS)?;
                let last = self.character()?;
                if last < first {
                    return Err(format!("the range from '{first}' to '{last}' is empty"));
                }
                regex.push_str(&format!("-\\x{{{:X}}}", u32::from(last)));
            }
        }
        self.at += 1;
        if regex.len() == before {
            return Err("a set of characters is empty".to_owned());
        }
        regex.push(']');
        Ok(Atom::Regex(regex))
    }

    fn token(&mut self) -> Result<Atom, String> {
        let rest = self.source.get(self.at..).unwrap_or_default();
        let len = rest.find('>').ok_or("a token has no end")? + 1;
        let token = rest.get(..len).unwrap_or_default();
        if token.contains('\n') {
            return Err("a token has no end".to_owned());
        }
        self.at += len;
        Ok(Atom::Token(token.to_owned()))
    }

    /// A character of a string or set, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        const ENDS: &str = "the grammar ends within an escape";
        match self.next().ok_or(ENDS)? {
            '\\' => {}
            c => return Ok(c),
        }
        let digits = match self.next().ok_or(ENDS)? {
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'n' => return Ok('\n'),
            c @ ('\\' | '"' | '[' | ']' | '-') => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => return Err(format!("'\\{c}' has no meaning")),
        };
        let escape = self.source.get(self.at - 2..).unwrap_or_default();
        let number = escape.get(2..2 + digits).filter(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()));
        let number = number.and_then(|hex| u32::from_str_radix(hex, 16).ok()).ok_or_else(|| {
            format!("{digits} hexadecimal digits should follow '{}'", escape.get(..2).unwrap_or_default())
        })?;
        self.at += digits;
        let name = escape.get(..2 + digits).unwrap_or_default();
        char::from_u32(number).ok_or_else(|| format!("'{name}' is not a character"))
    }

    fn rule_of(&mut self, name: &'a str) -> usize {
        match self.names.get(name) {
            Some(&rule) => rule,
            None => {
                let rule = self.new_rule();
                self.names.insert(name, rule);
                rule
            }
        }
    }

    fn new_rule(&mut self) -> usize {
        self.rules.push(Rule::default());
        self.defined.push(false);
        self.rules.len() - 1
    }

    fn word(&mut self) -> &'a str {
        let rest = self.source.get(self.at..).unwrap_or_default();
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).unwrap_or_default()
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        let rest = self.source.get(self.at..).unwrap_or_default();
        if !rest.starts_with(what) {
            return Err(format!("'{what}' should stand here"));
        }
        self.at += what.len();
        Ok(())
    }

    fn peek(&self) -> Option<char> {
        self.source.get(self.at..)?.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Skips blanks and comments, and ends of lines if told to.
    fn skip_space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => {
                    let rest = self.source.get(self.at..).unwrap_or_default();
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }
}

fn once(atom: Atom) -> Item {
    Item { atom, least: 1, most: Some(1) }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// Writes a character that stands for itself.
fn push_character(regex: &mut String, c: char) {
    match c.is_ascii_alphanumeric() {
        true => regex.push(c),
        false => regex.push_str(&format!("\\x{{{:X}}}", u32::from(c))),
    }
}
