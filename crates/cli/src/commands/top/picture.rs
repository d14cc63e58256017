//! A picture of a cluster as lines of a terminal.
//!
//! Invariant: no name or message from outside gets onto a line but through [`door::visible`], and no line is longer than asked for.

use oxcart::backend::ByteSize;
use oxcart_http::{
    Cluster, ClusterInterruption, ClusterPlacement, DeviceBlocks, DeviceShare, Machine, ModelState, Presence,
    Purpose,
};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::history::History;
use crate::door;
use crate::quantity;
use crate::workers::device_of_worker;

/// Colours that machines take turns with.
const COLOURS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::LightRed];

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red);

/// Interruptions of a model that are shown, the latest ones.
const INTERRUPTIONS: usize = 3;

/// Bars of eight heights.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What is looked at.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A server, by its URL.
    Server(String),
    /// A worker, by its name or address. It says what its devices have free, and nothing of itself.
    Worker(String),
}

/// All of it.
pub(super) fn lines(
    history: &History,
    subject: &Subject,
    trouble: Option<&str>,
    width: usize,
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let Some(now) = history.now() else { return lines };
    lines.push(head(now, subject));
    if let Some(trouble) = trouble {
        lines.push(Line::styled(format!("cannot refresh: {}", door::visible(trouble)), BAD));
    }
    for model in &now.models {
        lines.push(Line::default());
        model_lines(history, now, model, width, &mut lines);
    }
    for (at, machine) in now.machines.iter().enumerate() {
        lines.push(Line::default());
        let is_silent = matches!(subject, Subject::Worker(_)) && trouble.is_some();
        machine_lines(history, now, machine, at, is_silent, &mut lines);
    }
    lines.iter_mut().for_each(|line| cut(line, width));
    lines
}

/// The first line.
fn head(now: &Cluster, subject: &Subject) -> Line<'static> {
    match subject {
        Subject::Server(url) => {
            let dead = now.machines.iter().filter(|machine| machine.failure.is_some()).count();
            let (machines, up) =
                (quantity::counted(now.machines.len(), "machine"), duration(now.uptime_seconds));
            let state = format!(" · {machines}, {dead} dead · up {up}");
            Line::from(vec![
                Span::styled(format!("oxcart {} ", door::visible(&now.version)), BOLD),
                Span::raw(door::visible(url)),
                Span::styled(state, if dead > 0 { BAD } else { DIM }),
            ])
        }
        Subject::Worker(name) => {
            let devices = now.machines.iter().map(|machine| machine.devices.len()).sum();
            Line::from(vec![
                Span::styled("worker ", BOLD),
                Span::raw(door::visible(name)),
                Span::styled(format!(" · {}", quantity::counted(devices, "device")), DIM),
            ])
        }
    }
}

fn model_lines(
    history: &History,
    now: &Cluster,
    model: &ModelState,
    width: usize,
    lines: &mut Vec<Line<'static>>,
) {
    let name = model.name.clone();
    let of = move |picture: &Cluster| {
        picture.models.iter().find(|model| model.name == name).map(|model| model.answer_tokens)
    };
    let mut facts = vec![door::visible(&model.architecture)];
    facts.extend(model.parameters.map(|count| quantity::count(count).trim_end().to_owned()));
    facts.extend(model.quantization.as_deref().map(door::visible));
    match model.presence {
        Presence::Loaded => {
            facts.push(format!("{} blocks", model.plans.blocks));
            facts.push(format!("context of {}", model.context));
        }
        Presence::Loading => facts.push("being loaded".into()),
        Presence::Unloaded => facts.push("loaded on demand".into()),
    }
    lines.push(Line::from(vec![
        Span::styled(door::visible(&model.name), BOLD),
        Span::styled(format!("  {}", facts.join(" · ")), DIM),
    ]));
    if model.presence != Presence::Loaded {
        if let Some(trouble) = &model.trouble {
            lines.push(Line::styled(format!("it was not loaded: {}", door::visible(trouble)), BAD));
        }
        return;
    }
    if model.purpose == Purpose::Chat {
        let figures = format!(
            "{:.1} tokens/s   {} of {} running   {} waiting   {} answered   ",
            history.rate(&of),
            model.running.len(),
            model.slots,
            model.waiting,
            model.finished,
        );
        let room = width.saturating_sub(figures.chars().count());
        let spark = sparkline(&history.rates(&of), room.min(60));
        lines.push(Line::from(vec![Span::raw(figures), Span::styled(spark, Style::new().fg(Color::Cyan))]));
    }
    lines.push(layers(now, model, width));
    if let Some(trouble) = &model.trouble {
        lines.push(Line::styled(format!("the last step failed: {}", door::visible(trouble)), BAD));
    }
    for interruption in model.interruptions.iter().rev().take(INTERRUPTIONS) {
        lines.extend(interruption_lines(interruption, now.uptime_seconds));
    }
    for request in &model.running {
        let text = format!(
            "  #{:<6} prompt {:<7} answer {} of {}",
            request.id, request.prompt_tokens, request.answer_tokens, request.limit
        );
        lines.push(Line::raw(text));
    }
}

