//! What templates can do, and what they cannot.

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::*;

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = [Message::new("user", "Hi"), Message::new("assistant", " Hello \n")];
    let options = ChatOptions {
        bos_token: "<s>".into(),
        tools: vec![json!({"name": "f", "args": [1, 2.5, null, "é<&>"], "n": {}})],
        variables: json!({"enable_thinking": false}).as_object().unwrap().clone(),
        now: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 366)),
        ..ChatOptions::default()
    };
    ChatTemplate::new(source)?.render(&messages, &options)
}

#[track_caller]
fn check(source: &str, expected: &str) {
    assert_eq!(render(source).unwrap(), expected, "{source}");
}

#[test]
fn what_templates_of_models_use() {
    check("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ enable_thinking }}", "<s>TrueFalse");
    check("  {% for m in messages %}\n{{ m['role'] }},\n  {% endfor %}\n\nend\n", "user,\nassistant,\n\nend");
    check(
        "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "2",
    );
    check(
        "{{ messages[1].content.strip() }}|{{ messages[1]['content'] | trim }}|{{ messages[-1].role.upper() }}",
        "Hello|Hello|ASSISTANT",
    );
    check(
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
        "assistant",
    );
    check("{{ messages[0].content.startswith('H') and 'x' not in messages[0].content }}", "True");
    check("{{ 'a</think>b'.split('</think>')[-1] }}{{ messages[0].get('tool_calls', 'none') }}", "bnone");
    check("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].role) }}", "<user>");
    check(
        "{{ messages[0].missing is defined }}{{ messages[0].content is string }}{{ missing }}",
        "FalseTrue",
    );
    check("{% generation %}a{%- endgeneration -%} b {% generation -%} c{% endgeneration %}", "ab c");
}

/// What bounds hold against is far from what people do.
#[test]
fn long_conversations_are_rendered() {
    let template = ChatTemplate::new(
        "{%- set ns = namespace(last=-1, all=[]) -%}\
         {%- for m in messages -%}{%- if m.role == 'user' and not ('<tool>' in m.content) -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}\
         {%- for m in messages -%}\
         {%- if loop.index0 > 0 and messages[loop.index0 - 1].role == m['role'] -%}{{ raise_exception('twice') }}{%- endif -%}\
         {%- set content = m.content | trim -%}\
         {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}\
         {{ '<' ~ m.role ~ '>' ~ content ~ ('' if loop.index < messages | length else messages | last | length) ~ '\n' }}\
         {%- endfor -%}{{ ns.last }}",
    )
    .unwrap();
    let messages: Vec<Message> = (0..3000)
        .map(|i| {
            Message::new(["user", "assistant"][i % 2], format!("<think>x</think>{}", "word ".repeat(400)))
        })
        .collect();
    let text = template.render(&messages, &ChatOptions::default()).unwrap();
    assert!(text.len() > 3000 * 1999 && text.ends_with("2998"), "{}", text.len());
}

