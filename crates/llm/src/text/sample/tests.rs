//! What samplers choose.

use proptest::prelude::*;

use super::*;
use crate::logits::tests::pack;
use crate::logits::unpack;
use crate::text::limits::{MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS};

/// Chance alone: everything else is off.
fn plain() -> SamplerSettings {
    SamplerSettings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplerSettings::default() }
}

/// How often each token is chosen in many draws.
fn histogram(settings: SamplerSettings, logits: &[f32]) -> Vec<f64> {
    let mut sampler = Sampler::new(settings).unwrap();
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..20_000 {
        counts[sampler.sample(logits).unwrap().token as usize] += 1.0 / 20_000.0;
    }
    counts
}

/// Logits of these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[track_caller]
fn check(settings: SamplerSettings, probabilities: &[f32], expected: &[f64]) {
    let found = histogram(settings, &logits(probabilities));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 0.015 && (*expected > 0.0 || *found == 0.0), "{found} {expected}");
    }
}

#[test]
fn draws_follow_probabilities() {
    check(plain(), &[0.5, 0.3, 0.2], &[0.5, 0.3, 0.2]);
    check(
        SamplerSettings { temperature: 0.5, ..plain() },
        &[0.5, 0.25, 0.25],
        &[4.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0],
    );
    check(SamplerSettings { temperature: 1e-20, ..plain() }, &[0.5, 0.4, 0.1], &[1.0, 0.0, 0.0]);
}

