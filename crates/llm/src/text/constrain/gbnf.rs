//! llama.cpp's grammars (GBNF) in terms of Lark.
//!
//! GBNF knows characters and rules; the parser behind Lark reads terminals, which are regular expressions, and is only fast
//! with large ones. So every rule that reaches no recursion becomes a terminal, and so does every run of such rules within
//! the others.
//!
//! Invariant: whatever the result accepts, the grammar accepts. The other way round there is one exception: a terminal always
//! takes as much as it can, so where one ends and the text after it could have begun earlier, that reading is lost.

mod lark;
mod parse;

/// A grammar in Lark, or why there is none.
pub(super) fn to_lark(source: &str) -> Result<String, String> {
    let rules = parse::parse(source)?;
    Ok(lark::write(&rules))
}

/// A rule, by its number; groups are rules, too. The first is the root.
#[derive(Debug, Default)]
struct Rule {
    alternatives: Vec<Vec<Item>>,
}

/// Something a number of times.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    atom: Atom,
    least: u32,
    /// No limit without it.
    most: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum Atom {
    /// A regular expression for one character or a string of them.
    Regex(String),
    Rule(usize),
    /// A token by its name or number, as both formats write it.
    Token(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let lark = to_lark(source).unwrap();
        assert_eq!(lark.trim_end(), expected.trim_start());
    }

    #[test]
    fn a_grammar_without_recursion_is_one_expression() {
        check(
            "root ::= \"yes\" | no # either\nno ::= \"n/o\" [^a-z\\]\\x2d]* .{2,}",
            r"
start: T0
T0: /yes/ | T1
T1: /n\x{2F}o/ /[^\x{61}-\x{7A}\x{5D}\x{2D}]/* /(?s:.)/{2,}",
        );
    }

    #[test]
    fn recursion_is_left_to_rules() {
        check(
            "root ::= ws list\nlist ::= \"[\" ws (item (\",\" ws item)*)? \"]\" ws\nitem ::= list | [0-9]+ ws\nws ::= \" \"?",
            r"
start: r0
r0: T1 r2
T1: /\x{20}/?
r2: M0 r3? M1
r3: r4 r5*
r4: r2 | M2
r5: M3 r4
M0: /\x{5B}/ T1
M1: /\x{5D}/ T1
M2: /[\x{30}-\x{39}]/+ T1
M3: /\x{2C}/ T1",
        );
    }

    #[test]
    fn tokens_are_never_part_of_terminals() {
        check("root ::= \"a\" <think> \"b\" <[7]>", "\nstart: r0\nr0: M0 <think> M1 <[7]>\nM0: /a/\nM1: /b/");
    }

    #[test]
    fn odd_but_right() {
        // Nothing at all; a repetition of a repetition; none of something; newlines inside a group and behind a bar.
        check("root ::=", "\nstart: T0\nT0: \"\"");
        check("root ::= (\"a\"\n\n?)+ |\n \"b\"{0} \"c\"{0,3}", "\nstart: T0\nT0: T1+ | /c/{0,3}\nT1: /a/?");
        check("root ::= \"a\"+{2}", "\nstart: T0\nT0: T1{2,2}\nT1: /a/+");
        check("root ::= \"\" \"é\\u00e9\\U0001F600\"", "\nstart: T0\nT0: \"\" /\\x{E9}\\x{E9}\\x{1F600}/");
        // Endless, but that is for the compiler to say.
        check("root ::= \"a\" root", "\nstart: r0\nr0: M0 r0\nM0: /a/");
    }

    #[test]
    fn faults_are_named() {
        for (source, expected) in [
            ("", "there is no rule 'root'"),
            ("other ::= \"a\"", "there is no rule 'root'"),
            ("root ::= a b", "rule 'a' is used, but not defined"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule 'root' is defined twice"),
            ("root ::= \"a", "line 1: a string has no end"),
            ("root ::= \"\\q\"", "line 1: '\\q' has no meaning"),
            ("root ::= \"\\uD800\"", "line 1: '\\uD800' is not a character"),
            ("root ::= \"\\x1\"", "line 1: 2 hexadecimal digits should follow '\\x'"),
            ("root ::= [a-", "line 1: a set of characters has no end"),
            ("root ::= [z-a]", "line 1: the range from 'z' to 'a' is empty"),
            ("root ::= []", "line 1: a set of characters is empty"),
            ("root ::=\n *", "line 2: '*' has nothing to repeat"),
            ("root ::= \"a\"{3,2}", "line 1: {3,2} is more than it is less"),
            ("root ::= \"a\"{99999999999}", "line 1: 99999999999 is too large"),
            ("root ::= \"a\"{x}", "line 1: a number should stand here"),
            ("root ::= \"a\"{1", "line 1: '}' should stand here"),
            ("root ::= (\"a\"", "line 1: ')' should stand here"),
            ("root ::= \"a\")", "line 1: a rule should end here"),
            ("root = \"a\"", "line 1: '::=' should stand here"),
            ("::= \"a\"", "line 1: the name of a rule should stand here"),
            ("root ::= <a", "line 1: a token has no end"),
            ("root ::= !<a>", "line 1: tokens cannot be excluded"),
        ] {
            assert_eq!(to_lark(source).unwrap_err(), expected, "{source}");
        }
        let deep = format!("root ::= {}", "(".repeat(100_000));
        assert!(to_lark(&deep).unwrap_err().contains("nested"));
    }
}
