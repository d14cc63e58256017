//! How long answers stood still, where that time went, and a table of it.

use std::time::Duration;

/// Where the time of a stall goes, as the command says it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) stall: Duration,
    /// To notice, to plan, to load, to compute again.
    pub(crate) parts: [Duration; 4],
}

impl Parts {
    /// Reads `continued after 0.96 s: 0.01 s to notice, 0.02 s to plan, 0.40 s to load, 0.53 s to compute 85 tokens of 1 answer again`.
    pub(crate) fn read(line: &str) -> Option<Parts> {
        let (_, said) = line.split_once("continued after ")?;
        let (stall, parts) = said.split_once(": ")?;
        let seconds = |text: &str| {
            let (number, _) = text.split_once(" s")?;
            Duration::try_from_secs_f64(number.parse().ok()?).ok()
        };
        let mut parts = parts.split(", ").map(seconds);
        let stall = seconds(stall)?;
        Some(Parts { stall, parts: [parts.next()??, parts.next()??, parts.next()??, parts.next()??] })
    }
}

/// How a round stood still.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// The longest time between two tokens of an answer, or before the first.
    pub(crate) longest: Duration,
    /// Of the longest stall that was noted.
    pub(crate) parts: Option<Parts>,
}

impl Stall {
    pub(crate) fn add(&mut self, parts: Parts) {
        if self.parts.is_none_or(|known| known.stall < parts.stall) {
            self.parts = Some(parts);
        }
    }
}

/// The value below which this share of them lie, by nearest rank.
fn percentile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// `0.31 0.52 0.60`: the middle, the 99th percentile and the largest, in seconds.
fn spread(mut values: Vec<Duration>) -> String {
    let (middle, late) = (percentile(&mut values, 0.5), percentile(&mut values, 0.99));
    let most = values.last().copied().unwrap_or_default();
    let seconds = [middle, late, most].map(|time| format!("{:5.2}", time.as_secs_f64()));
    seconds.join(" ")
}

/// What is known of rounds that are alike.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) rounds: usize,
    /// Rounds of which every answer was as it should be.
    pub(crate) equal: usize,
    pub(crate) losses: usize,
    pub(crate) stalls: Vec<Stall>,
}

/// Prints rows with their names.
pub(crate) fn print<'a>(rows: impl IntoIterator<Item = (&'a String, &'a Row)>) {
    println!("seconds: the middle, the 99th percentile and the largest of all rounds");
    println!(
        "{:32} {:>6} {:>5} {:>6}  {:17}  {:17}  {:17}  {:17}  {:17}",
        "what happens",
        "rounds",
        "equal",
        "losses",
        "without a token",
        "to notice",
        "to plan",
        "to load",
        "to compute again"
    );
    for (name, row) in rows {
        let Row { rounds, equal, losses, stalls } = row;
        let longest = spread(stalls.iter().map(|stall| stall.longest).collect());
        let part =
            |at: usize| spread(stalls.iter().filter_map(|stall| Some(stall.parts?.parts[at])).collect());
        let [notice, plan, load, compute] = [0, 1, 2, 3].map(part);
        println!(
            "{name:32} {rounds:>6} {equal:>5} {losses:>6}  {longest}  {notice}  {plan}  {load}  {compute}"
        );
    }
}