#[test]
fn cuts() {
    let half = [0.25, 0.5, 0.125, 0.125];
    check(SamplerSettings { top_k: 2, ..plain() }, &half, &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
    check(SamplerSettings { top_p: 0.7, ..plain() }, &half, &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
    check(SamplerSettings { top_p: 0.0, ..plain() }, &half, &[0.0, 1.0, 0.0, 0.0]);
    check(SamplerSettings { min_p: 0.4, ..plain() }, &half, &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
    // The expected surprise is 1.75 bits; 0.25 has two, which is nearest.
    check(SamplerSettings { typical_p: 0.2, ..plain() }, &half, &[1.0, 0.0, 0.0, 0.0]);
    check(plain().ban(&[1, 99]), &half, &[0.5, 0.0, 0.25, 0.25]);
}

#[test]
fn cuts_by_deviation() {
    // Logits 0, 2, 4 and 6 have a deviation of 2.236.
    let mut sampler = Sampler::new(SamplerSettings { top_n_sigma: 1.0, ..plain() }).unwrap();
    let logits = [0.0, f32::NEG_INFINITY, 2.0, 4.0, 6.0];
    let mut chosen: Vec<Token> = (0..1000).map(|_| sampler.sample(&logits).unwrap().token).collect();
    chosen.sort_unstable();
    chosen.dedup();
    assert_eq!(chosen, [3, 4]);
}

#[test]
fn the_obvious_is_left_out_as_often_as_asked() {
    let probabilities = [0.4, 0.3, 0.2, 0.1];
    let settings = SamplerSettings { xtc_probability: 1.0, xtc_threshold: 0.19, ..plain() };
    check(settings.clone(), &probabilities, &[0.0, 0.0, 2.0 / 3.0, 1.0 / 3.0]);
    let half = SamplerSettings { xtc_probability: 0.5, ..settings.clone() };
    check(half, &probabilities, &[0.2, 0.15, 0.1 + 1.0 / 3.0, 0.05 + 1.0 / 6.0]);
    // One alone is never left out, nor is any above a half.
    check(SamplerSettings { xtc_threshold: 0.35, ..settings.clone() }, &probabilities, &[0.4, 0.3, 0.2, 0.1]);
    check(SamplerSettings { xtc_threshold: 0.6, ..settings }, &probabilities, &[0.4, 0.3, 0.2, 0.1]);
}

#[test]
fn temperature_follows_uncertainty() {
    let settings = SamplerSettings { temperature: 1.0, temperature_range: 1.0, ..plain() };
    // Evenly spread: as hot as may be, which changes nothing.
    check(settings.clone(), &[0.25; 4], &[0.25; 4]);
    // Half as unsure as can be: temperature one.
    let unsure = -(0.89_f64 * 0.89_f64.log2() + 0.11 * 0.11_f64.log2());
    assert!((unsure - 0.5).abs() < 0.001);
    check(settings.clone(), &[0.89, 0.11], &[0.89, 0.11]);
    // Sure: as cold as may be.
    check(settings.clone(), &[0.9999, 0.0001], &[1.0, 0.0]);
    let steep = SamplerSettings { temperature_exponent: 100.0, ..settings };
    check(steep, &[0.89, 0.11], &[1.0, 0.0]);
}

#[test]
fn surprise_is_kept_constant() {
    // Probabilities of one in two, four, eight...
    let logits: Vec<f32> = (0..12).map(|n| -(n as f32) * std::f32::consts::LN_2).collect();
    for tau in [0.5, 1.0, 1.5] {
        let settings = SamplerSettings { mirostat: Some(Mirostat { tau, eta: 0.1 }), ..plain() };
        let mut sampler = Sampler::new(settings).unwrap();
        let mut surprise = 0.0;
        for _ in 0..4000 {
            surprise += sampler.sample(&logits).unwrap().token as f32 + 1.0;
        }
        // The cut makes what is left likelier, so that the measured surprise differs from the one of the whole.
        let mean = surprise / 4000.0;
        assert!((1.0..=2.0).contains(&mean) && (sampler.mu - tau).abs() < 2.0 * tau + 1.0, "{tau}: {mean}");
    }
    let calm = SamplerSettings { mirostat: Some(Mirostat { tau: 0.0, eta: 1.0 }), ..plain() };
    assert_eq!(Sampler::new(calm).unwrap().sample(&logits).unwrap().token, 0);
}

#[test]
fn masks() {
    let probabilities = [0.5, 0.25, 0.125, 0.125];
    let mut mask = TokenMask::none(4);
    let mut sampler = Sampler::new(plain()).unwrap();
    let logits = logits(&probabilities);
    assert_eq!(sampler.sample_masked(&logits, &mask), Err(SampleError::NothingLeft));
    mask.allow(2);
    for _ in 0..20 {
        assert_eq!(sampler.sample_masked(&logits, &mask).unwrap().token, 2);
    }
    mask.allow(0);
    let mut counts = [0; 4];
    (0..1000).for_each(|_| counts[sampler.sample_masked(&logits, &mask).unwrap().token as usize] += 1);
    assert!(counts[1] == 0 && counts[3] == 0 && (750..850).contains(&counts[0]), "{counts:?}");
    // A mask that is shorter than the logits allows nothing beyond its end.
    let mut greedy = Sampler::new(SamplerSettings::greedy()).unwrap();
    assert_eq!(greedy.sample_masked(&[0.0, 1.0, 2.0], &TokenMask::all(2)).unwrap().token, 1);
    // Damaged logits are found behind the mask, too.
    let damaged = greedy.sample_masked(&[0.0, f32::NAN], &TokenMask::all(1));
    assert!(matches!(damaged, Err(SampleError::NotFinite { token: 1, .. })));
}

#[test]
fn biases() {
    let bias = |logit_bias: Vec<(Token, f32)>| SamplerSettings { logit_bias, ..SamplerSettings::greedy() };
    let choose = |settings| Sampler::new(settings).unwrap().sample(&[1.0, 2.0, 3.0]).unwrap().token;
    assert_eq!(choose(bias(vec![(0, 1.5), (0, 1.5), (9, 5.0)])), 0);
    assert_eq!(choose(bias(vec![(2, f32::NEG_INFINITY)])), 1);
    assert_eq!(choose(bias(vec![(1, f32::MAX), (1, f32::MAX)])), 1);
    for value in [f32::NAN, f32::INFINITY] {
        let error = Sampler::new(bias(vec![(0, 0.0), (5, value)])).unwrap_err();
        assert!(matches!(error, SampleError::Bias { token: 5, .. }), "{error}");
    }
    let many = Sampler::new(bias(vec![(0, 0.0); MAX_LOGIT_BIASES + 1])).unwrap_err();
    assert!(matches!(many, SampleError::TooMany { name: "logit biases", .. }), "{many}");
    let many = SamplerSettings { logprobs: Some(MAX_TOP_LOGPROBS + 1), ..plain() };
    assert!(matches!(Sampler::new(many), Err(SampleError::TooMany { name: "likeliest tokens", .. })));
}

#[test]
fn prompts_count_only_where_asked_to() {
    let settings = SamplerSettings { presence_penalty: 5.0, ..SamplerSettings::greedy() };
    // As OpenAI's interface has it.
    let answer_only =
        SamplerSettings { penalty_window: usize::MAX, penalize_prompt: false, ..settings.clone() };
    for (settings, expected) in [(settings, 1), (answer_only, 0)] {
        let mut sampler = Sampler::new(settings).unwrap();
        sampler.accept(0);
        assert_eq!(sampler.sample(&[3.0, 2.0]).unwrap().token, expected);
        assert_eq!(sampler.sample(&[3.0, 2.0]).unwrap().token, 1 - expected);
    }
}

#[test]
fn repetitions_are_avoided() {
    let settings = SamplerSettings {
        dry: Some(Dry { multiplier: 1.0, base: 2.0, ..Dry::default() }),
        ..SamplerSettings::greedy()
    };
    let mut sampler = Sampler::new(settings).unwrap();
    [0, 1, 2, 0, 1].iter().for_each(|&token| sampler.accept(token));
    assert_eq!(sampler.sample(&[0.0, 0.5, 0.9]).unwrap().token, 1);
}

#[test]
fn penalties_count_what_was_seen() {
    let settings = SamplerSettings { repeat_penalty: 2.0, penalty_window: 2, ..SamplerSettings::greedy() };
    let mut sampler = Sampler::new(settings).unwrap();
    let logits = [3.0, 2.0, 1.0];
    let chosen: Vec<Token> = (0..4).map(|_| sampler.sample(&logits).unwrap().token).collect();
    assert_eq!(chosen, [0, 1, 0, 0]);
    sampler.reset();
    assert_eq!(sampler.sample(&logits).unwrap().token, 0);

    let settings = SamplerSettings { frequency_penalty: 0.6, ..SamplerSettings::greedy() };
    let mut sampler = Sampler::new(settings).unwrap();
    let chosen: Vec<Token> = (0..6).map(|_| sampler.sample(&logits).unwrap().token).collect();
    assert_eq!(chosen, [0, 0, 1, 0, 1, 0]);

    let settings = SamplerSettings { presence_penalty: 5.0, ..SamplerSettings::greedy() };
    let mut sampler = Sampler::new(settings).unwrap();
    sampler.accept(0);
    sampler.accept(1_000_000);
    assert_eq!(sampler.sample(&logits).unwrap().token, 1);
}

#[test]
fn damaged_logits_are_errors() {
    for settings in [plain(), SamplerSettings::greedy(), SamplerSettings::default()] {
        let mut sampler = Sampler::new(settings).unwrap();
        let not_finite = |token, value| Err(SampleError::NotFinite { token, value });
        let found = sampler.sample(&[0.0, f32::NAN]);
        assert!(matches!(found, Err(SampleError::NotFinite { token: 1, .. })));
        assert_eq!(sampler.sample(&[0.0, f32::INFINITY]), not_finite(1, f32::INFINITY));
        assert_eq!(sampler.sample(&[]), Err(SampleError::NothingLeft));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingLeft));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -1e38]).unwrap().token, 1);
    }
    assert_eq!(Sampler::new(plain().ban(&[0])).unwrap().sample(&[1.0]), Err(SampleError::NothingLeft));
}

