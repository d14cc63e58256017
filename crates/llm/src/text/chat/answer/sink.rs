//! What an answer is made of so far, as events.
//!
//! Invariant: a call has a beginning before its arguments and an end after them, and no two calls are open at once. White space
//! around reasoning and between parts is not handed out.

use super::AnswerEvent;

/// Collects events, joining neighbours.
#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    events: Vec<AnswerEvent>,
    /// Calls that have begun.
    calls: usize,
    open: bool,
    /// Something that must not be forgotten came in the call that is open.
    arguments: bool,
    /// White space that goes out with what follows it, if that is of the same kind.
    space: String,
    kind: Kind,
    /// White space at the beginning of what comes next goes away.
    trim: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Text,
    Reasoning,
}

impl Sink {
    pub(super) fn take(&mut self) -> Vec<AnswerEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn text(&mut self, text: &str) {
        self.say(Kind::Text, text);
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        self.say(Kind::Reasoning, text);
    }

    fn say(&mut self, kind: Kind, text: &str) {
        if self.kind != kind {
            self.part();
            self.kind = kind;
        }
        let text = if self.trim { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.trim = false;
        let end = text.trim_end().len();
        let (said, space) = text.split_at(end);
        if said.is_empty() {
            self.space.push_str(space);
            return;
        }
        let mut said = std::mem::take(&mut self.space) + said;
        self.space.push_str(space);
        match (self.events.last_mut(), kind) {
            (Some(AnswerEvent::Text(before)), Kind::Text)
            | (Some(AnswerEvent::Reasoning(before)), Kind::Reasoning) => {
                before.push_str(&said);
            }
            (_, Kind::Text) => self.events.push(AnswerEvent::Text(std::mem::take(&mut said))),
            (_, Kind::Reasoning) => self.events.push(AnswerEvent::Reasoning(std::mem::take(&mut said))),
        }
    }

    /// A marker came: white space around it belongs to neither side.
    pub(super) fn part(&mut self) {
        self.space.clear();
        self.trim = true;
    }

    /// Begins reasoning, which may begin with white space.
    pub(super) fn begin_reasoning(&mut self) {
        self.part();
        self.kind = Kind::Reasoning;
    }

    pub(super) fn begin_call(&mut self, id: Option<String>, name: String) {
        self.end_call();
        self.part();
        self.events.push(AnswerEvent::ToolCallStart { index: self.calls, id, name });
        self.calls += 1;
        (self.open, self.arguments) = (true, false);
    }

    pub(super) fn arguments(&mut self, json: &str) {
        if json.is_empty() || !self.open {
            return;
        }
        self.arguments = true;
        match self.events.last_mut() {
            Some(AnswerEvent::ToolCallArguments { json: before, .. }) => before.push_str(json),
            _ => {
                let index = self.calls.saturating_sub(1);
                self.events.push(AnswerEvent::ToolCallArguments { index, json: json.to_owned() });
            }
        }
    }

    /// Ends the call that is open, if one is. Arguments that never came are an empty object.
    pub(super) fn end_call(&mut self) {
        if !self.open {
            return;
        }
        if !self.arguments {
            self.arguments("{}");
        }
        self.open = false;
        self.events.push(AnswerEvent::ToolCallEnd { index: self.calls.saturating_sub(1) });
    }

    pub(super) fn in_call(&self) -> bool {
        self.open
    }

    /// At the end of the answer: white space behind text is the text's.
    pub(super) fn finish(&mut self) {
        self.end_call();
        let space = std::mem::take(&mut self.space);
        if self.kind == Kind::Text && !space.is_empty() && !self.trim {
            match self.events.last_mut() {
                Some(AnswerEvent::Text(before)) => before.push_str(&space),
                _ => self.events.push(AnswerEvent::Text(space)),
            }
        }
    }
}
