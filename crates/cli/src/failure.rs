//! Why a command did not succeed, and what to tell the person about it: one line, with what to try next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use oxcart::backend::{ByteSize, Device, Error as DeviceError};
use oxcart::gguf::{Error as GgufError, SetError, Text};
use oxcart::llm::model::Error as ModelError;
use oxcart::llm::text::VocabError;
use oxcart::sched::Error as ScheduleError;

use crate::generation::room_for_more;
use crate::workers::device_name;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of our output has closed it. Not an error worth printing.
    ClosedPipe,
    /// The results could not be written.
    Output(io::Error),
    /// A model file could not be used.
    Model { path: PathBuf, error: GgufError },
    /// A model could not be placed, loaded or run.
    Run { path: PathBuf, error: Box<ModelError> },
    /// What was asked for makes no sense here, or is not allowed.
    Usage(String),
    /// The machine did not do what it should have.
    Machine(String),
    /// There is too little memory for a model.
    NoRoom(String),
    /// A device of this machine could not be used.
    Device { error: DeviceError },
    /// Workers could not be used; one line each.
    Workers { errors: Vec<String> },
}

impl Failure {
    /// An error about the file at `path`, unless it names another.
    pub(crate) fn model(path: &Path, error: GgufError) -> Failure {
        match error {
            GgufError::InFile { path, source } => Failure::Model { path, error: *source },
            error => Failure::Model { path: path.to_owned(), error },
        }
    }

    /// An error of running the model at `path`.
    pub(crate) fn run(path: &Path, error: ModelError) -> Failure {
        match error {
            ModelError::File(error) => Failure::model(path, error),
            ModelError::Device(error) | ModelError::Schedule(ScheduleError::Device(error)) => {
                Failure::Device { error }
            }
            // The number of a sequence means nothing to a person.
            ModelError::InSequence { error, .. } => Failure::run(path, *error),
            ModelError::NoRoom { device, free, needed } => Failure::NoRoom(format!(
                "{} has {} free, but its part of the model needs {}: {} are missing; add a worker, or change --split, --ctx or --kv",
                device_name(&device),
                ByteSize(free as u64),
                ByteSize(needed as u64),
                ByteSize(needed.saturating_sub(free) as u64)
            )),
            error => Failure::Run { path: path.to_owned(), error: Box::new(error) },
        }
    }

    /// An error about memory with how much there is, if it is that of one of these devices.
    pub(crate) fn with_memory_of(self, devices: &[Arc<dyn Device>]) -> Failure {
        let Failure::Device { error: DeviceError::OutOfMemory { buffer_type, size } } = &self else {
            return self;
        };
        let memory = devices
            .iter()
            .find(|device| device.buffer_type().name() == buffer_type.as_str())
            .and_then(|device| device.memory().ok());
        let Some(memory) = memory else { return self };
        let (wanted, free, total) =
            (ByteSize(*size as u64), ByteSize(memory.free as u64), ByteSize(memory.total as u64));
        Failure::NoRoom(format!(
            "cannot allocate {wanted} on {}: {free} of {total} are free, and other clients of the worker or other programs hold the \
             rest; add a worker, or change --split, --ctx or --kv",
            device_name(buffer_type)
        ))
    }

    /// A vocabulary that cannot be used.
    pub(crate) fn vocabulary(path: &Path, error: &VocabError) -> Failure {
        Failure::Usage(format!("{}: {error}", Text::new(path.as_os_str().as_encoded_bytes())))
    }

    /// Whether a device, a worker or this machine failed, so that what it was doing has to be set up anew.
    pub(crate) fn is_of_machine(&self) -> bool {
        self.exit_code() == ExitCode::from(1)
    }

    /// Whether there would be enough memory if something else were not there.
    pub(crate) fn is_of_memory(&self) -> bool {
        matches!(self, Failure::NoRoom(_) | Failure::Device { error: DeviceError::OutOfMemory { .. } })
    }