#[test]
fn settings_are_checked() {
    for (settings, name) in [
        (SamplerSettings { temperature: f32::NAN, ..plain() }, "temperature"),
        (SamplerSettings { temperature: -1.0, ..plain() }, "temperature"),
        (SamplerSettings { top_p: 1.5, ..plain() }, "top-p"),
        (SamplerSettings { min_p: f32::NAN, ..plain() }, "min-p"),
        (SamplerSettings { typical_p: -0.1, ..plain() }, "typical-p"),
        (SamplerSettings { repeat_penalty: 0.0, ..plain() }, "the repeat penalty"),
        (SamplerSettings { presence_penalty: f32::INFINITY, ..plain() }, "the presence penalty"),
    ] {
        let error = Sampler::new(settings).unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn probabilities_of_choices() {
    let logits = logits(&[0.5, 0.25, 0.25]);
    let settings = SamplerSettings { logprobs: Some(2), repeat_penalty: 3.0, ..SamplerSettings::greedy() };
    let choice = Sampler::new(settings).unwrap().sample(&logits).unwrap();
    assert!((choice.logprob.unwrap() - 0.5_f32.ln()).abs() < 1e-6);
    let settings =
        SamplerSettings { logprobs: Some(2), logit_bias: vec![(0, -9.0)], ..SamplerSettings::greedy() };
    let mut sampler = Sampler::new(settings).unwrap();
    let mut mask = TokenMask::none(3);
    mask.allow(2);
    let choice = sampler.sample_masked(&logits, &mask).unwrap();
    assert!(choice.token == 2 && (choice.logprob.unwrap() - 0.25_f32.ln()).abs() < 1e-6);
    assert_eq!(sampler.top_logprobs(), top_logprobs(&logits, 2).unwrap());
    let top = top_logprobs(&logits, 2).unwrap();
    assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1]);
    assert!((top[1].1 - 0.25_f32.ln()).abs() < 1e-6);
    assert_eq!(logprob(&logits, 7), None);
    assert!(top_logprobs(&[f32::NAN], 1).is_err());
}

