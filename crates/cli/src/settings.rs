//! Defaults that a user has chosen: in a settings file, or in variables of the environment.
//!
//! Invariant: a setting is an option of a command, and changes nothing but its default; there is one mechanism for all of them, and
//! what is typed always wins. Of several, the nearest to the command decides: a variable of the command, a variable, the command's
//! table in the file, the top of the file.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, Id};
use toml_edit::{DocumentMut, Item, Value};

use crate::failure::Failure;

/// Options that are about one call and not about a habit.
const NOT_SETTINGS: [&str; 26] = [
    "help",
    "version",
    "json",
    "plan",
    "markdown",
    "csv",
    "json-schema",
    "grammar",
    "regex",
    "lookup",
    "draft",
    "file",
    "output",
    "imatrix",
    "prompt",
    "svg",
    "raw",
    "pooling",
    "chunks",
    "top",
    "until-stdin-ends",
    "install",
    "uninstall",
    "dir",
    "unset",
    "call-it",
];

/// The same of some commands, where the option of another command is a habit: they would be set together, and mean different things.
const NOT_SETTINGS_OF: [(&str, &str); 4] =
    [("worker", "models"), ("embed", "tokens"), ("score", "tokens"), ("graph", "tokens")];

/// Variables that mean something else.
const OTHER_VARIABLES: [&str; 2] = ["OXCART_CACHE", "OXCART_CONFIG"];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// No other was chosen.
    Default,
    /// The settings file.
    File,
    /// A variable of the environment.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("by default"),
            Origin::File => f.write_str("from the settings file"),
            Origin::Variable(name) => write!(f, "from {name}"),
        }
    }
}

/// An option of a command that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) command: String,
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
    pub(crate) origin: Origin,
    /// What it does.
    pub(crate) about: String,
    /// The option itself.
    pub(crate) argument: Arg,
}

impl Setting {
    /// `run.temp`
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.command, self.key)
    }

    /// The variables that set it, the stronger first.
    pub(crate) fn variables(&self) -> Vec<String> {
        variables(&self.command, &self.key)
    }

    /// Whether it is a flag.
    pub(crate) fn is_flag(&self) -> bool {
        matches!(self.argument.get_action(), ArgAction::SetTrue)
    }

    /// Whether the option takes a value.
    pub(crate) fn check(&self, value: &str) -> Result<(), Failure> {
        let wrong = |why: &str| Failure::Usage(format!("{} cannot be '{value}': {why}", self.name()));
        if self.is_flag() {
            return match value {
                "true" | "false" => Ok(()),
                _ => Err(wrong("it must be true or false")),
            };
        }
        // Names of others are not there to conflict with.
        let argument = Arg::new("value")
            .long("value")
            .action(ArgAction::Append)
            .value_parser(self.argument.get_value_parser().clone());
        let parts = parts(&self.argument, value).into_iter().map(|part| format!("--value={part}"));
        let parsed = Command::new("setting").no_binary_name(true).arg(argument).try_get_matches_from(parts);
        match parsed {
            Ok(_) => Ok(()),
            Err(error) => {
                let why = error.to_string();
                let why = why
                    .lines()
                    .next()
                    .and_then(|line| line.rsplit_once(">': ").map(|(_, why)| why.to_owned()));
                Err(wrong(&why.unwrap_or_else(|| "the option does not accept it".into())))
            }
        }
    }
}

fn variables(command: &str, key: &str) -> Vec<String> {
    let upper = |text: &str| text.replace('-', "_").to_uppercase();
    let all = [format!("OXCART_{}_{}", upper(command), upper(key)), format!("OXCART_{}", upper(key))];
    all.into_iter().filter(|name| !OTHER_VARIABLES.contains(&name.as_str())).collect()
}

/// The values of an option that are written as one.
fn parts(argument: &Arg, value: &str) -> Vec<String> {
    match argument.get_value_delimiter() {
        Some(delimiter) => value.split(delimiter).map(str::to_owned).collect(),
        None => vec![value.to_owned()],
    }
}

