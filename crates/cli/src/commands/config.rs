//! `oxcart config`: the defaults of all options, where they come from, and how to change them.

use std::fs;
use std::io::Write;

use clap::Command;
use toml_edit::{Item, Table, Value};

use crate::failure::Failure;
use crate::os;
use crate::settings::{Origin, Setting, Settings, nearest};
use crate::table::{Align, Cell, Table as Columns};
use crate::terminal::Terminal;

/// Show and change the defaults of options
///
/// A setting is the default of an option: run.temp that of --temp of `oxcart run`, temp that of --temp of every command. What you type
/// overrides environment variables (OXCART_RUN_TEMP, OXCART_TEMP), which override the settings file.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// A command (run), to list its settings, or a setting (run.temp, temp), to explain it; without either, lists what you have changed
    name: Option<String>,

    /// The new value, written to the settings file
    #[arg(allow_hyphen_values = true)]
    value: Option<String>,

    /// Remove the setting from the file
    #[arg(long, requires = "name", conflicts_with = "value")]
    unset: bool,
}

const EXAMPLES: &str = "Examples:
  oxcart config
      What you have changed, and where
  oxcart config run
      All settings of `oxcart run`, and where their values come from
  oxcart config run.temp 0.2
      A lower temperature for `oxcart run`
  oxcart config model owner/name:Q4_K_M
      Another model for all commands
  oxcart config --unset run.temp
      The usual temperature again";

pub(crate) fn run(
    args: &Args,
    parser: &Command,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let settings = Settings::read()?;
    // Whatever is in the file can be taken out, too, if it means nothing.
    if let (Some(name), true) = (&args.name, args.unset) {
        return unset(settings, name, out);
    }
    let all = settings.all(parser)?;
    match (&args.name, &args.value) {
        (None, _) => {
            if let Err(wrong) = settings.check_keys(parser, &all) {
                tracing::warn!("{wrong}");
            }
            let changed: Vec<&Setting> =
                all.iter().filter(|setting| setting.origin != Origin::Default).collect();
            let path =
                settings.path.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string());
            writeln!(out, "settings file: {path}")?;
            if changed.is_empty() {
                writeln!(
                    out,
                    "nothing has been changed; oxcart config COMMAND lists the settings of a command"
                )?;
            }
            list(&settings, &changed, terminal, out)
        }
        (Some(name), None) if parser.find_subcommand(name).is_some() => {
            let of_command: Vec<&Setting> = all.iter().filter(|setting| setting.command == *name).collect();
            list(&settings, &of_command, terminal, out)
        }
        (Some(name), value) => {
            let meant = named(&all, name)?;
            match value {
                Some(value) => set(settings, name, value, &meant, out),
                None => meant.iter().try_for_each(|setting| explain(&settings, setting, out)),
            }
        }
    }
}

/// The settings that a name stands for: one of a command, or those of all commands.
fn named<'s>(all: &'s [Setting], name: &str) -> Result<Vec<&'s Setting>, Failure> {
    let is_meant = |setting: &&Setting| setting.name() == name || setting.key == name;
    let meant: Vec<&Setting> = all.iter().filter(is_meant).collect();
    if meant.is_empty() {
        let names: Vec<String> =
            all.iter().flat_map(|setting| [setting.name(), setting.key.clone()]).collect();
        let near = nearest(name, names.iter().map(String::as_str));
        return Err(Failure::Usage(format!("there is no setting '{}'{near}", name.escape_debug())));
    }
    Ok(meant)
}

fn origin(settings: &Settings, origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".into(),
        Origin::File => settings.path.as_ref().map_or_else(String::new, |path| path.display().to_string()),
        Origin::Variable(name) => name.clone(),
    }
}

fn shown(setting: &Setting) -> String {
    match setting.values.join(",") {
        empty if empty.is_empty() => "-".into(),
        values => values,
    }
}

fn list(
    settings: &Settings,
    all: &[&Setting],
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let rows = all.iter().map(|setting| {
        [
            Cell::plain(setting.name()),
            Cell::plain(shown(setting)),
            Cell::dim(origin(settings, &setting.origin)),
        ]
    });
    let titles = (!all.is_empty()).then_some(["setting", "value", "from"]);
    Ok(Columns { columns: [Align::Left; 3], titles, rows }.write(out, terminal)?)
}

fn explain(settings: &Settings, setting: &Setting, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{} = {}", setting.name(), shown(setting))?;
    writeln!(out, "  {}", setting.about)?;
    writeln!(out, "  from: {}", origin(settings, &setting.origin))?;
    Ok(writeln!(
        out,
        "  can be set by: --{}, {}, the settings file",
        setting.key,
        setting.variables().join(", ")
    )?)
}

/// A value as TOML has it.
fn value_of(setting: &Setting, text: &str) -> Value {
    match text {
        "true" | "false" if setting.is_flag() => Value::from(text == "true"),
        // A number that would be written in another way is another value to some options.
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(number), _) if number.to_string() == text => Value::from(number),
            (_, Ok(number)) if number.is_finite() && number.to_string() == text => Value::from(number),
            _ => Value::from(text),
        },
    }
}

fn set(
    mut settings: Settings,
    name: &str,
    text: &str,
    meant: &[&Setting],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    meant.iter().try_for_each(|setting| setting.check(text))?;
    let Some(first) = meant.first() else { return Ok(()) };
    let value = Item::Value(value_of(first, text));
    if settings.document.is_empty() {
        // Comments alone are what the file begins with.
        let comments = settings.document.trailing().clone();
        settings.document.set_trailing("");
        settings.document.decor_mut().set_prefix(comments);
    }
    match name.split_once('.') {
        Some((command, key)) => {
            let table = settings.document.entry(command).or_insert_with(|| Item::Table(Table::new()));
            table[key] = value;
        }
        None => settings.document[name] = value,
    }
    write(&settings)?;
    let path = settings.path.unwrap_or_default();
    Ok(writeln!(out, "{name} = {text}, in {}", path.display())?)
}

fn unset(mut settings: Settings, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let removed = match name.split_once('.') {
        Some((command, key)) => settings
            .document
            .get_mut(command)
            .and_then(Item::as_table_like_mut)
            .and_then(|table| table.remove(key)),
        None => settings.document.remove(name),
    };
    let path = settings.path.clone().unwrap_or_default();
    if removed.is_none() {
        return Err(Failure::Usage(format!("{name} is not set in {}", path.display())));
    }
    write(&settings)?;
    Ok(writeln!(out, "{name} removed from {}", path.display())?)
}

fn write(settings: &Settings) -> Result<(), Failure> {
    let nowhere =
        || Failure::Usage("there is no home folder to keep settings in; set OXCART_CONFIG to a file".into());
    let path = settings.path.as_ref().ok_or_else(nowhere)?;
    let unwritable =
        |error: std::io::Error| Failure::Machine(format!("cannot write {}: {error}", path.display()));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(unwritable)?;
    }
    // A link stays one.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let part = path.with_extension("toml.part");
    let write = || {
        let mut file = os::private_file().write(true).create(true).truncate(true).open(&part)?;
        file.write_all(settings.document.to_string().as_bytes())?;
        fs::rename(&part, path)
    };
    write().map_err(unwritable)
}