/// Everything that has a state of its own.
fn with_state() -> SamplerSettings {
    SamplerSettings {
        temperature: 1.0,
        temperature_range: 0.5,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        xtc_probability: 0.5,
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        penalty_window: 5,
        dry: Some(Dry { window: 7, breakers: vec![3, 1], ..Dry::default() }),
        logit_bias: vec![(2, -0.5), (4, f32::NEG_INFINITY)],
        seed: u64::MAX - 5,
        logprobs: Some(3),
        ..SamplerSettings::default()
    }
}

#[test]
fn saved_samplers_go_on() {
    let mirostat = SamplerSettings { mirostat: Some(Mirostat::default()), ..with_state() };
    for settings in [plain(), SamplerSettings::greedy(), with_state(), mirostat] {
        let mut sampler = Sampler::new(settings.clone()).unwrap();
        for step in 0..30 {
            let logits: Vec<f32> = (0..9).map(|n| ((n * 7 + step * 5) % 9) as f32 / 2.0).collect();
            if step < 4 {
                sampler.accept(step);
            }
            let saved = sampler.save();
            let mut restored = Sampler::restore(&saved).unwrap();
            assert_eq!(restored, sampler);
            assert_eq!(restored.save(), saved);
            assert_eq!(restored.sample(&logits).unwrap(), sampler.sample(&logits).unwrap());
            assert_eq!(restored, sampler);
            assert_ne!(Sampler::restore(&saved).unwrap(), sampler);
        }
    }
}

