//! Workers that are killed, stopped and cut off at random moments while answers are given: every token must be what it is without that.
//!
//! A few rounds with a tiny model, always the same ones. `tools/losses.sh` plays many with a real model and prints how long answers stood still,
//! and where that time went. `OXCART_LOSS_ROUNDS`, `OXCART_LOSS_SEED` and `OXCART_LOSS_MODEL` say how many, which and with what; `OXCART_LOSS_FROM`
//! is the number of the first round, so that one that failed can be played again alone. `OXCART_LOSS_NETWORK=own` says that the network belongs to
//! the test.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and prints figures")]

#[path = "lost_workers/client.rs"]
mod client;
#[path = "lost_workers/figures.rs"]
mod figures;
#[path = "lost_workers/machines.rs"]
mod machines;
#[path = "user/random.rs"]
mod random;
#[path = "lost_workers/round.rs"]
mod round;
#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use client::{Asking, Choice, Setting};
use figures::Row;
use machines::Place;
use round::{Kind, Outcome, Plan, play, undisturbed};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// Streams at a time, where there are several.
const SEVERAL: usize = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Plays so many rounds of a kind, unless the environment says how many, with all ways of asking in turns.
fn rounds(kind: Kind, usual: u64, askings: &[Asking], place: Place, absence: Duration) {
    // Figures of one kind should not depend on another.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, seed) =
        (number("OXCART_LOSS_ROUNDS").unwrap_or(usual), number("OXCART_LOSS_SEED").unwrap_or(1));
    let from = number("OXCART_LOSS_FROM").unwrap_or(0);
    let setting = match std::env::var("OXCART_LOSS_MODEL") {
        Ok(model) => Setting { model, tokens: 300, heartbeat: "2s" },
        // No worker is lost for being slow, on a machine that is busy with other tests and worse.
        Err(_) => Setting { model: TINY.to_owned(), tokens: 300, heartbeat: "10s" },
    };
    println!("{}: seed {seed}, rounds {from} to {}, {}", kind.name(), from + count - 1, setting.model);
    let (mut expected, mut rows) = (BTreeMap::new(), BTreeMap::<String, Row>::new());
    let mut problems = Vec::new();
    for round in from..from + count {
        let at = usize::try_from(round).unwrap();
        let asking = askings[at % askings.len()];
        let choice = [Choice::Greedy, Choice::Seeded][at / askings.len() % 2];
        let plan = Plan { kind, asking, choice, place, absence };
        let expected = expected.entry((asking, choice)).or_insert_with(|| undisturbed(plan, &setting));
        let Outcome { losses, answers, stall, problems: found, notes } =
            play(plan, &setting, expected, seed.wrapping_mul(1_000_003).wrapping_add(round));
        assert!(answers > 0 || !found.is_empty());
        let streams = asking.streams();
        let row =
            rows.entry(format!("{}, {streams} answer{}", kind.name(), if streams == 1 { "" } else { "s" }));
        let row = row.or_default();
        row.rounds += 1;
        row.losses += losses;
        row.equal += usize::from(found.is_empty());
        row.stalls.push(stall);
        for problem in found {
            let problem = problem.chars().take(2000).collect::<String>();
            let said = notes.join("\n");
            println!("round {round} ({asking:?}, {choice:?}): {problem}\n{said}");
            let again = format!("OXCART_LOSS_FROM={round} tools/losses.sh 1 {seed} {}", kind.word());
            problems.push(format!("{again}: {problem}"));
        }
    }
    figures::print(&rows);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_worker_that_is_killed_changes_no_token() {
    let askings = [Asking::Run, Asking::Serve(SEVERAL), Asking::Serve(1), Asking::Serve(SEVERAL)];
    rounds(Kind::Kill, 4, &askings, Place::Here, Duration::ZERO);
}

#[test]
fn two_workers_that_are_killed_change_no_token() {
    rounds(
        Kind::OneAfterAnother,
        4,
        &[Asking::Serve(1), Asking::Serve(SEVERAL)],
        Place::Here,
        Duration::ZERO,
    );
}

#[test]
fn a_worker_that_is_killed_again_when_it_is_back_changes_no_token() {
    rounds(
        Kind::AgainWhileMoving,
        2,
        &[Asking::Serve(SEVERAL), Asking::Serve(1)],
        Place::Here,
        Duration::ZERO,
    );
}

#[test]
fn a_worker_that_freezes_and_thaws_changes_no_token() {
    rounds(Kind::Freeze, 1, &[Asking::Serve(SEVERAL), Asking::Serve(1)], Place::Here, away());
}

/// Changes the network, so it must have one of its own.
#[test]
fn a_partition_that_heals_changes_no_token() {
    if std::env::var("OXCART_LOSS_NETWORK").as_deref() != Ok("own") {
        println!("skipped: partitions: there is no network of the test's own; `tools/losses.sh` makes one");
        return;
    }
    rounds(Kind::Partition, 1, &[Asking::Serve(SEVERAL), Asking::Serve(1)], Place::Networks, away());
}

/// How long a worker is away that comes back: longer than its heartbeats may be.
fn away() -> Duration {
    Duration::from_secs(if number("OXCART_LOSS_ROUNDS").is_some() { 30 } else { 15 })
}