/// What a user has chosen.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) path: Option<PathBuf>,
    pub(crate) document: DocumentMut,
}

impl Settings {
    /// Where the file is, whether it is there or not.
    fn path() -> Option<PathBuf> {
        let given = env::var_os("OXCART_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        given.or_else(|| Some(oxcart::folders::settings()?.join("config.toml")))
    }

    /// Reads the file. None is an empty one.
    pub(crate) fn read() -> Result<Settings, Failure> {
        let path = Settings::path();
        let text = match path.as_ref().map(fs::read_to_string) {
            Some(Ok(text)) => text,
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                let path = path.unwrap_or_default();
                return Err(Failure::Usage(format!(
                    "cannot read the settings in {}: {error}",
                    path.display()
                )));
            }
            _ => String::new(),
        };
        let document = text.parse::<DocumentMut>().map_err(|error| {
            let path = path.clone().unwrap_or_default();
            Failure::Usage(format!("the settings in {} are not valid TOML: {error}", path.display()))
        })?;
        Ok(Settings { path, document })
    }

    /// Every option that can be set, as it is.
    pub(crate) fn all(&self, parser: &Command) -> Result<Vec<Setting>, Failure> {
        let mut all = Vec::new();
        for command in parser.get_subcommands() {
            for argument in command.get_arguments().filter(|argument| is_setting(command, argument)) {
                let key = argument.get_long().unwrap_or_default().to_owned();
                let (values, origin) = self.value(command.get_name(), &key, argument)?;
                let about = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let (command, argument) = (command.get_name().to_owned(), argument.clone());
                all.push(Setting { command, key, values, origin, about, argument });
            }
        }
        Ok(all)
    }

    fn value(&self, command: &str, key: &str, argument: &Arg) -> Result<(Vec<String>, Origin), Failure> {
        for name in variables(command, key) {
            // An empty one is not set.
            if let Some(value) = env::var(&name).ok().filter(|value| !value.is_empty()) {
                return Ok((parts(argument, &value), Origin::Variable(name)));
            }
        }
        let in_table =
            self.document.get(command).and_then(Item::as_table_like).and_then(|table| table.get(key));
        // A table is about a command.
        let is_value = |item: &&Item| item.is_value() && !item.is_table_like();
        if let Some(item) = in_table.or_else(|| self.document.get(key).filter(is_value)) {
            return Ok((
                texts(item).ok_or_else(|| {
                    self.wrong(&format!(
                        "{command}.{key} must be a string, a number, true or false, or a list of these"
                    ))
                })?,
                Origin::File,
            ));
        }
        let default = argument.get_default_values().iter();
        Ok((default.map(|value| value.to_string_lossy().into_owned()).collect(), Origin::Default))
    }

    fn wrong(&self, why: &str) -> Failure {
        let path = self.path.clone().unwrap_or_default();
        Failure::Usage(format!("{}: {why}", path.display()))
    }

