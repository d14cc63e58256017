//! Templates that try to use up memory or time: each ends soon, with an error, and leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxcart_llm::text::{ChatOptions, ChatTemplate, Message, TemplateError};
use oxcart_tally::live_bytes;

/// What rendering may hold at a time, whatever the template: some multiple of the budget, as values have overhead.
const MOST_BYTES: usize = 512 << 20;
/// How long rendering may take; it takes less than a second on a machine that is not busy, and hours where nothing ends it.
const LONGEST: Duration = Duration::from_secs(60);

/// Doubles `ns.x` so often.
fn doubled(start: &str, double: &str, times: usize, end: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}{{% set ns.x = {double} %}}{{% endfor %}}{end}"
    )
}

/// Does something with a value again and again.
fn repeated(value: &str, act: &str) -> String {
    format!("{{% set x = {value} %}}{{% for i in range(99999) %}}{act}{{% endfor %}}")
}

fn nasty() -> Vec<String> {
    let mut all = vec![
        // Operators that double.
        doubled("'x'", "ns.x ~ ns.x", 60, ""),
        doubled("'x'", "ns.x + ns.x", 60, ""),
        doubled("[1]", "ns.x + ns.x", 60, "{{ ns.x | length }}{{ ns.x }}"),
        doubled("(1,)", "ns.x + ns.x", 60, "{{ ns.x }}"),
        doubled("[1]", "[ns.x, ns.x]", 60, "{{ ns.x }}"),
        doubled("[1]", "[ns.x, ns.x]", 60, "{{ ns.x == ns.x }}"),
        doubled("[1]", "[ns.x, ns.x]", 60, "{{ {ns.x: 1} }}"),
        doubled("[1]", "[ns.x, ns.x]", 60, "{{ ns.x | tojson }}"),
        doubled("[1]", "[ns.x, ns.x]", 60, "{{ ns.x in [ns.x] }}{{ [ns.x] | unique }}"),
        doubled("{}", "{'a': ns.x, 'b': ns.x}", 60, "{{ ns.x }}"),
        doubled("'x'", "ns.x * 1000", 60, ""),
        doubled("[1]", "ns.x * 1000", 60, "{{ ns.x | length }}"),
        doubled("'x'", "ns.x | replace('x', 'xx')", 60, ""),
        doubled("'x'", "[ns.x, ns.x] | join", 60, ""),
        doubled("'x'", "'%s%s' | format(ns.x, ns.x)", 60, ""),
        doubled("'x'", "'{0}{0}'.format(ns.x)", 60, ""),
        doubled("'\"'", "ns.x | tojson", 60, ""),
        doubled("'&'", "ns.x | escape | string", 60, ""),
        doubled("'x'", "(ns.x ~ '\\n') | indent(999)", 60, ""),
        // Memory that is made little by little and kept.
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ['x' * 100000 ~ i] %}{% endfor %}".into(),
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x, 'x' * 100000] %}{% endfor %}".into(),
        // Captured output.
        format!("{{% set x %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "text ".repeat(20_000)),
        "{% set x %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}".into(),
        "{% macro m() %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endmacro %}{{ m() | length }}".into(),
        "{% filter upper %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfilter %}".into(),
        // Formats and lists that name a thing often.
        "{{ ('%(a)s' * 99999) | format(a='x' * 99999) }}".into(),
        "{{ ('{0}' * 99999).format('x' * 99999) }}".into(),
        "{{ (['x' * 999] * 9999) | map('replace', 'x', 'y' * 9999) | list }}".into(),
        "{{ (range(99999) | list) | select('in', range(99999) | list) | list }}".into(),
        "{{ (range(99999) | list) | map('string') | map('indent', 999) | join }}".into(),
        "{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}".into(),
        "{{ ('a' * 999999) | trim('b' * 999999 ~ 'a') }}".into(),
        // Constants that the compiler would compute.
        format!("{{{{ {} }}}}", ["('x' * 99999999)"; 200].join(" ~ ")),
        format!("{{{{ ({}) | length }}}}", ["([1] * 99999999)"; 200].join(" + ")),
        // Nesting that the compiler would follow again and again.
        format!("{{{{ {}x }}}}", "not ".repeat(200_000)),
        format!("{{{{ {}x }}}}", "-".repeat(900_000)),
        format!("{{{{ x{} }}}}", " ~ x".repeat(200_000)),
        format!("{{{{ x{} }}}}", ".x".repeat(400_000)),
        format!("{{{{ x{} }}}}", "|d".repeat(400_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(60_000)),
        // Values that hold themselves.
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}".into(),
        "{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}{{ ns | tojson }}".into(),
        "{% set ns = namespace(x=1, y='y' * 9999999) %}{% set ns.x = {'n': ns} %}{{ ns == ns.x.n }}{{ 1 // 0 }}".into(),
        // Many of them, and many names that could be theirs.
        format!(
            "{{% if x %}}{}{{% endif %}}{{% for i in range(99999) %}}{{% set y = namespace(a0=1) %}}{{% endfor %}}",
            (0..40_000).map(|i| format!("{{% set ns.a{i} = 1 %}}")).collect::<String>()
        ),
        // A fault of the engine's.
        "{% for i in range(2) %}{{ loop.cycle() }}{% endfor %}".into(),
        "{% for i in range(2) %}{{ loop.cycle(*[]) }}{% endfor %}".into(),
        // Indentation that grows with the depth.
        doubled("[1]", "[ns.x]", 9999, "{{ ns.x | tojson(indent=999) }}"),
        doubled("[1]", "[ns.x]", 9999, "{{ ns.x | pprint }}{{ debug() }}"),
    ];
    let (text, list) = ("'Xx \u{e9}' * 999999", "(range(99999) | list)");
    for act in [
        "upper",
        "lower",
        "title",
        "capitalize",
        "trim",
        "length",
        "reverse",
        "list | length",
        "escape",
        "string ~ ''",
        "lines",
        "split('x')",
        "replace('x', 'y')",
        "tojson",
        "indent",
        "int(0)",
        "safe",
        "first",
        "last",
        "wordcount",
    ] {
        all.push(repeated(text, &format!("{{% set y = x | {act} %}}")));
    }
    for act in [
        "sort",
        "unique",
        "reverse",
        "sum",
        "min",
        "max",
        "join",
        "map('string')",
        "select('odd')",
        "batch(2)",
        "slice(2)",
        "tojson",
        "list",
        "string",
        "groupby('x')",
    ] {
        all.push(repeated(list, &format!("{{% set y = x | {act} | list %}}")));
    }
    for act in [
        "{% set y = x.upper() %}",
        "{% set y = x.split('x') %}",
        "{% set y = x.count('q') %}",
        "{% set y = x.find('q') %}",
        "{% set y = x.isalpha() %}",
        "{% set y = x.startswith(x) %}",
        "{% set y = x[1:] %}",
        "{% set y = x[::-1] %}",
        "{% set y = x[-1] %}",
        "{% set y = x[999998] %}",
        "{% set y = x == x ~ '' %}",
        "{% set y = 'q' in x %}",
        "{% set y = x < x ~ 'a' %}",
        "{% set y = x is startingwith(x) %}",
        "{% set y = x is upper %}",
        "{% set y = {x: 1} %}",
        "{% set y = {'a': 1}[x] %}",
        "{% if loop.changed(x ~ i) %}{% endif %}",
        "{% set y = x * 2 %}",
        "{% for c in x %}{% break %}{% endfor %}",
        "{% set y = x ~ i %}",
        "{% set y %}{{ x }}{% endset %}",
    ] {
        all.push(repeated(text, act));
    }
    all
}

