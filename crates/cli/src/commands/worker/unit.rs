//! The systemd unit that starts a worker, as text.
//!
//! Invariant: systemd reads every word back as it was given, whatever is in it; what could not be read back is refused. A unit of ours begins
//! with [`MARK`].

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// What a unit that this command wrote begins with.
pub(super) const MARK: &str =
    "# Written by oxcart worker --install, which replaces it; oxcart worker --uninstall removes it.";

/// When it is started again, and how it ends.
const RESTART: &str = "Restart=on-failure
RestartSec=5
# Wrong options stay wrong.
RestartPreventExitStatus=2
TimeoutStopSec=20
UMask=0077
";

/// What it cannot do then.
const CONFINED: &str = "NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

/// Why it can do all that its user can.
const NOT_CONFINED: &str =
    "# Not confined, because the driver of a card may have to load a part of itself with more rights.\n";

/// What a unit starts, and how.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// This program.
    pub(super) program: PathBuf,
    /// What comes after its name.
    pub(super) words: Vec<OsString>,
    /// The folder that paths among these begin in.
    pub(super) folder: PathBuf,
    /// Variables that the worker reads, and their values.
    pub(super) variables: Vec<(String, OsString)>,
    /// Whether the worker can do without programs that get the rights of another user, which drivers of cards may need.
    pub(super) is_confined: bool,
}

/// Something that cannot be written into a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unwritable {
    what: OsString,
    why: &'static str,
}

impl Unwritable {
    fn new(what: &OsStr, why: &'static str) -> Unwritable {
        Unwritable { what: what.to_owned(), why }
    }
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unwritable { what, why } = self;
        write!(f, "'{}' cannot be written into a systemd unit: {why}", what.to_string_lossy().escape_debug())
    }
}

impl Unit {
    pub(super) fn text(&self) -> Result<String, Unwritable> {
        let mut text = format!(
            "{MARK}

[Unit]
Description=Oxcart worker: lends this machine's devices
# It goes on trying: at boot its address may not be there yet.
StartLimitIntervalSec=0

[Service]
Type=exec
"
        );
        let mut command = program(&self.program)?;
        for word in &self.words {
            // In a command, $ begins a variable.
            write!(command, " {}", quoted(word, true)?).ok();
        }
        writeln!(text, "ExecStart={command}").ok();
        writeln!(text, "WorkingDirectory=-{}", bare(&self.folder)?).ok();
        for (name, value) in &self.variables {
            let mut assigned = OsString::from(format!("{name}="));
            assigned.push(value);
            writeln!(text, "Environment={}", quoted(&assigned, false)?).ok();
        }
        text.push_str(RESTART);
        // For a user's units, all of these imply the first of them.
        text.push_str(if self.is_confined { CONFINED } else { NOT_CONFINED });
        text.push_str("\n[Install]\nWantedBy=default.target\n");
        Ok(text)
    }
}

/// Whether a unit's text is one of ours.
pub(super) fn is_ours(text: &str) -> bool {
    text.lines().next() == Some(MARK)
}