/// Operators that pay for what they do mean what they mean in Jinja.
#[test]
fn operators_mean_the_same() {
    check(
        "{{ 2 * 3 }}|{{ 2 * 1.5 }}|{{ 'ab' * 2 }}|{{ 2 * 'ab' }}|{{ [1] * 2 }}|{{ true * 2 }}",
        "6|3.0|abab|abab|[1, 1]|2",
    );
    check("{{ 'x' * 0 }}|{{ [1, 2] + [3] }}|{{ 'a' + 'b' }}|{{ 'a' ~ 1 ~ [2] }}", "|[1, 2, 3]|ab|a1[2]");
    check(
        "{{ range(3) | list }}|{{ range(3)[1] }}|{{ range(5)[1:3] }}|{{ (range(3) + [7]) | length }}",
        "[0, 1, 2]|1|[1, 2]|4",
    );
    check(
        "{{ missing | length }}|{{ '{\\n' | indent(2, first=true) }}|{{ 'a\\n\\nb' | indent }}|",
        "0|  {\n|a\n\n    b|",
    );
    check(
        "{{ 'é\"😀' | tojson(ensure_ascii=True) }}|{{ 'é' | tojson }}",
        "\"\\u00e9\\\"\\ud83d\\ude00\"|\"é\"",
    );
    check(
        "{{ '<a>' | safe + '<' + '\"' ~ '<' }}|{{ '<' + '>' | safe }}|{{ '<' + '>' }}",
        "<a>&lt;&#34;&lt;|&lt;>|<>",
    );
    check("{{ 'abc'[0] }}|{{ 'abc'[-1] }}|{{ 'abc'[::-1] }}|{{ messages[1:] | length }}", "a|c|cba|1");
    check(
        "{{ ''[::-1] }}|{{ [][::-1] }}|{{ ()[::-1] }}|{{ 'abcd'[2:0:-1] }}|{{ 'abcd'[1:3:-1] }}",
        "|[]|()|cb|",
    );
    check("{{ 1 < 2 < 3 }}|{{ 'b' in 'abc' }}|{{ 4 not in [1] }}|{{ {'a': 1}['a'] }}", "True|True|True|1");
    check(
        "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }} {% endfor %}",
        "aTrue bFalse aTrue ",
    );
    check("{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set x %}y{{ 1 }}{% endset %}{{ x | upper }}", "12Y1");
    check("{% filter upper %}a{% filter replace('A', 'b') %}A{% endfilter %}{% endfilter %}", "AB");
    check("{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12");
    check(
        "{% macro m(x, y=2 * 3) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}",
        "16c",
    );
    check("{% with a = 2 * 2 %}{{ a }}{% endwith %}{% block b %}b{% endblock %}{{ self.b() }}", "4bb");
    check(
        "{{ {'b': 1, 'a': 2} | dictsort | map('first') | join('-') }}{{ {'a': 1}.items() | list }}",
        "a-b[('a', 1)]",
    );
    assert!(matches!(render("{{ 'a' * 1.5 }}"), Err(TemplateError::Failed { .. })));
    assert!(matches!(render("{{ {} * 2 }}"), Err(TemplateError::Failed { .. })));
    // Long text is written as it is, in whatever way it is to be escaped.
    let long = "<&>".repeat(100);
    check(&format!("{{% autoescape true %}}{long}{{% endautoescape %}}"), &long);
}

#[test]
fn json_looks_like_pythons() {
    check("{{ tools[0] | tojson }}", r#"{"name": "f", "args": [1, 2.5, null, "é<&>"], "n": {}}"#);
    check("{{ [1, {'a': []}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": []\n  }\n]");
    check("{{ 'x' | tojson(ensure_ascii=False) }}", "\"x\"");
}

#[test]
fn the_clock_is_the_one_that_is_given() {
    // A day off in either direction, by the time zone of the machine.
    let date = render("{{ strftime_now('%d %b %Y') }}").unwrap();
    assert!(["01 Jan 1971", "02 Jan 1971"].contains(&date.as_str()), "{date}");
    assert!(matches!(render("{{ strftime_now('%') }}"), Err(TemplateError::Failed { .. })));
}

#[test]
fn refusals_are_told_apart() {
    let refused = TemplateError::Refused { message: r"no \u{1b}[31m".into() };
    assert_eq!(render("{{ raise_exception('no \x1b[31m') }}"), Err(refused));
    assert!(matches!(render("{% if %}"), Err(TemplateError::Invalid { line: Some(1), .. })));
    assert!(matches!(render("\n{{ messages + 1 }}"), Err(TemplateError::Failed { line: Some(2), .. })));
    assert!(matches!(render(&" ".repeat(2 << 20)), Err(TemplateError::TooLong { .. })));
}

/// Known ways to break out of template engines show nothing, or fail.
#[test]
fn nothing_of_the_host_is_within_reach() {
    for payload in [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].environ }}",
        "{{ request.application.__globals__ }}",
        "{{ config.items() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.environ }}",
        "{% extends '/etc/hostname' %}",
        "{{ get_flashed_messages.__globals__ }}",
        "{{ messages.__class__.__base__ }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ env('PATH') }}{{ getenv('PATH') }}",
    ] {
        let shown = render(payload).unwrap_or_default();
        assert!(shown.is_empty(), "{payload}: {shown}");
    }
}

