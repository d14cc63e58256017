//! `oxcart completions` and `oxcart man`: what shells and manuals know about the commands, made of the commands themselves.

use std::io::Write;
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::settings::nearest;

/// Print completions for a shell
///
/// For example, in ~/.bashrc: source <(oxcart completions bash)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut parser: Command, out: &mut dyn Write) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut parser, "oxcart", &mut text);
    Ok(out.write_all(&text)?)
}

/// Print a manual page, or write all of them
///
/// For example: oxcart man --dir ~/.local/share/man/man1
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The command that the page is about; the whole program if not given
    command: Option<String>,

    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn man(args: &ManArgs, mut parser: Command, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(folder) = &args.dir {
        let unwritable = |error: std::io::Error| {
            Failure::Machine(format!("cannot write to {}: {error}", folder.display()))
        };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        return clap_mangen::generate_to(parser, folder).map_err(unwritable);
    }
    // Pages of commands know the name of the program only in what is built.
    parser.build();
    let page = match &args.command {
        None => parser,
        Some(name) => {
            let unknown = || {
                let near = nearest(name, parser.get_subcommands().map(Command::get_name));
                Failure::Usage(format!("there is no command '{}'{near}", name.escape_debug()))
            };
            parser.find_subcommand(name).cloned().ok_or_else(unknown)?
        }
    };
    Ok(clap_mangen::Man::new(page).render(out)?)
}