/// Ends the thread that watches, also when the test fails.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Renders templates, each within its bounds and without anything left.
fn check<S: IntoIterator<Item = String>>(sources: impl FnOnce() -> S) {
    // All tests of a program count the same bytes, those of the templates themselves too.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = sources();
    let (peak, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(live_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let _done = Done(&done);
        for source in sources {
            let (start, before) = (Instant::now(), live_bytes());
            peak.store(before, Ordering::Relaxed);
            let rendered = ChatTemplate::new(&source)
                .and_then(|template| template.render(&[Message::new("user", "Hi")], &ChatOptions::default()));
            let (took, held) = (start.elapsed(), peak.load(Ordering::Relaxed).saturating_sub(before));
            let shown: String = source.chars().take(300).collect();
            assert!(took < LONGEST, "{took:?}: {shown}");
            assert!(held < MOST_BYTES, "{} MiB: {shown}", held >> 20);
            assert_ne!(rendered, Err(TemplateError::Broken), "{shown}");
            drop(rendered);
            assert!(live_bytes() < before + (1 << 20), "{} bytes are left: {shown}", live_bytes() - before);
        }
    });
}

/// Templates at random: loops that do something random to a few values, again and again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }

    fn value(&mut self, depth: usize) -> String {
        const LEAVES: [&str; 14] = [
            "ns.a",
            "ns.b",
            "ns.c",
            "ns",
            "i",
            "loop",
            "messages",
            "'x\u{e9}\u{1f}'",
            "99999",
            "1.5e300",
            "[]",
            "{}",
            "none",
            "range(999)",
        ];
        const FILTERS: [&str; 30] = [
            "upper",
            "title",
            "length",
            "list",
            "string",
            "tojson",
            "tojson(indent=9)",
            "sort",
            "unique",
            "reverse",
            "first",
            "last",
            "join",
            "join('ab')",
            "map('string')",
            "map('upper')",
            "select",
            "batch(3)",
            "slice(3)",
            "replace('x', 'yy')",
            "trim('x')",
            "indent(9)",
            "items",
            "dictsort",
            "sum",
            "max",
            "escape",
            "default('x')",
            "groupby('x')",
            "int",
        ];
        const METHODS: [&str; 12] = [
            "upper()",
            "split('x')",
            "split()",
            "items()",
            "keys()",
            "get('a', 1)",
            "strip('x')",
            "replace('', 'ab')",
            "join(ns.a)",
            "format(ns.b)",
            "count('x')",
            "cycle(1, ns.a)",
        ];
        if depth == 0 {
            return self.of(&LEAVES).to_owned();
        }
        let (one, kind) = (self.value(depth - 1), self.below(8));
        match kind {
            0 | 1 => {
                let op = self.of(&["~", "+", "*", "==", "<", "in", "and", "-", "//", "%", "**", "is eq"]);
                format!("({one} {op} {})", self.value(depth - 1))
            }
            2 => format!("({one} | {})", self.of(&FILTERS)),
            3 => format!("({one}).{}", self.of(&METHODS)),
            4 => format!("[{one}, {}]", self.value(depth - 1)),
            5 => format!("{{'a': {one}, {}: 1}}", self.value(depth - 1)),
            6 => format!("({one})[{}]", self.of(&["1:", "::-1", "0", "-1", "'a'", "ns.b", "i"])),
            _ => format!("({one} if {} else 1)", self.value(depth - 1)),
        }
    }

    fn template(&mut self) -> String {
        let mut body = String::new();
        for _ in 0..1 + self.below(3) {
            let (name, depth) = (self.of(&["a", "b", "c"]), 1 + self.below(3));
            let value = self.value(depth);
            body.push_str(&match self.below(6) {
                0 => format!("{{{{ {value} }}}}"),
                1 => format!("{{% set ns.{name} %}}{{{{ {value} }}}}{{% endset %}}"),
                2 => format!("{{% for j in {value} %}}{{% set ns.{name} = [j, ns.{name}] %}}{{% endfor %}}"),
                _ => format!("{{% set ns.{name} = {value} %}}"),
            });
        }
        format!(
            "{{% set ns = namespace(a='ab', b=[1, 'b'], c={{}}) %}}{{% for i in range(9999) %}}{body}{{% endfor %}}{{{{ ns }}}}"
        )
    }
}

#[test]
fn random_templates_use_up_nothing() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    check(|| (0..150).map(|_| random.template()));
}

/// The seeds of the fuzz target `template`, and what it has found.
#[test]
fn template_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/template");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 8, "{}", files.len());
    check(|| files.into_iter().map(|file| std::fs::read_to_string(file).unwrap()));
}

#[test]
fn no_template_uses_up_memory_or_time() {
    check(nasty);
}