/// Whatever a template tries, it ends soon.
#[test]
fn costs_are_bounded() {
    let nested =
        |depth: usize, open: &str, close: &str| format!("{}{}", open.repeat(depth), close.repeat(depth));
    for (source, expected) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
            "OutOfSteps",
        ),
        ("{{ range(1000000000) }}".into(), "Failed"),
        ("{{ 'x' * 10000000000 }}".into(), "Failed"),
        ("{{ [1] * 10000000000 }}".into(), "Failed"),
        ("{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}".into(), "OutOfBudget"),
        ("{% for a in range(200) %}{{ 'x' * 99999 }}{% endfor %}".into(), "OutputTooLong"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(), "Failed"),
        ("{% for a in [[]] recursive %}{{ loop([[]]) }}{% endfor %}".into(), "Failed"),
        (format!("{{{{ {} }}}}", nested(100_000, "(", ")")), "Invalid"),
        (format!("{{{{ {}1 }}}}", "-".repeat(100_000)), "Invalid"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(100_000)), "Invalid"),
        (format!("{{{{ {} }}}}", nested(100_000, "[", "]")), "Invalid"),
        (nested(10_000, "{% if 1 %}", "{% endif %}"), "Invalid"),
        ("{{ 'x' | indent(9223372036854775807) }}".into(), "Failed"),
        ("{{ '%9223372036854775807d' | format(1) }}".into(), "Failed"),
        ("{{ '%*d' | format(99999999999, 1) }}".into(), "Failed"),
        ("{{ '{:>9223372036854775807}'.format('x') }}".into(), "Failed"),
        ("{{ 'x' | tojson(indent=9223372036854775807) }}".into(), "Failed"),
        ("{{ [1] | batch(9223372036854775807) | list | length }}{{ 1 / 0 }}".into(), "Failed"),
        ("{{ [1] | batch(9223372036854775807, 'x') | list | length }}".into(), "Failed"),
        ("{{ [1] | slice(99999999999) | first }}".into(), "Failed"),
        ("{{ ('a' * 99999).replace('a', 'b' * 99999) }}".into(), "Failed"),
        ("{{ ('a' * 99999) | replace('', 'b' * 99999) }}".into(), "Failed"),
        ("{{ range(99999) | join('b' * 99999) }}{{ ('b' * 99999).join(range(99999)) }}".into(), "Failed"),
        ("{{ ('\n' * 99999) | indent(999) }}".into(), "Failed"),
    ] {
        let start = Instant::now();
        let error = render(&source).expect_err(&source[..source.len().min(80)]);
        assert!(format!("{error:?}").starts_with(expected), "{:?}: {error}", &source[..source.len().min(80)]);
        assert!(start.elapsed().as_secs() < 60, "{:?}", &source[..source.len().min(80)]);
    }
    assert_eq!(render(&format!("{{{{ {}1 }}}}", "-".repeat(100))).unwrap(), "1");
    assert_eq!(render(&format!("{{{{ {}1 }}}}", "not ".repeat(100))).unwrap(), "True");
}

/// A value nested as deeply as steps allow is made, shown, turned into JSON and freed.
#[test]
fn deep_values_do_not_overflow_the_stack() {
    for end in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}", "{{ ns.x | string | length }}"]
    {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for a in range(99999) %}}{{% for b in range(99999) %}}\
             {{% set ns.x = [ns.x] %}}{{% if a * 99999 + b > 140000 %}}{{% break %}}{{% endif %}}{{% endfor %}}\
             {{% if a > 0 %}}{{% break %}}{{% endif %}}{{% endfor %}}{end}"
        );
        let _ = render(&source);
        let deepest = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for a in range(99999) %}}{{% for b in range(99999) %}}\
             {{% set ns.x = [ns.x] %}}{{% endfor %}}{{% endfor %}}{end}"
        );
        assert_eq!(render(&deepest), Err(TemplateError::OutOfSteps));
    }
}

#[test]
fn markers_leave_no_trace() {
    let prompt = guard::unmark("a\u{fdd0}b\u{fdd0}\u{fdd0}c".into(), '\u{fdd0}');
    assert_eq!(prompt, Prompt { text: "abc".into(), guards: vec![1, 2, 2] });
    assert_eq!(guard::unmark("abc".into(), '\u{fdd0}'), Prompt { text: "abc".into(), guards: vec![] });
}