    /// Nothing in the file is without a meaning.
    pub(crate) fn check_keys(&self, parser: &Command, all: &[Setting]) -> Result<(), Failure> {
        for (key, item) in self.document.iter() {
            match item.as_table_like() {
                Some(table) => {
                    if parser.find_subcommand(key).is_none() {
                        return Err(self.wrong(&format!("there is no command '{key}'")));
                    }
                    let of_command = || all.iter().filter(|setting| setting.command == key);
                    if let Some((unknown, _)) =
                        table.iter().find(|(key, _)| of_command().all(|known| known.key != *key))
                    {
                        let names = of_command().map(|setting| setting.key.as_str());
                        let why = format!("{key} has no setting '{unknown}'{}", nearest(unknown, names));
                        return Err(self.wrong(&why));
                    }
                }
                None if all.iter().all(|setting| setting.key != key) => {
                    let names = all.iter().map(|setting| setting.key.as_str());
                    return Err(self.wrong(&format!("there is no setting '{key}'{}", nearest(key, names))));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A parser whose defaults are the user's, and what was changed. What cannot be used with something that was typed is left out.
    pub(crate) fn applied(
        &self,
        mut parser: Command,
        words: &[OsString],
    ) -> Result<(Command, Vec<Setting>), Failure> {
        let all = self.all(&parser)?;
        self.check_keys(&parser, &all)?;
        let typed = Typed::of(&parser, words);
        let is_changed = |setting: &Setting| setting.origin != Origin::Default && !typed.excludes(setting);
        let changed: Vec<Setting> = all.into_iter().filter(is_changed).collect();
        for setting in &changed {
            let (id, values) = (setting.argument.get_id().clone(), setting.values.clone());
            parser = parser.mut_subcommand(&setting.command, |command| {
                // The parser wants them for as long as the program runs, which is when they go.
                let values: Vec<&'static str> = values.into_iter().map(|value| &*value.leak()).collect();
                command.mut_arg(id, |argument| argument.default_values(values))
            });
        }
        Ok((parser, changed))
    }
}

/// What was typed: the parser itself does not ask whether a default goes with it.
#[derive(Debug, Default)]
struct Typed {
    command: Option<Command>,
    arguments: Vec<Id>,
}

impl Typed {
    /// Reads a command line as far as it can be read; what is wrong with it is for the parser to say.
    fn of(parser: &Command, words: &[OsString]) -> Typed {
        let Ok(matches) = parser.clone().ignore_errors(true).try_get_matches_from(words) else {
            return Typed::default();
        };
        let Some((name, matches)) = matches.subcommand() else { return Typed::default() };
        let is_typed = |id: &Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Typed {
            command: parser.find_subcommand(name).cloned(),
            arguments: matches.ids().filter(|id| is_typed(id)).cloned().collect(),
        }
    }

    /// Whether a setting cannot be used with it.
    fn excludes(&self, setting: &Setting) -> bool {
        let Some(command) = self.command.as_ref().filter(|command| command.get_name() == setting.command)
        else {
            return false;
        };
        let of = |argument: &Arg| command.get_arg_conflicts_with(argument);
        let set = setting.argument.get_id();
        command.get_arguments().filter(|argument| self.arguments.contains(argument.get_id())).any(|typed| {
            of(typed).iter().any(|other| other.get_id() == set)
                || of(&setting.argument).iter().any(|other| other.get_id() == typed.get_id())
        })
    }
}

fn is_setting(command: &Command, argument: &Arg) -> bool {
    let is_habit =
        |long: &str| !NOT_SETTINGS.contains(&long) && !NOT_SETTINGS_OF.contains(&(command.get_name(), long));
    argument.get_long().is_some_and(is_habit) && !argument.is_hide_set()
}

/// `; did you mean 'temp'?`, if something is near.
pub(crate) fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> String {
    let likely =
        names.map(|name| (strsim::jaro_winkler(word, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    likely
        .filter(|(likeness, _)| *likeness > 0.8)
        .map_or_else(String::new, |(_, name)| format!("; did you mean '{name}'?"))
}

/// A value of the file as it would be typed.
fn texts(item: &Item) -> Option<Vec<String>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Boolean(flag) => Some(flag.value().to_string()),
        _ => None,
    };
    match item.as_value()? {
        Value::Array(all) => all.iter().map(text).collect(),
        value => Some(vec![text(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser() -> Command {
        Command::new("oxcart").subcommand(
            Command::new("run")
                .arg(
                    Arg::new("temp").long("temp").value_parser(clap::value_parser!(f32)).default_value("0.8"),
                )
                .arg(Arg::new("split").long("split").value_delimiter(',').action(ArgAction::Append))
                .arg(Arg::new("shift").long("shift").action(ArgAction::SetTrue))
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue)),
        )
    }

    fn words(typed: &str) -> Vec<OsString> {
        typed.split(' ').map(OsString::from).collect()
    }

    fn settings(text: &str) -> Settings {
        Settings { path: Some("config.toml".into()), document: text.parse().unwrap() }
    }

    #[test]
    fn the_file_changes_defaults() {
        let file = settings("temp = 0.5\n[run]\nshift = true\nsplit = [1, 2]\n");
        let (parser, changed) = file.applied(parser(), &words("oxcart run")).unwrap();
        assert_eq!(changed.len(), 3);
        let parse = |words: &[&str]| {
            let matches = parser.clone().try_get_matches_from([&["oxcart", "run"], words].concat()).unwrap();
            let run = matches.subcommand().unwrap().1.clone();
            let split: Vec<String> = run.get_many::<String>("split").unwrap().cloned().collect();
            (*run.get_one::<f32>("temp").unwrap(), run.get_flag("shift"), split.join(","))
        };
        assert_eq!(parse(&[]), (0.5, true, "1,2".into()));
        assert_eq!(parse(&["--temp", "0.1", "--split", "3,4"]), (0.1, true, "3,4".into()));
    }

    #[test]
    fn what_is_typed_pushes_out_what_it_cannot_be_used_with() {
        let parser = || {
            Command::new("oxcart").subcommand(
                Command::new("run")
                    .arg(Arg::new("all").long("all").action(ArgAction::Append).conflicts_with("one"))
                    .arg(Arg::new("one").long("one"))
                    .arg(Arg::new("other").long("other")),
            )
        };
        let changed = |text: &str, typed: &str| {
            let (_, changed) = settings(text).applied(parser(), &words(typed)).unwrap();
            changed.into_iter().map(|setting| setting.key).collect::<Vec<_>>()
        };
        assert_eq!(changed("all = [1, 2]\n", "oxcart run"), ["all"]);
        assert_eq!(changed("all = [1, 2]\n", "oxcart run --other 3"), ["all"]);
        assert!(changed("all = [1, 2]\n", "oxcart run --one 3").is_empty());
        // In whichever direction it was declared, and even if the rest of the line is wrong.
        assert!(changed("one = 1\n", "oxcart run --all 3 --nonsense").is_empty());
    }

    #[test]
    fn the_table_of_a_command_comes_first() {
        let all = settings("temp = 0.5\n[run]\ntemp = 0.7\n").all(&parser()).unwrap();
        let temp = all.iter().find(|setting| setting.key == "temp").unwrap();
        assert_eq!((temp.values.as_slice(), &temp.origin), (&["0.7".to_owned()][..], &Origin::File));
        assert!(temp.check("x").is_err() && temp.check("1.5").is_ok());
        assert_eq!(temp.variables(), ["OXCART_RUN_TEMP", "OXCART_TEMP"]);
    }

    /// An option that concerns one call of one command may be a habit of another.
    #[test]
    fn the_same_name_may_be_a_setting_of_one_command_only() {
        let parser = || {
            let tokens = || Arg::new("tokens").long("tokens");
            Command::new("oxcart")
                .subcommand(Command::new("serve").arg(tokens()))
                .subcommand(Command::new("score").arg(tokens()))
        };
        let changed = |text: &str, typed: &str| {
            let applied = settings(text).applied(parser(), &words(typed));
            applied.map(|(_, changed)| changed.iter().map(Setting::name).collect::<Vec<_>>())
        };
        assert_eq!(changed("tokens = 5\n", "oxcart serve").unwrap(), ["serve.tokens"]);
        assert_eq!(changed("[serve]\ntokens = 5\n", "oxcart serve").unwrap(), ["serve.tokens"]);
        assert!(changed("[score]\ntokens = 5\n", "oxcart score").is_err());
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (text, want) in [
            ("tmp = 1", "there is no setting 'tmp'; did you mean 'temp'?"),
            ("[run]\njson = true", "run has no setting 'json'"),
            ("[walk]\n", "there is no command 'walk'"),
            ("temp = { a = 1 }", "there is no command 'temp'"),
        ] {
            let error = settings(text).applied(parser(), &words("oxcart run")).unwrap_err().to_string();
            assert!(error.starts_with("config.toml: ") && error.contains(want), "{error}");
        }
    }
}
