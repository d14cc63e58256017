//! The thread that owns an engine.
//!
//! Invariant: a step that fails ends all requests, unless it is for want of room that there may be again: then they are kept, each for as long as
//! its time allows, and every one that has no more is told what is missing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_llm::engine::{End, Engine, Event as EngineEvent, Report, RequestId};

use super::queue::{Client, Next, Waiting};
use super::telling::{Event, Running, Ticket};
use super::updates::{RequestFailure, Sink};
use super::{Refused, SharedService, State};

/// A request that the engine has.
struct Task {
    ticket: Ticket,
    client: Client,
    sink: Sink,
    /// Whether its prompt was charged for.
    has_begun: bool,
    prompt_tokens: usize,
    /// Whether it has made way for another.
    is_aside: bool,
    /// When its time is over, by the engine's clock.
    deadline: Duration,
}

/// Between two tries to find room for a model. Devices that come back are there at the next one.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    engine: Engine,
    shared: Arc<SharedService>,
    tasks: BTreeMap<RequestId, Task>,
    /// How many the engine may compute at a time.
    most: usize,
    /// Why there is no room for the model, while requests are kept until there is.
    lacking: Option<String>,
}

/// Says that the driver is gone, however it went.
struct Gone(Arc<SharedService>);

impl Drop for Gone {
    fn drop(&mut self) {
        let (waiting, is_broken) = {
            let mut state = self.0.lock();
            state.is_over = true;
            state.running.clear();
            state.aside.clear();
            (state.queue.drain(|_| true), state.end.is_none())
        };
        let why =
            || if is_broken { RequestFailure::Refused(Refused::Broken) } else { RequestFailure::Closed };
        waiting.into_iter().for_each(|waiting| waiting.sink.fail(why()));
    }
}

impl Driver {
    pub(super) fn new(engine: Engine, shared: Arc<SharedService>) -> Driver {
        let most = engine.runner().options().sequences;
        Driver { engine, shared, tasks: BTreeMap::new(), most, lacking: None }
    }

    /// Computes steps until the service is to end and nothing is left to do.
    pub(super) fn run(mut self) {
        let _gone = Gone(Arc::clone(&self.shared));
        while self.wait_for_work() {
            self.step();
        }
    }

    /// Takes on what there is room for, and sleeps while there is nothing; `false` if there never will be.
    fn wait_for_work(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            let is_late = state.end.is_some_and(|end| end <= Instant::now());
            let time = shared.limits.time;
            let over = state.queue.drain(|waiting| is_late || waiting.since.elapsed() >= time);
            let chosen = self.choose(&mut state);
            if over.is_empty() && chosen.is_empty() && self.tasks.is_empty() {
                if state.end.is_some() {
                    return false;
                }
                state = shared.wake.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            // Neither endings nor beginnings need the lock.
            drop(state);
            let late = || if is_late { RequestFailure::Closed } else { RequestFailure::WaitedTooLong };
            over.into_iter().for_each(|waiting| waiting.sink.fail(late()));
            chosen.into_iter().for_each(|waiting| self.begin(waiting));
            if is_late {
                self.fail_all(|| RequestFailure::Closed);
            }
            if !self.tasks.is_empty() {
                return true;
            }
            state = shared.lock();
        }
    }

    /// How many requests are computed.
    fn width(&self) -> usize {
        self.tasks.values().filter(|task| !task.is_aside).count()
    }

    /// Fills places that are free, and those of requests that make way. What begins is to be handed to the engine.
    fn choose(&mut self, state: &mut State) -> Vec<Waiting> {
        let (mut chosen, mut width) = (Vec::new(), self.width());
        while width < self.most || self.make_way(state) {
            match state.queue.next() {
                None => break,
                Some(Next::Begin(next)) => {
                    state.running.insert(next.ticket, running(&next));
                    state.totals.waited += next.since.elapsed();
                    chosen.push(*next);
                }
                Some(Next::GoOn(ticket)) => self.go_on(ticket, state),
            }
            width = self.width() + chosen.len();
        }
        chosen
    }