/// Blocks in a row, each machine's in its colour.
fn layers(now: &Cluster, model: &ModelState, width: usize) -> Line<'static> {
    let total = model.plans.blocks.max(1);
    let (mut line, mut drawn) = (Line::default(), 0);
    for share in model.plans.now.shares.iter().filter(|share| share.blocks[1] > share.blocks[0]) {
        // To where its last block ends, so that rounding leaves no gap.
        let end = (share.blocks[1].min(total) as u128 * width as u128 / total as u128) as usize;
        let columns = end.saturating_sub(drawn);
        drawn = end;
        let machine = now.machines.iter().position(|machine| machine.name == share.machine);
        let is_dead = machine.is_some_and(|at| now.machines[at].failure.is_some());
        let colour = if is_dead { Color::Red } else { COLOURS[machine.unwrap_or(0) % COLOURS.len()] };
        let mark = if is_dead { "dead: " } else { "" };
        let text: String = format!(" {mark}{} {}", blocks(share.blocks), door::visible(&share.machine))
            .chars()
            .take(columns)
            .collect();
        line.push_span(Span::styled(format!("{text:columns$}"), Style::new().bg(colour).fg(Color::Black)));
    }
    line
}

fn machine_lines(
    history: &History,
    now: &Cluster,
    machine: &Machine,
    at: usize,
    is_silent: bool,
    lines: &mut Vec<Line<'static>>,
) {
    let (mark, state) = match &machine.failure {
        Some(failure) => (BAD, Span::styled(format!("  dead: {}", door::visible(failure)), BAD)),
        None if is_silent => (BAD, Span::styled("  does not answer; this is what it said last", BAD)),
        None => (Style::new().fg(COLOURS[at % COLOURS.len()]), Span::styled("  alive", DIM)),
    };
    let address = machine.address.as_ref().filter(|address| **address != machine.name);
    let address = address.map_or_else(String::new, |address| format!("  {}", door::visible(address)));
    lines.push(Line::from(vec![
        Span::styled("■ ", mark),
        Span::styled(door::visible(&machine.name), BOLD),
        Span::styled(address, DIM),
        state,
    ]));
    for model in &now.models {
        for share in model.plans.now.shares.iter().filter(|share| share.machine == machine.name) {
            lines.extend(held(share, model, now.models.len() > 1));
        }
    }
    for device in &machine.devices {
        // The description may be long, and comes where a narrow terminal may cut it off.
        lines.push(Line::raw(format!(
            "  {}: {} of {} free ({})",
            door::visible(&device_of_worker(&device.device)),
            ByteSize(device.free_bytes),
            ByteSize(device.total_bytes),
            door::visible(&device.description),
        )));
    }
    if let Some(link) = machine.link {
        let name = machine.name.clone();
        let of = move |counter: fn(&oxcart_http::Link) -> u64| {
            let name = name.clone();
            move |picture: &Cluster| {
                let found = picture.machines.iter().find(|machine| machine.name == name)?;
                found.link.as_ref().map(counter)
            }
        };
        let bytes = |rate: f64| ByteSize(rate as u64);
        lines.push(Line::raw(format!(
            "  {:.1} round trips/s ({})   sent {}/s ({})   received {}/s ({})",
            history.rate(of(|link| link.round_trips)),
            quantity::grouped(link.round_trips),
            bytes(history.rate(of(|link| link.sent_bytes))),
            ByteSize(link.sent_bytes),
            bytes(history.rate(of(|link| link.received_bytes))),
            ByteSize(link.received_bytes),
        )));
    }
    for model in &now.models {
        let found = model.plans.without.iter().find(|without| without.machine == machine.name);
        if let Some(without) = found {
            lines.push(Line::styled(format!("  if it left: {}", departure(&without.plan)), DIM));
        }
    }
}

/// What a device has, and the memory that it takes.
fn held(share: &DeviceShare, model: &ModelState, is_named: bool) -> [Line<'static>; 2] {
    let mut parts = Vec::new();
    parts.extend(share.has_input.then(|| "embeddings".to_owned()));
    parts.extend((share.blocks[1] > share.blocks[0]).then(|| blocks(share.blocks)));
    parts.extend(share.has_output.then(|| "output".to_owned()));
    let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let of = if is_named { format!(" of {}", door::visible(&model.name)) } else { String::new() };
    let mapped = if share.is_mapped { " mapped" } else { "" };
    let memory = format!(
        "    {}{mapped} weights, {} cache, {} results; {} free at start",
        ByteSize(share.weights_bytes),
        ByteSize(share.cache_bytes),
        ByteSize(share.results_bytes),
        ByteSize(share.free_bytes),
    );
    let device = door::visible(&device_of_worker(&share.device));
    [Line::raw(format!("  {device}: {parts}{of}")), Line::styled(memory, DIM)]
}