#[test]
fn damaged_saves_are_errors() {
    let mut sampler = Sampler::new(with_state()).unwrap();
    (0..20).for_each(|token| sampler.accept(token));
    let saved = sampler.save();
    for len in 0..saved.len() {
        let error = Sampler::restore(&saved[..len]).unwrap_err();
        assert!(
            matches!(error, SavedSamplerError::TooShort { .. } | SavedSamplerError::NotASampler),
            "{error}"
        );
    }
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = saved.clone();
        changed.splice(at..at + bytes.len(), bytes.iter().copied());
        Sampler::restore(&changed)
    };
    assert_eq!(with(4, &[2]), Err(SavedSamplerError::Version { found: 2 }));
    assert!(matches!(with(8, &[0, 0, 0xc0, 0x7f]), Err(SavedSamplerError::Settings(_))));
    assert_eq!(
        Sampler::restore(&[saved.clone(), vec![0]].concat()),
        Err(SavedSamplerError::TooLong { extra: 1 })
    );
    // More tokens than the window has room for.
    let narrow = SamplerSettings { penalty_window: 4, ..with_state() };
    let mut narrow = Sampler::new(narrow).unwrap().save();
    let state = narrow.len() - 20;
    narrow.splice(state.., saved[saved.len() - (20 + 5 * 4 + 7 * 4)..].iter().copied());
    assert!(matches!(Sampler::restore(&narrow), Err(SavedSamplerError::Damaged { .. })));
}

/// What a token draws does not depend on what came before it, only on its index.
#[test]
fn draws_belong_to_places() {
    let logits =
        |token: u32| (0..50).map(|n| ((n * 37 + token * 11) % 51) as f32 / 10.0).collect::<Vec<f32>>();
    let settings = SamplerSettings { xtc_probability: 0.3, seed: 99, ..plain() };
    let mut straight = Sampler::new(settings.clone()).unwrap();
    let chosen: Vec<Token> = (0..40).map(|at| straight.sample(&logits(at)).unwrap().token).collect();
    for start in 0..40 {
        // Another life: other tokens before, chosen elsewhere, with errors and other masks in between.
        let mut other = Sampler::new(settings.clone()).unwrap();
        for at in 0..start {
            match at % 3 {
                0 => other.replay(at),
                1 => drop(other.sample(&[0.0; 7]).unwrap()),
                _ => drop(other.sample_masked(&logits(at + 5), &TokenMask::all(3)).unwrap()),
            }
            other.sample(&[f32::NAN]).unwrap_err();
        }
        assert_eq!(other.index(), u64::from(start));
        let rest: Vec<Token> = (start..40).map(|at| other.sample(&logits(at)).unwrap().token).collect();
        assert_eq!(rest, chosen[start as usize..]);
    }
}

/// Draws must not change unnoticed from one version to the next.
#[test]
fn draws_are_reproducible() {
    let logits: Vec<f32> = (0..100).map(|n| ((n * 37) % 101) as f32 / 20.0).collect();
    let mut sampler = Sampler::new(SamplerSettings { seed: 42, ..SamplerSettings::default() }).unwrap();
    let first: Vec<Token> = (0..8).map(|_| sampler.sample(&logits).unwrap().token).collect();
    sampler.reset();
    let again: Vec<Token> = (0..8).map(|_| sampler.sample(&logits).unwrap().token).collect();
    assert_eq!(first, again);
    assert_eq!(first, DRAWS);
}