    /// Sets a request aside, if a client has so many and has had so much that it is to make way; the youngest, which has least to lose.
    fn make_way(&mut self, state: &mut State) -> bool {
        let Some(client) = state.queue.makes_way() else { return false };
        let mut own = self.tasks.iter_mut().rev().filter(|(_, task)| task.client == client && !task.is_aside);
        let Some((&id, task)) = own.next() else { return false };
        task.is_aside = true;
        state.queue.set_aside(client, task.ticket);
        if let Some(running) = state.running.remove(&task.ticket) {
            state.aside.insert(task.ticket, running);
        }
        self.engine.set_aside(id);
        true
    }

    /// A request that had made way is computed again.
    fn go_on(&mut self, ticket: Ticket, state: &mut State) {
        let Some((&id, task)) = self.tasks.iter_mut().find(|(_, task)| task.ticket == ticket) else { return };
        task.is_aside = false;
        if let Some(aside) = state.aside.remove(&ticket) {
            state.running.insert(ticket, aside);
        }
        self.engine.take_up(id);
    }

    /// Hands a request to the engine.
    fn begin(&mut self, waiting: Waiting) {
        let Waiting { ticket, client, mut request, sink, since } = waiting;
        let left = self.shared.limits.time.saturating_sub(since.elapsed());
        let deadline = self.engine.now().saturating_add(left);
        request.deadline = Some(deadline);
        let prompt_tokens = request.prompt.len();
        match self.engine.submit(request) {
            Ok(id) => {
                self.shared.tell(Event::Started { ticket, waited: since.elapsed() });
                let (has_begun, is_aside) = (false, false);
                let task = Task { ticket, client, sink, has_begun, prompt_tokens, is_aside, deadline };
                self.tasks.insert(id, task);
            }
            Err(error) => self.failed(ticket, client, sink, RequestFailure::Request(error)),
        }
    }

    fn step(&mut self) {
        self.end_those_without_room();
        let (start, before) = (Instant::now(), self.engine.runner().usage().computed_tokens);
        let width = self.width();
        let outcome = self.engine.step();
        let (time, computed) = (start.elapsed(), self.engine.runner().usage().computed_tokens - before);
        self.deliver(time, width, computed);
        let Err(error) = outcome else {
            self.lacking = None;
            return;
        };
        let reason = match self.shared.explain.get() {
            Some(explain) => explain(error),
            None => error.to_string(),
        };
        self.shared.lock().trouble = Some(reason.clone());
        if self.engine.lacks_room() {
            self.lacking = Some(reason);
            self.pause();
        } else {
            // Devices are lost for good, or something else broke: requests are told now rather than left to wait for their deadlines. The
            // next one has it tried again.
            self.lacking = None;
            self.fail_all(|| RequestFailure::Step(reason.clone()));
        }
    }

    /// Tells requests whose time is over while there is no room for the model what is missing. To the engine, they would have ended as they
    /// should.
    fn end_those_without_room(&mut self) {
        let Some(reason) = &self.lacking else { return };
        let (reason, now) = (reason.clone(), self.engine.now());
        let over: Vec<RequestId> =
            self.tasks.iter().filter(|(_, task)| task.deadline <= now).map(|(&id, _)| id).collect();
        for id in over {
            let Some(task) = self.tasks.remove(&id) else { continue };
            self.engine.cancel(id);
            self.failed(task.ticket, task.client, task.sink, RequestFailure::Step(reason.clone()));
        }
    }

    /// Waits until there may be room again, or there is something else to do.
    fn pause(&self) {
        let state = self.shared.lock();
        let left = state.end.map(|end| end.saturating_duration_since(Instant::now()));
        // Woken or not, what there is to do is looked at next.
        drop(self.shared.wake.wait_timeout(state, left.unwrap_or(ROOM_PAUSE).min(ROOM_PAUSE)));
    }