fn departure(plan: &ClusterPlacement) -> String {
    if let Some(problem) = &plan.problem {
        return format!("it would not work: {}", door::visible(problem));
    }
    let shares = plan.shares.iter().filter(|share| share.blocks[1] > share.blocks[0]);
    let parts: Vec<String> = shares
        .map(|share| format!("{} on {}", blocks(share.blocks), door::visible(&share.machine)))
        .collect();
    parts.join(", ")
}

/// `blocks 0-14`.
fn blocks(range: [usize; 2]) -> String {
    match range {
        [first, end] if end == first + 1 => format!("block {first}"),
        [first, end] => format!("blocks {first}-{}", end.saturating_sub(1)),
    }
}

/// What happened to machines, how long it took, and the plan before and after.
fn interruption_lines(interruption: &ClusterInterruption, now: f64) -> [Line<'static>; 3] {
    let ClusterInterruption { lost, returned, before, after, stall_ms, .. } = interruption;
    let mut parts: Vec<String> = Vec::new();
    for machine in lost {
        let reason = if machine.reason.is_empty() { "" } else { &format!(" ({})", machine.reason) };
        parts.push(format!("{} was lost{reason}", machine.machine));
    }
    parts.extend(returned.iter().map(|machine| format!("{machine} came back")));
    if parts.is_empty() {
        parts.push("a machine waited in vain for another".into());
    }
    let head = format!(
        "{} ago answers paused for {stall_ms} ms: {}",
        duration((now - interruption.uptime_seconds).max(0.0)),
        door::visible(&parts.join(", ")),
    );
    let plan = |shares: &[DeviceBlocks]| {
        let parts = shares.iter().map(|share| format!("{} on {}", blocks(share.blocks), share.machine));
        door::visible(&parts.collect::<Vec<_>>().join(", "))
    };
    [
        Line::raw(head),
        Line::styled(format!("  before: {}", plan(before)), DIM),
        Line::styled(format!("  after: {}", plan(after)), DIM),
    ]
}

