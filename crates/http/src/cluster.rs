//! `/cluster`: the machines as they are, who has which part of a model, and what is computed now.
//!
//! One set of types for all who look: the server writes them, the page reads them, and `oxcart top` reads them back. Counters only
//! grow, and `uptime_seconds` is the clock that belongs to them, so that a reader gets rates from any two pictures.
//!
//! Invariant: nothing here waits for a machine. What is told of one is what its connection shows and what was known when the
//! model was placed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oxcart_llm::model::Share;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::error::ApiError;
use crate::models::Listed;
use crate::reply::{self, Reply};
use crate::service::Interruption;

/// What went over the line to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Answers that were waited for.
    pub round_trips: u64,
}

/// A machine that takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// What plans call it: the name of a paired machine, where a worker listens, or this machine.
    pub name: String,
    /// Where a worker listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What went over the line to it; none for the machine that serves.
    pub link: Option<Link>,
    /// Why it cannot be used any more, if it cannot.
    pub failure: Option<String>,
    /// Its devices, where the machine itself was asked: a server does not wait for machines, and tells of none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceMemory>,
}

/// A device of a machine, and its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Its name.
    pub device: String,
    /// What it is.
    pub description: String,
    /// Bytes that it has.
    pub total_bytes: u64,
    /// Bytes that it has free.
    pub free_bytes: u64,
}

/// Says how machines are, without waiting for any of them.
pub type Machines = Arc<dyn Fn() -> Vec<Machine> + Send + Sync>;

/// What one device has of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceShare {
    /// The machine it belongs to.
    pub machine: String,
    /// Its name.
    pub device: String,
    /// What it is.
    pub description: String,
    /// Its first block and the one after its last; the same twice where it has none.
    pub blocks: [usize; 2],
    /// Whether tokens become embeddings there.
    pub has_input: bool,
    /// Whether logits are computed there.
    pub has_output: bool,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of what blocks remember.
    pub cache_bytes: u64,
    /// Bytes of results.
    pub results_bytes: u64,
    /// Bytes that it had free when the model was placed.
    pub free_bytes: u64,
    /// Whether weights are used where they lie, in the mapped file, so that they take no memory of their own.
    pub is_mapped: bool,
}

/// Who has which part of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlacement {
    /// What each device has.
    pub shares: Vec<DeviceShare>,
    /// Why it would not work, if it would not.
    pub problem: Option<String>,
}

/// Where a model would be without a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementWithout {
    /// The machine that is gone then.
    pub machine: String,
    /// Where it would be.
    pub plan: ClusterPlacement,
}

/// Where a model is, and where it would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlacements {
    /// How many blocks it has.
    pub blocks: usize,
    /// As it is.
    pub now: ClusterPlacement,
    /// As it would be without one of the machines.
    pub without: Vec<PlacementWithout>,
}

/// The plans of a model that may move to other machines while it is served. Clones tell of the same model.
#[derive(Clone, Debug, Default)]
pub struct CurrentPlacements(Arc<Mutex<KnownPlacements>>);

#[derive(Debug, Default)]
struct KnownPlacements {
    now: ClusterPlacements,
    /// Machines by their devices, also of those that are gone.
    machines: BTreeMap<String, String>,
}

impl From<ClusterPlacements> for CurrentPlacements {
    fn from(plans: ClusterPlacements) -> CurrentPlacements {
        let current = CurrentPlacements::default();
        current.set(plans);
        current
    }
}

impl CurrentPlacements {
    /// Says where the model is from now on.
    pub fn set(&self, plans: ClusterPlacements) {
        let mut known = self.lock();
        for share in &plans.now.shares {
            known.machines.insert(share.device.clone(), share.machine.clone());
        }
        known.now = plans;
    }

    pub(crate) fn now(&self) -> ClusterPlacements {
        self.lock().now.clone()
    }

