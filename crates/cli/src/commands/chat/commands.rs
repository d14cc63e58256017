//! What can be said to the chat itself: a table that help, completion and the chat share.

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Clear,
    Undo,
    Retry,
    Edit,
    File,
    System,
    Save,
    Load,
    Model,
    Workers,
    History,
    Think,
    Markdown,
    Stats,
    Exit,
}

/// Name, what follows it, what it does.
const TABLE: [(Command, &str, &str, &str); 16] = [
    (Command::Help, "/help", "", "list the commands"),
    (Command::Clear, "/clear", "", "start over with an empty conversation"),
    (Command::Undo, "/undo", "", "take back your last message and its answer"),
    (Command::Retry, "/retry", "", "answer your last message again"),
    (Command::Edit, "/edit", "", "change your last message and send it again"),
    (Command::File, "/file", "PATH", "send a text file along with your next message"),
    (Command::System, "/system", "[TEXT]", "set the system prompt; without TEXT, clear it"),
    (Command::Save, "/save", "PATH", "write the conversation to a file"),
    (Command::Load, "/load", "PATH", "continue a conversation from a file"),
    (Command::Model, "/model", "[NAME]", "switch to another model; without NAME, show the current one"),
    (Command::Workers, "/workers", "[LIST]", "switch to other workers (none: this machine only)"),
    (Command::History, "/history", "", "show the conversation so far"),
    (Command::Think, "/think", "[show|fold]", "show or hide reasoning; alone, show that of the last answer"),
    (Command::Markdown, "/markdown", "[on|off]", "render Markdown, or show it as plain text"),
    (Command::Stats, "/stats", "", "show speed, tokens and traffic"),
    (Command::Exit, "/exit", "", "quit, as do Ctrl-D and pressing Ctrl-C twice"),
];

/// Other names, for habits from elsewhere.
const ALIASES: [(&str, Command); 4] =
    [("/?", Command::Help), ("/quit", Command::Exit), ("/bye", Command::Exit), ("/new", Command::Clear)];

/// All of them, for people.
pub(super) fn help() -> String {
    let mut lines = String::from("Commands:");
    for (_, name, argument, what) in TABLE {
        let usage = format!("{name} {argument}");
        lines.push_str(&format!("\n  {usage:<20} {what}"));
    }
    lines.push_str(
        "\n\nKeys: Ctrl-C stops an answer or clears the line, arrow keys edit and recall, Ctrl-R searches,",
    );
    lines.push_str(
        "\nTab completes. A backslash before Return continues on the next line; pasted text is one message.",
    );
    lines
}

/// The names of all commands.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.into_iter().map(|(_, name, ..)| name)
}

/// Whether a command is followed by a path.
pub(super) fn takes_file(name: &str) -> bool {
    matches!(find(name), Ok(Command::File | Command::Save | Command::Load | Command::Model))
}

/// The command of a name; else, the likeliest that was meant.
pub(super) fn find(name: &str) -> Result<Command, Option<&'static str>> {
    let all = TABLE.into_iter().map(|(command, name, ..)| (name, command)).chain(ALIASES);
    if let Some((_, command)) = all.clone().find(|(known, _)| *known == name) {
        return Ok(command);
    }
    let likeness = |known: &str| strsim::jaro_winkler(known, name);
    let likely = names().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    Err(likely.filter(|known| likeness(known) > 0.8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_or_guessed() {
        assert_eq!(find("/save"), Ok(Command::Save));
        assert_eq!(find("/quit"), Ok(Command::Exit));
        assert_eq!(find("/sav"), Err(Some("/save")));
        assert_eq!(find("/retyr"), Err(Some("/retry")));
        assert_eq!(find("/zzzz"), Err(None));
        for (command, name, ..) in TABLE {
            assert_eq!(find(name), Ok(command));
            assert!(help().contains(name));
        }
    }
}