/// A word of a list of words.
fn quoted(word: &OsStr, is_command: bool) -> Result<String, Unwritable> {
    let text = word.to_str().ok_or_else(|| Unwritable::new(word, "it is not UTF-8"))?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '%' => quoted.push_str("%%"),
            '$' if is_command => quoted.push_str("$$"),
            '\0' => return Err(Unwritable::new(word, "it has a zero byte")),
            // Also ends of lines, which would end the setting.
            c if c.is_ascii_control() => {
                write!(quoted, "\\x{:02x}", u32::from(c)).ok();
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(quoted)
}

/// The program of a command. systemd replaces no variables in it, and takes no quotes, backslashes and control characters.
fn program(path: &Path) -> Result<String, Unwritable> {
    let word = path.as_os_str();
    if !path.has_root() {
        return Err(Unwritable::new(word, "it is not the whole path"));
    }
    let is_refused = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
    if word.to_str().is_some_and(|text| text.contains(is_refused)) {
        let why = "systemd takes no program with quotes, backslashes or control characters in its path";
        return Err(Unwritable::new(word, why));
    }
    quoted(word, false)
}

/// A path that is all of a setting.
fn bare(path: &Path) -> Result<String, Unwritable> {
    let word = path.as_os_str();
    let text = word.to_str().ok_or_else(|| Unwritable::new(word, "it is not UTF-8"))?;
    let is_read_back = path.has_root()
        && !text.contains(char::is_control)
        && !text.ends_with(|c: char| c == '\\' || c.is_whitespace());
    match is_read_back {
        true => Ok(text.replace('%', "%%")),
        false => {
            Err(Unwritable::new(word, "systemd would read another path; go to a folder with a simpler name"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a setting, as systemd.syntax(7), systemd.unit(5) and systemd.service(5) say that they are read.
    fn read(setting: &str, is_command: bool) -> Vec<String> {
        let (mut words, mut chars) = (Vec::new(), setting.chars().peekable());
        loop {
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            if chars.peek().is_none() {
                return words;
            }
            let (mut word, mut quote) = (String::new(), None);
            while let Some(c) = chars.next() {
                match (c, quote) {
                    ('\\', _) => match chars.next().unwrap() {
                        'x' => {
                            let code: String =
                                [chars.next().unwrap(), chars.next().unwrap()].iter().collect();
                            word.push(char::from(u8::from_str_radix(&code, 16).unwrap()));
                        }
                        c @ ('"' | '\\') => word.push(c),
                        other => panic!("unknown escape {other}"),
                    },
                    ('"' | '\'', None) => quote = Some(c),
                    (c, Some(open)) if c == open => quote = None,
                    (c, None) if c.is_whitespace() => break,
                    ('%', _) => {
                        assert_eq!(chars.next(), Some('%'), "a specifier");
                        word.push('%');
                    }
                    ('$', _) if is_command && !words.is_empty() => {
                        assert_eq!(chars.next(), Some('$'), "a variable");
                        word.push('$');
                    }
                    (c, _) => word.push(c),
                }
            }
            assert_eq!(quote, None, "{setting}");
            words.push(word);
        }
    }

    fn unit(words: &[&str]) -> Unit {
        Unit {
            program: "/opt/my apps/100%/$x/oxcart".into(),
            words: words.iter().map(OsString::from).collect(),
            folder: "/home/ann/50% of it".into(),
            variables: vec![("XDG_DATA_HOME".into(), r#"/a "b" \c %d $e"#.into())],
            is_confined: true,
        }
    }

    /// The settings of a name.
    fn settings<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines.filter_map(|(key, value)| (key == name).then_some(value)).collect()
    }

    #[test]
    fn words_are_read_back() {
        let words = ["worker", "--name", "a b", "--models=/m/50%", "--log", "it's \"$HOME\" \\n", ";", ""];
        let text = unit(&words).text().unwrap();
        let [command] = settings(&text, "ExecStart")[..] else { panic!("{text}") };
        let found = read(command, true);
        assert_eq!((&*found[0], &found[1..]), ("/opt/my apps/100%/$x/oxcart", &words.map(String::from)[..]));
        let [variable] = settings(&text, "Environment")[..] else { panic!("{text}") };
        assert_eq!(read(variable, false), [r#"XDG_DATA_HOME=/a "b" \c %d $e"#]);
        assert_eq!(settings(&text, "WorkingDirectory"), ["-/home/ann/50%% of it"]);
        assert!(
            is_ours(&text)
                && text.contains("NoNewPrivileges=yes")
                && text.ends_with("WantedBy=default.target\n")
        );
        let with_card = Unit { is_confined: false, ..unit(&words) }.text().unwrap();
        assert!(!with_card.contains("NoNewPrivileges") && !with_card.contains("Restrict"), "{with_card}");
    }

    /// Any words at all: each setting stays one line, and its words are those that were given.
    #[test]
    fn any_words_are_read_back() {
        let mut random = 1_u64;
        let mut draw = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap()
        };
        let alphabet: Vec<char> =
            "ab/=-.:;,@!+~#[](){}<>|&*?^`'\"\\%%$$  \t\n\r\u{1}\u{7f}é漢👩\u{85}\u{2028}".chars().collect();
        for _ in 0..20_000 {
            let words: Vec<String> = (0..1 + draw(4))
                .map(|_| (0..draw(12)).map(|_| alphabet[draw(alphabet.len())]).collect())
                .collect();
            let given: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = Unit { variables: vec![("A".into(), words[0].clone().into())], ..unit(&given) }
                .text()
                .unwrap();
            let lines = text.split('\n').filter(|line| line.starts_with("ExecStart=")).count();
            assert_eq!(lines, 1, "{words:?}");
            let [command] = settings(&text, "ExecStart")[..] else { panic!("{words:?}") };
            assert!(!command.contains(|c: char| c.is_ascii_control()), "{words:?}");
            assert_eq!(read(command, true)[1..], words[..], "{command}");
            let [variable] = settings(&text, "Environment")[..] else { panic!("{words:?}") };
            assert_eq!(read(variable, false), [format!("A={}", words[0])]);
        }
    }

    #[test]
    fn what_systemd_would_not_take_is_refused() {
        let refused = |unit: Unit| unit.text().unwrap_err().to_string();
        for path in ["oxcart", "/a\"b", "/a'b", "/a\\b", "/a\nb"] {
            let said = refused(Unit { program: path.into(), ..unit(&[]) });
            assert!(said.contains("cannot be written"), "{said}");
        }
        for folder in ["a", "/a\\", "/a ", "/a\nb"] {
            assert!(
                refused(Unit { folder: folder.into(), ..unit(&[]) }).contains("simpler name"),
                "{folder:?}"
            );
        }
        assert!(refused(unit(&["a\0"])).contains("zero byte"));
    }
}