/// The last rates as bars.
fn sparkline(rates: &[f64], width: usize) -> String {
    let shown = &rates[rates.len().saturating_sub(width)..];
    let most = shown.iter().copied().fold(1.0, f64::max);
    shown.iter().map(|rate| BARS[((rate / most * 7.0).round() as usize).min(7)]).collect()
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Makes a line no longer than that.
fn cut(line: &mut Line<'static>, width: usize) {
    let mut left = width;
    for span in &mut line.spans {
        let kept: String = span.content.chars().take(left).collect();
        left -= kept.chars().count();
        span.content = kept.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_http::{ClusterPlacements, Link, LostMachine, PlacementWithout, RequestState};

    fn share(machine: &str, blocks: [usize; 2]) -> DeviceShare {
        DeviceShare {
            machine: machine.into(),
            device: format!("RPC0[{machine}]"),
            blocks,
            weights_bytes: 30 << 20,
            cache_bytes: 1 << 20,
            free_bytes: 1 << 30,
            has_output: blocks[1] == 30,
            ..DeviceShare::default()
        }
    }

    fn picture(at: f64, tokens: u64) -> Cluster {
        let machine = |name: &str, failure: Option<&str>| Machine {
            name: name.into(),
            link: Some(Link {
                sent_bytes: tokens * 1024,
                received_bytes: tokens * 2048,
                round_trips: tokens,
            }),
            failure: failure.map(str::to_owned),
            ..Machine::default()
        };
        let plans = ClusterPlacements {
            blocks: 30,
            now: ClusterPlacement {
                shares: vec![share("a:1", [0, 20]), share("b:2", [20, 30])],
                problem: None,
            },
            without: vec![PlacementWithout {
                machine: "a:1".into(),
                plan: ClusterPlacement { shares: vec![share("b:2", [0, 30])], problem: None },
            }],
        };
        let running = vec![RequestState { id: 7, prompt_tokens: 11, answer_tokens: 5, limit: 100 }];
        let model = ModelState {
            name: "small\x1b[31m".into(),
            presence: Presence::Loaded,
            is_leaving: false,
            purpose: Purpose::Chat,
            architecture: "llama".into(),
            parameters: Some(134_515_008),
            quantization: Some("Q8_0".into()),
            context: 4096,
            slots: 8,
            running,
            waiting: 2,
            answer_tokens: tokens,
            computed_tokens: tokens,
            finished: 3,
            failed: 0,
            trouble: None,
            interruptions: vec![ClusterInterruption {
                uptime_seconds: 50.0,
                lost: vec![LostMachine { machine: "c:3\x1b".into(), reason: "closed the connection".into() }],
                before: vec![DeviceBlocks {
                    machine: "c:3".into(),
                    blocks: [0, 30],
                    ..DeviceBlocks::default()
                }],
                after: vec![
                    DeviceBlocks { machine: "a:1".into(), blocks: [0, 20], ..DeviceBlocks::default() },
                    DeviceBlocks { machine: "b:2".into(), blocks: [20, 30], ..DeviceBlocks::default() },
                ],
                tokens: 37,
                stall_ms: 1250,
                ..ClusterInterruption::default()
            }],
            plans,
        };
        Cluster {
            version: "0.1.0".into(),
            uptime_seconds: at,
            machines: vec![machine("a:1", None), machine("b:2", Some("closed the connection"))],
            models: vec![model],
        }
    }

    #[test]
    fn everything_is_said() {
        let mut history = History::default();
        history.push(picture(61.0, 100));
        history.push(picture(62.0, 140));
        let text = shown(&history, &Subject::Server("http://x".into()), Some("gone"));
        for part in [
            "oxcart 0.1.0 http://x · 2 machines, 1 dead · up 1 min",
            "cannot refresh: gone",
            "llama · 134.5 M · Q8_0 · 30 blocks · context of 4096",
            "40.0 tokens/s   1 of 8 running   2 waiting   3 answered",
            "blocks 0-19 a:1",
            "dead: blocks 20-29 b:2",
            "12 s ago answers paused for 1250 ms: c:3\\u{1b} was lost (closed the connection)",
            "  before: blocks 0-29 on c:3",
            "  after: blocks 0-19 on a:1, blocks 20-29 on b:2",
            "#7      prompt 11      answer 5 of 100",
            "■ b:2  dead: closed the connection",
            "  device 0: blocks 20-29, output\n    30.0 MiB weights, 1.0 MiB cache, 0 B results; 1.0 GiB free at start",
            "40.0 round trips/s (140)   sent 40.0 KiB/s (140.0 KiB)   received 80.0 KiB/s (280.0 KiB)",
            "if it left: blocks 0-29 on b:2",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("RPC"), "{text}");
        assert!(!text.contains('\x1b'), "names do not reach the terminal as they are");
    }

    fn shown(history: &History, subject: &Subject, trouble: Option<&str>) -> String {
        lines(history, subject, trouble, 100).iter().map(|line| format!("{line}\n")).collect()
    }

    /// Of a worker, nothing is said that it has not told: neither how long it is up, nor, once it is silent, that it is alive.
    #[test]
    fn a_worker_is_shown_as_far_as_it_tells() {
        let device = |number| oxcart_http::DeviceMemory {
            device: format!("RPC{number}[den]"),
            description: "a card".into(),
            total_bytes: 2 << 30,
            free_bytes: 1 << 30,
        };
        let mut history = History::default();
        history.push(Cluster {
            version: "0.1.0".into(),
            uptime_seconds: 61.0,
            machines: vec![Machine {
                name: "den".into(),
                address: Some("192.0.2.1:50052".into()),
                devices: vec![device(0), device(1)],
                ..Machine::default()
            }],
            models: Vec::new(),
        });
        let worker = Subject::Worker("den".into());
        assert_eq!(
            shown(&history, &worker, None),
            "worker den · 2 devices\n\n■ den  192.0.2.1:50052  alive\n  device 0: 1.0 GiB of 2.0 GiB free (a card)\n  device 1: \
             1.0 GiB of 2.0 GiB free (a card)\n"
        );
        let text = shown(&history, &worker, Some("gone"));
        assert!(
            text.contains("does not answer") && !text.contains("alive") && !text.contains("up "),
            "{text}"
        );
    }

    #[test]
    fn lines_are_as_long_as_there_is_room() {
        let mut history = History::default();
        history.push(picture(1.0, 1));
        for width in [0, 1, 20, 33, 200] {
            for line in lines(&history, &Subject::Server("http://x".into()), None, width) {
                assert!(line.to_string().chars().count() <= width, "{width}: {line}");
            }
        }
        assert_eq!(layers(&picture(1.0, 1), &picture(1.0, 1).models[0], 33).to_string().chars().count(), 33);
        // As many blocks as a number can say.
        let mut vast = picture(1.0, 1);
        vast.models[0].plans.blocks = usize::MAX;
        vast.models[0].plans.now.shares = vec![share("a:1", [0, usize::MAX])];
        assert_eq!(layers(&vast, &vast.models[0], 33).to_string().chars().count(), 33);
    }
}