/// However many there are, and however those before were let go.
#[test]
fn zeros_of_either_sign_are_equal() {
    let logits: Vec<f32> = (0..300).map(|at| if at % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let mut candidates = Candidates::default();
    for count in [1, 10, 100] {
        candidates.take_top(Offered::All(&logits), count, f32::NEG_INFINITY);
        assert!(candidates.iter().map(|(token, _)| token).eq(0..count as Token), "{count}");
    }
}

/// What choices need: how many of the largest logits.
#[test]
fn what_has_to_be_known() {
    let need = |settings: SamplerSettings| {
        let mut sampler = Sampler::new(settings).unwrap();
        (0..5).for_each(|token| sampler.accept(token % 3));
        sampler.need(0)
    };
    let usual = SamplerSettings::default;
    assert_eq!(need(usual()), Need::largest(40));
    assert_eq!(need(SamplerSettings::greedy()), Need::largest(1));
    assert_eq!(need(usual().ban(&[4, 9])), Need::largest(42));
    assert_eq!(need(SamplerSettings { repeat_penalty: 1.1, ..usual() }), Need::largest(43));
    let cut = SamplerSettings { min_p: 0.05, ..plain() };
    assert_eq!(need(cut.clone()), Need::Largest { count: 1, within: 0.05_f32.ln() });
    for all in [
        plain(),
        SamplerSettings { top_p: 0.9, ..cut.clone() },
        SamplerSettings { typical_p: 0.9, ..cut.clone() },
        SamplerSettings { presence_penalty: 0.5, ..cut.clone() },
        cut.ban(&[1]),
        SamplerSettings { repeat_penalty: 0.9, ..usual() },
        SamplerSettings { frequency_penalty: -0.1, ..usual() },
        SamplerSettings { logit_bias: vec![(3, 0.5)], ..usual() },
        SamplerSettings { logprobs: Some(0), ..SamplerSettings::greedy() },
        SamplerSettings { dry: Some(Dry::default()), ..usual() },
        SamplerSettings { mirostat: Some(Mirostat::default()), ..usual() },
        SamplerSettings { top_n_sigma: 1.0, ..usual() },
    ] {
        assert_eq!(need(all.clone()), Need::All, "{all:?}");
    }
    // Nothing is penalized yet; after a guess, something is.
    let later = SamplerSettings { presence_penalty: 1.0, ..SamplerSettings::greedy() };
    let raised = SamplerSettings { presence_penalty: -1.0, ..SamplerSettings::greedy() };
    let needs = |settings: SamplerSettings| {
        [0, 2].map(|further| Sampler::new(settings.clone()).unwrap().need(further))
    };
    assert_eq!(needs(later), [Need::largest(1), Need::largest(3)]);
    assert_eq!(needs(raised), [Need::largest(1), Need::All]);
}

const DRAWS: [Token; 8] = [68, 79, 46, 46, 54, 49, 35, 38];

proptest! {
    #[test]
    fn the_top_is_the_top(logits in prop::collection::vec(-5_i8..5, 1..400), count in 1_usize..50) {
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        let mut candidates = Candidates::default();
        candidates.take_top(Offered::All(&logits), count, f32::NEG_INFINITY);
        let mut sorted: Vec<(Token, f32)> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        sorted.truncate(count);
        prop_assert_eq!(candidates.iter().collect::<Vec<_>>(), sorted);
    }

    /// The largest logits, where they are enough, give the tokens that all of them give, however equal ones were told apart.
    #[test]
    fn the_largest_choose_as_all(
        rows in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![3 => (-2_i8..3).prop_map(f32::from), 1 => Just(-0.0), 1 => -9.0_f32..3.0],
                80,
            ),
            20,
        ),
        (count, last_first) in (2_usize..80, any::<bool>()), seed in any::<u64>(),
        temperature in prop_oneof![1 => Just(0.0), 3 => 0.5_f32..5.0],
        top_k in prop_oneof![1 => Just(0), 3 => 1_usize..50],
        (top_p, typical_p) in
            (prop_oneof![3 => Just(1.0), 1 => 0.0_f32..=1.0], prop_oneof![3 => Just(1.0), 1 => 0.0_f32..=1.0]),
        min_p in prop_oneof![2 => Just(0.0), 1 => 0.0_f32..=0.2],
        (xtc_probability, temperature_range) in (prop_oneof![2 => Just(0.0), 1 => 0.0_f32..=1.0], 0.0_f32..1.0),
        repeat_penalty in prop_oneof![3 => Just(1.0), 1 => 0.9_f32..2.0],
        (frequency_penalty, presence_penalty) in
            (prop_oneof![3 => Just(0.0), 1 => -0.1_f32..1.0], prop_oneof![3 => Just(0.0), 1 => -0.1_f32..1.0]),
        (penalty_window, logit_bias) in (
            0_usize..9,
            prop::collection::vec((0_u32..90, prop_oneof![Just(f32::NEG_INFINITY), -3.0_f32..0.1]), 0..3),
        ),
    ) {
        let settings = SamplerSettings {
            seed, temperature, top_k, top_p, typical_p, min_p, xtc_probability, temperature_range, repeat_penalty,
            frequency_penalty, presence_penalty, penalty_window, logit_bias,
            ..SamplerSettings::default()
        };
        let mut whole = Sampler::new(settings).unwrap();
        let mut least = whole.clone();
        for logits in rows {
            let mut pairs = Vec::new();
            let is_read = unpack(&pack(&logits, count, last_first), logits.len(), &mut pairs);
            let largest = Largest::found(&pairs);
            let known = match is_read && least.need(0).is_met_by(largest) {
                true => Known::Largest(largest),
                false => Known::All(&logits),
            };
            prop_assert_eq!(least.sample_known(known), whole.sample(&logits));
            prop_assert_eq!(&least, &whole);
        }
    }

    #[test]
    fn any_bytes_are_a_sampler_or_an_error(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut sampler = Sampler::new(with_state()).unwrap();
        (0..9).for_each(|token| sampler.accept(token));
        let mut saved = sampler.save();
        for (at, byte) in hits {
            let at = at.index(saved.len());
            saved[at] = byte;
        }
        if let Ok(mut sampler) = Sampler::restore(&saved) {
            prop_assert_eq!(sampler.save(), saved);
            let _ = sampler.sample(&[0.5, 1.0, 2.0]);
        }
    }

    #[test]
    fn any_logits_give_a_token_or_an_error(
        logits in prop::collection::vec(prop_oneof![any::<f32>(), -10.0_f32..10.0], 0..50),
        temperature in 0.0_f32..3.0, top_k in 0_usize..60, top_p in 0.0_f32..=1.0, min_p in 0.0_f32..=1.0,
        typical_p in 0.0_f32..=1.0, repeat_penalty in 0.01_f32..100.0, frequency_penalty in any::<f32>(),
        top_n_sigma in 0.0_f32..2.0, xtc_probability in 0.0_f32..=1.0, temperature_range in 0.0_f32..2.0,
        mirostat in prop::option::of((0.0_f32..1e38, 0.0_f32..1e38)), dry in prop::option::of(0.0_f32..1e38),
        mask in prop::option::of(prop::collection::vec(any::<bool>(), 0..60)),
    ) {
        let settings = SamplerSettings {
            temperature, top_k, top_p, min_p, typical_p, repeat_penalty, top_n_sigma, xtc_probability, temperature_range,
            mirostat: mirostat.map(|(tau, eta)| Mirostat { tau, eta }),
            dry: dry.map(|multiplier| Dry { multiplier, base: 1e9, ..Dry::default() }),
            frequency_penalty: if frequency_penalty.is_finite() { frequency_penalty } else { 0.0 },
            ..SamplerSettings::default()
        };
        let mut sampler = Sampler::new(settings).unwrap();
        let mask = mask.map(|bits| {
            let mut mask = TokenMask::none(bits.len());
            (0..).zip(bits).filter(|(_, allowed)| *allowed).for_each(|(token, _)| mask.allow(token));
            mask
        });
        for _ in 0..5 {
            let before = sampler.clone();
            let choice = match &mask {
                Some(mask) => sampler.sample_masked(&logits, mask),
                None => sampler.sample(&logits),
            };
            match choice {
                Ok(choice) => {
                    prop_assert!(logits[choice.token as usize].is_finite());
                    prop_assert!(mask.as_ref().is_none_or(|mask| mask.contains(choice.token)));
                    prop_assert_eq!(&Sampler::restore(&sampler.save()).unwrap(), &sampler);
                }
                Err(_) => prop_assert_eq!(&before, &sampler),
            }
        }
    }
}
