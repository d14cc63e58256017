//! Values that help, manual pages and completions list, however they are read.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};

/// A parser, and the values that it is said to take: it may take others as well, such as those that llama.cpp has.
#[derive(Clone, Debug)]
pub(crate) struct Listed<P> {
    parser: P,
    names: Vec<&'static str>,
}

/// Reads a value as `parser` does, and lists these.
pub(crate) fn listed<P: TypedValueParser>(
    names: impl IntoIterator<Item = &'static str>,
    parser: P,
) -> Listed<P> {
    Listed { parser, names: names.into_iter().collect() }
}

impl<P: TypedValueParser> TypedValueParser for Listed<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        self.parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}