    /// Passes on what the engine tells.
    fn deliver(&mut self, time: Duration, width: usize, computed: u64) {
        let shared = Arc::clone(&self.shared);
        let mut ended = Vec::new();
        let mut state = shared.lock();
        if computed > 0 {
            state.trouble = None;
        }
        let totals = &mut state.totals;
        totals.steps += 1;
        totals.step_requests += width as u64;
        totals.computed_tokens += computed;
        totals.step_time += time;
        let waiting = state.queue.len();
        while let Some(event) = self.engine.next_event() {
            match event {
                EngineEvent::Token(token) => {
                    let id = token.request;
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    // What was there already cost other clients nothing.
                    let prompt = if task.has_begun {
                        0
                    } else {
                        task.prompt_tokens.saturating_sub(token.reused_tokens)
                    };
                    task.has_begun = true;
                    state.queue.charge(task.client, prompt + 1);
                    if let Some(running) = state.running.get_mut(&task.ticket) {
                        running.answer_tokens += 1;
                    }
                    if !task.sink.token(token) {
                        // At once: without others there is no next step that would look at `cancel`.
                        self.engine.cancel(id);
                        if let Some(task) = self.tasks.remove(&id) {
                            end_failed(&mut state, task.ticket, task.client);
                            ended.push((task, Err(RequestFailure::ReadTooSlowly)));
                        }
                    }
                }
                EngineEvent::Finished { request: id, end: why, text, stopped_by, report } => {
                    let Some(task) = self.tasks.remove(&id) else { continue };
                    end(&mut state, task.ticket, task.client);
                    state.totals.count(why, &report);
                    ended.push((task, Ok(Ending { why, text, stopped_by, report })));
                }
                EngineEvent::Failed { request: id, error } => {
                    let Some(task) = self.tasks.remove(&id) else { continue };
                    end_failed(&mut state, task.ticket, task.client);
                    ended.push((task, Err(RequestFailure::Request(error))));
                }
                EngineEvent::Lost(loss) => {
                    state.interruptions.lost(&loss);
                    shared.tell(Event::Lost(loss));
                }
                EngineEvent::Returned(returned) => shared.tell(Event::Returned(returned)),
                EngineEvent::Recovered(recovery) => {
                    state.interruptions.ended(&recovery);
                    shared.tell(Event::Recovered(recovery));
                }
                // Nothing changes for requests but how fast they are.
                EngineEvent::DraftLost { .. } => {}
            }
        }
        drop(state);
        shared.tell(Event::Step { running: width, waiting, computed, time });
        for (task, ending) in ended {
            match ending {
                Ok(Ending { why, text, stopped_by, report }) => {
                    shared.tell(Event::Finished { ticket: task.ticket, end: why, report });
                    task.sink.finish(why, text, stopped_by, report);
                }
                Err(failure) => {
                    shared.tell(Event::Failed { ticket: task.ticket, reason: failure.to_string() });
                    task.sink.fail(failure);
                }
            }
        }
    }

    fn failed(&self, ticket: Ticket, client: Client, sink: Sink, failure: RequestFailure) {
        let mut state = self.shared.lock();
        end_failed(&mut state, ticket, client);
        drop(state);
        self.shared.tell(Event::Failed { ticket, reason: failure.to_string() });
        sink.fail(failure);
    }

    /// Ends everything that runs.
    fn fail_all(&mut self, failure: impl Fn() -> RequestFailure) {
        for (id, task) in std::mem::take(&mut self.tasks) {
            self.engine.cancel(id);
            self.failed(task.ticket, task.client, task.sink, failure());
        }
        // What the engine has to say about them is of no interest any more.
        while self.engine.next_event().is_some() {}
    }
}

/// How a request ended that did as it should.
struct Ending {
    why: End,
    text: String,
    stopped_by: Option<usize>,
    report: Report,
}

fn end(state: &mut State, ticket: Ticket, client: Client) {
    state.running.remove(&ticket);
    state.aside.remove(&ticket);
    state.queue.ended(client, ticket);
}

/// Ends a request that failed. What it was told so far was told: counters only grow.
fn end_failed(state: &mut State, ticket: Ticket, client: Client) {
    if let Some(begun) = state.running.get(&ticket).or(state.aside.get(&ticket)) {
        state.totals.answer_tokens += begun.answer_tokens as u64;
    }
    state.totals.failed += 1;
    end(state, ticket, client);
}

fn running(waiting: &Waiting) -> Running {
    Running {
        ticket: waiting.ticket,
        client: waiting.client,
        prompt_tokens: waiting.request.prompt.len(),
        answer_tokens: 0,
        limit: waiting.request.limit,
    }
}