    /// 1 when the machine failed, 2 when the input is bad.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::ClosedPipe => ExitCode::SUCCESS,
            Failure::Output(_)
            | Failure::Machine(_)
            | Failure::NoRoom(_)
            | Failure::Device { .. }
            | Failure::Workers { .. } => ExitCode::from(1),
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Run { error, .. } => match **error {
                ModelError::Schedule(_) => ExitCode::from(1),
                _ => ExitCode::from(2),
            },
            Failure::Model { error, .. } => match error {
                GgufError::Io { source, .. } if !is_bad_path(source) => ExitCode::from(1),
                GgufError::OutOfMemory { .. } | GgufError::TooManyMappings => ExitCode::from(1),
                _ => ExitCode::from(2),
            },
        }
    }
}

/// Whether the system's answer is about the path and not about the machine.
fn is_bad_path(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
    };
    matches!(
        error.kind(),
        NotFound | PermissionDenied | NotADirectory | IsADirectory | InvalidFilename | InvalidInput
    )
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Output(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::ClosedPipe => f.write_str("the output was closed"),
            Failure::Output(error) => write!(f, "cannot write the result: {error}"),
            Failure::Usage(reason) | Failure::Machine(reason) | Failure::NoRoom(reason) => {
                f.write_str(reason)
            }
            Failure::Device { error } => show_device_error(error, f),
            Failure::Run { error, .. } if matches!(**error, ModelError::Schedule(_)) => write!(f, "{error}"),
            Failure::Run { error, .. } if matches!(**error, ModelError::ContextFull { .. }) => {
                match **error {
                    ModelError::ContextFull { used: 0, asked, limit, trained } => write!(
                        f,
                        "the prompt has {asked} tokens, but the context holds only {limit}: use a shorter prompt, or {}",
                        room_for_more(limit, trained)
                    ),
                    ModelError::ContextFull { limit, trained, .. } => {
                        write!(f, "{error}: use {}", room_for_more(limit, trained))
                    }
                    _ => write!(f, "{error}"),
                }
            }
            Failure::Run { path, error } => {
                write!(f, "{}: {error}", Text::new(path.as_os_str().as_encoded_bytes()))
            }
            Failure::Workers { errors } => {
                let lines: Vec<_> =
                    errors.iter().map(|error| Text::new(error.as_bytes()).to_string()).collect();
                f.write_str(&lines.join("\noxcart: "))
            }
            Failure::Model { path, error } => {
                let path = path.as_os_str().as_encoded_bytes();
                write!(f, "{}: ", Text::new(path))?;
                match error {
                    GgufError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                        f.write_str("no such file; check the path")
                    }
                    error => write!(f, "{error}{}", advice(error)),
                }
            }
        }
    }
}

/// What a device says, in units that people use, and what may be behind it.
fn show_device_error(error: &DeviceError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        DeviceError::OutOfMemory { buffer_type, size } => write!(
            f,
            "{} cannot allocate {}: other programs, or other clients of a worker, may hold its memory; a smaller --ctx or another \
             --split needs less",
            device_name(buffer_type),
            ByteSize(*size as u64)
        ),
        DeviceError::DeviceFailed { device, reason } => {
            write!(f, "{} failed: {reason}", device_name(device))
        }
        DeviceError::DeviceLost { device, reason } => {
            write!(f, "{} is lost: {reason}", device_name(device))
        }
        DeviceError::Interrupted { device, reason } => {
            write!(f, "{} was interrupted: {reason}", device_name(device))
        }
        DeviceError::Unsupported { device, what } => {
            write!(f, "{} does not support {what}", device_name(device))
        }
        DeviceError::Panicked { device, what } => {
            write!(f, "{}: a kernel panicked, which is a bug: {what}", device_name(device))
        }
        DeviceError::Misaligned { buffer_type, alignment } => write!(
            f,
            "memory lent to {} does not start at a multiple of {alignment}",
            device_name(buffer_type)
        ),
        DeviceError::ReadOnly { buffer_type } => {
            write!(f, "{} memory is read-only", device_name(buffer_type))
        }
        error => write!(f, "{error}"),
    }
}