    fn lock(&self) -> MutexGuard<'_, KnownPlacements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last interruptions of a model, as people are told of them.
    fn interruptions(&self, past: &[Interruption], started: Instant) -> Vec<ClusterInterruption> {
        let known = self.lock();
        // Where it is not known which machine a device belongs to, its own name has to do.
        let machine = |device: &str| known.machines.get(device).map_or(device, String::as_str).to_owned();
        let blocks = |shares: &[Share]| {
            let with_blocks = shares.iter().filter(|share| !share.blocks.is_empty());
            let blocks = with_blocks.map(|share| DeviceBlocks {
                machine: machine(&share.name),
                device: share.name.clone(),
                blocks: [share.blocks.start, share.blocks.end],
            });
            blocks.collect()
        };
        let told = |one: &Interruption| {
            let lost = one.lost.iter().map(|(device, reason)| (machine(device), reason));
            let mut lost: Vec<LostMachine> =
                lost.map(|(machine, reason)| LostMachine { machine, reason: reason.clone() }).collect();
            lost.dedup_by(|later, first| {
                let is_same = later.machine == first.machine;
                if is_same && first.reason.is_empty() {
                    first.reason = std::mem::take(&mut later.reason);
                }
                is_same
            });
            let mut returned: Vec<String> = one.returned.iter().map(|device| machine(device)).collect();
            returned.dedup();
            ClusterInterruption {
                uptime_seconds: one.ended.saturating_duration_since(started).as_secs_f64(),
                lost,
                returned,
                before: blocks(&one.recovery.before),
                after: blocks(&one.recovery.after),
                requests: one.recovery.requests,
                tokens: one.recovery.tokens,
                noticing_ms: whole_ms(one.recovery.noticing),
                planning_ms: whole_ms(one.recovery.planning),
                loading_ms: whole_ms(one.recovery.loading),
                recomputing_ms: whole_ms(one.recovery.recomputing()),
                stall_ms: whole_ms(one.recovery.stall),
                numerics_changed: one.recovery.numerics_changed,
            }
        };
        past.iter().map(told).collect()
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Blocks that a device has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBlocks {
    /// The machine it belongs to.
    pub machine: String,
    /// Its name.
    pub device: String,
    /// Its first block and the one after its last.
    pub blocks: [usize; 2],
}

/// A machine that was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostMachine {
    /// What plans call it.
    pub machine: String,
    /// What was said about it; empty if nothing was.
    pub reason: String,
}

/// How requests went on after machines were lost or came back. If neither, one machine waited in vain for another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterInterruption {
    /// When all of them had gone on, by the clock of [`Cluster::uptime_seconds`].
    pub uptime_seconds: f64,
    /// Machines that were lost.
    pub lost: Vec<LostMachine>,
    /// Machines that came back.
    pub returned: Vec<String>,
    /// Devices that had blocks before.
    pub before: Vec<DeviceBlocks>,
    /// Devices that have blocks since.
    pub after: Vec<DeviceBlocks>,
    /// Requests that were interrupted.
    pub requests: usize,
    /// Their tokens that were lost with the state of devices, and computed again.
    pub tokens: usize,
    /// Of the pause, how long it took to find that a machine was lost.
    pub noticing_ms: u64,
    /// Of the pause, how long it took to find out which machines are there, and to wait for room on them.
    pub planning_ms: u64,
    /// Of the pause, how long it took to put the model on them.
    pub loading_ms: u64,
    /// Of the pause, how long it took to compute again what was lost.
    pub recomputing_ms: u64,
    /// How long it took until each of the requests had its next token.
    pub stall_ms: u64,
    /// Whether last digits may differ from then on, because something is computed by another kind of device.
    pub numerics_changed: bool,
}

/// A request that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestState {
    /// A number that no other request of the model has.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its answer so far.
    pub answer_tokens: usize,
    /// Tokens that its answer may have.
    pub limit: usize,
}

/// What a model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// It answers.
    Chat,
    /// It makes vectors of texts.
    Embeddings,
}

