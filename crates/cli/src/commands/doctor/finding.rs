//! What is found about a machine: one thing each, how serious it is, and what can be done about it.

use std::sync::mpsc::Sender;

use serde_json::{Value, json};

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Good,
    /// Worth knowing; nothing is wrong.
    Note,
    /// It works, but not as well as it could.
    Warning,
    /// It keeps a model from running.
    Problem,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Note => "note",
            State::Warning => "warning",
            State::Problem => "problem",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) about: &'static str,
    pub(super) state: State,
    pub(super) text: String,
    /// What to do about it.
    pub(super) remedy: Option<String>,
    /// The numbers behind it, for programs.
    pub(super) values: Option<Value>,
}

impl Finding {
    pub(super) fn new(about: &'static str, state: State, text: impl Into<String>) -> Finding {
        Finding { about, state, text: text.into(), remedy: None, values: None }
    }

    pub(super) fn good(about: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(about, State::Good, text)
    }

    pub(super) fn note(about: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(about, State::Note, text)
    }

    /// Something that works, but not as well as it could, and what can be done.
    pub(super) fn warning(
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { remedy: Some(remedy.into()), ..Finding::new(about, State::Warning, text) }
    }

    /// Something that keeps a model from running, and what can be done.
    pub(super) fn problem(
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { remedy: Some(remedy.into()), ..Finding::new(about, State::Problem, text) }
    }

    /// The same, with what can be done about it.
    pub(super) fn and_try(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    /// The same, with the numbers behind it.
    pub(super) fn with(self, values: Value) -> Finding {
        Finding { values: Some(values), ..self }
    }

    /// For programs.
    pub(super) fn report(&self) -> Value {
        json!({
            "about": self.about,
            "state": self.state.name(),
            "text": self.text,
            "remedy": self.remedy,
            "values": self.values,
        })
    }
}

/// Where findings go as they are made.
#[derive(Clone, Debug)]
pub(super) struct Findings(Sender<Finding>);

impl Findings {
    pub(super) fn to(sender: Sender<Finding>) -> Findings {
        Findings(sender)
    }

    pub(super) fn add(&self, finding: Finding) {
        // What comes too late to be shown is not missed.
        let _ = self.0.send(finding);
    }
}
