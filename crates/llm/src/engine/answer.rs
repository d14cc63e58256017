//! One request at a time, for programs that want no more.

use super::{Engine, Event, Report, Request, RequestError, RequestId};

/// The text of an answer, piece by piece, as it is computed. Dropping it ends the request.
///
/// Other requests of the engine are computed, too; what is told of them stays to be asked for.
#[derive(Debug)]
pub struct Answer<'e> {
    engine: &'e mut Engine,
    request: RequestId,
    /// Events of others.
    kept: Vec<Event>,
    report: Option<Report>,
    ended: bool,
}

impl Engine {
    /// Answers a request.
    pub fn answer(&mut self, request: Request) -> Result<Answer<'_>, RequestError> {
        let request = self.submit(request)?;
        Ok(Answer { engine: self, request, kept: Vec::new(), report: None, ended: false })
    }
}

impl Answer<'_> {
    /// How it came about, once it has ended.
    pub fn report(&self) -> Option<Report> {
        self.report
    }

    /// What is told of the request next, or of the devices that compute it; `None` once it has ended.
    pub fn next_event(&mut self) -> Option<Result<Event, RequestError>> {
        while !self.ended {
            while let Some(event) = self.engine.next_event() {
                if event.request().is_some_and(|other| other != self.request) {
                    self.kept.push(event);
                    continue;
                }
                match event {
                    Event::Failed { error, .. } => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                    Event::Finished { report, .. } => {
                        (self.ended, self.report) = (true, Some(report));
                        return Some(Ok(event));
                    }
                    event => return Some(Ok(event)),
                }
            }
            if let Err(error) = self.engine.step() {
                self.ended = true;
                self.engine.cancel(self.request);
                return Some(Err(error.into()));
            }
        }
        None
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<String, RequestError>;

    fn next(&mut self) -> Option<Result<String, RequestError>> {
        loop {
            let text = match self.next_event()? {
                Ok(Event::Token(token)) => token.text,
                Ok(Event::Finished { text, .. }) => text,
                Ok(Event::Failed { error, .. }) | Err(error) => return Some(Err(error)),
                Ok(Event::Lost(_) | Event::DraftLost { .. } | Event::Returned(_) | Event::Recovered(_)) => {
                    continue;
                }
            };
            if !text.is_empty() {
                return Some(Ok(text));
            }
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.cancel(self.request);
        }
        let own = Some(self.request);
        let later =
            std::mem::take(&mut self.engine.events).into_iter().filter(|event| event.request() != own);
        self.engine.events = self.kept.drain(..).chain(later).collect();
    }
}