/// Whether a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It is.
    #[default]
    Loaded,
    /// It will be.
    Loading,
    /// It will be when it is asked for.
    Unloaded,
}

/// A model that is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelState {
    /// What it is called.
    pub name: String,
    /// Whether it is loaded.
    pub presence: Presence,
    /// Whether it makes way for another as soon as it is not in use, so that requests for it wait.
    #[serde(default)]
    pub is_leaving: bool,
    /// What it is asked for.
    pub purpose: Purpose,
    /// Its architecture.
    pub architecture: String,
    /// How many parameters it has, if that is known.
    pub parameters: Option<u64>,
    /// How its weights are quantized, if that is known.
    pub quantization: Option<String>,
    /// Tokens that a request and its answer may have.
    pub context: usize,
    /// Requests to compute at the same time.
    pub slots: usize,
    /// Requests that are computed now.
    pub running: Vec<RequestState>,
    /// Requests that wait for their turn, or for the model to be loaded.
    pub waiting: usize,
    /// Tokens of answers so far, those that are under way included.
    pub answer_tokens: u64,
    /// Tokens that were computed so far: of prompts, and of answers one by one.
    pub computed_tokens: u64,
    /// Requests that were answered so far.
    pub finished: u64,
    /// Requests that failed so far.
    pub failed: u64,
    /// Why the last step failed, or why it was not loaded.
    pub trouble: Option<String>,
    /// Losses and returns of machines that interrupted requests, the last few, the oldest first.
    #[serde(default)]
    pub interruptions: Vec<ClusterInterruption>,
    /// Where it is; empty while it is not loaded.
    pub plans: ClusterPlacements,
}

/// All of it, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The server's version.
    pub version: String,
    /// Seconds since its start.
    pub uptime_seconds: f64,
    /// The machines.
    pub machines: Vec<Machine>,
    /// The models.
    pub models: Vec<ModelState>,
}

impl ModelState {
    fn of(model: &Listed<'_>, started: Instant) -> ModelState {
        let totals = model.totals();
        let mut state = ModelState {
            name: model.name.to_owned(),
            presence: model.presence,
            is_leaving: model.is_leaving,
            purpose: model.purpose,
            architecture: model.about.architecture.clone(),
            parameters: model.about.parameters,
            quantization: model.about.quantization.clone(),
            context: model.context,
            slots: 1,
            running: Vec::new(),
            waiting: model.waiting,
            answer_tokens: totals.answer_tokens,
            computed_tokens: totals.computed_tokens,
            finished: totals.finished,
            failed: totals.failed,
            trouble: model.failure.clone(),
            interruptions: Vec::new(),
            plans: ClusterPlacements::default(),
        };
        let Some(served) = &model.model else { return state };
        state.plans = served.plans.now();
        let Ok(talker) = served.talker() else { return state };
        let now = talker.service.snapshot();
        state.slots = talker.slots;
        state.waiting += now.waiting;
        state.trouble = now.trouble;
        state.interruptions = served.plans.interruptions(&now.interruptions, started);
        state.answer_tokens += now.aside.iter().map(|request| request.answer_tokens as u64).sum::<u64>();
        for request in now.running {
            state.answer_tokens += request.answer_tokens as u64;
            state.running.push(RequestState {
                id: request.ticket.number(),
                prompt_tokens: request.prompt_tokens,
                answer_tokens: request.answer_tokens,
                // One that is not limited ends with the context.
                limit: request.limit.min(talker.context.saturating_sub(request.prompt_tokens)),
            });
        }
        state
    }
}

/// How things are.
pub(crate) fn cluster(call: &Call) -> Result<Reply, ApiError> {
    let app = &call.app;
    reply::json(&Cluster {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: app.started.elapsed().as_secs_f64(),
        machines: app.machines(),
        models: app.models.list().iter().map(|model| ModelState::of(model, app.started)).collect(),
    })
}