/// What to try next.
fn advice(error: &GgufError) -> &'static str {
    match error {
        GgufError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "; check its permissions"
        }
        GgufError::Io { source, .. } if is_bad_path(source) => "; check the path",
        GgufError::Io { action: "open", .. } => "; try again, or check the system's limits",
        GgufError::Io { .. } => "; try again, or check the disk",
        GgufError::NotAFile | GgufError::Magic { .. } => "; give the path of a .gguf file",
        GgufError::Version { .. } => "; look for a newer oxcart, or convert the file again",
        GgufError::TooShort { .. }
        | GgufError::Truncated { .. }
        | GgufError::Count { .. }
        | GgufError::OutsideFile { .. } => "; the file may be incomplete: download it again",
        GgufError::Set(SetError::FileName { .. } | SetError::NameCount { .. }) => {
            "; give the files their original names"
        }
        GgufError::Set(SetError::NotFirst { .. }) => "",
        GgufError::Set(SetError::Missing { .. }) => "; put all of them in one folder",
        GgufError::OutOfMemory { .. } => "; free some memory",
        GgufError::Shrunk | GgufError::Changed => "; try again when no program is writing to it",
        _ => "; the file is damaged: download or convert it again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_causes() {
        let error = DeviceError::OutOfMemory { buffer_type: "CPU@box:50052".into(), size: 94_371_840 };
        let shown = Failure::Device { error }.to_string();
        assert!(shown.starts_with("CPU@box:50052 cannot allocate 90.0 MiB: other programs"), "{shown}");
    }

    /// Wherever it was noticed, a device is called by where it is, and sizes have units.
    #[test]
    fn devices_of_workers_are_called_by_where_they_are() {
        type OfDevice = fn(String, String) -> DeviceError;
        let device = || "RPC0[box:50052]".to_owned();
        let reason = || "closed the connection".to_owned();
        let errors: [(OfDevice, &str); 5] = [
            (
                |buffer_type, _| DeviceError::OutOfMemory { buffer_type, size: 94_371_840 },
                "box:50052 cannot allocate 90.0 MiB: other programs",
            ),
            (
                |device, reason| DeviceError::DeviceLost { device, reason },
                "box:50052 is lost: closed the connection",
            ),
            (
                |device, reason| DeviceError::Interrupted { device, reason },
                "box:50052 was interrupted: closed the connection",
            ),
            (
                |device, reason| DeviceError::DeviceFailed { device, reason },
                "box:50052 failed: closed the connection",
            ),
            (
                |device, what| DeviceError::Unsupported { device, what },
                "box:50052 does not support closed the connection",
            ),
        ];
        for (error, want) in errors {
            for failure in [
                ModelError::Device(error(device(), reason())),
                ModelError::Schedule(ScheduleError::Device(error(device(), reason()))),
            ] {
                let failure = Failure::run(Path::new("m.gguf"), failure);
                assert_eq!(failure.exit_code(), ExitCode::from(1));
                let shown = failure.to_string();
                assert!(shown.starts_with(want) && !shown.contains("RPC"), "{shown}");
            }
        }
    }

    #[test]
    fn long_prompts_begin_with_what_is_wrong() {
        let shown = |limit, trained| {
            let error = ModelError::ContextFull { used: 0, asked: 900, limit, trained };
            Failure::run(Path::new("m.gguf"), error).to_string()
        };
        assert_eq!(
            shown(512, 1024),
            "the prompt has 900 tokens, but the context holds only 512: use a shorter prompt, or a larger --ctx (up to 1024)"
        );
        // What the model does not have is not advised.
        assert_eq!(
            shown(512, 512),
            "the prompt has 900 tokens, but the context holds only 512: use a shorter prompt, or a model with a longer context \
             (this one was trained for 512 tokens)"
        );
    }

    #[test]
    fn the_exit_code_tells_bad_paths_from_bad_machines() {
        let code = |kind: io::ErrorKind, action| {
            let error = GgufError::Io { action, source: kind.into() };
            Failure::model(Path::new("m.gguf"), error).exit_code()
        };
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidFilename]
        {
            assert_eq!(code(kind, "open"), ExitCode::from(2), "{kind}");
        }
        for kind in [io::ErrorKind::OutOfMemory, io::ErrorKind::Other, io::ErrorKind::StaleNetworkFileHandle]
        {
            assert_eq!(code(kind, "open"), ExitCode::from(1), "{kind}");
            assert_eq!(code(kind, "read"), ExitCode::from(1), "{kind}");
        }
    }
}
