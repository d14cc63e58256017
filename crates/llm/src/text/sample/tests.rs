//! What samplers choose.

use proptest::prelude::*;

use super::*;

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
    check(SamplerSettings { banned: vec![1, 99], ..plain() }, &half, &[0.5, 0.0, 0.25, 0.25]);
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
    let banned = SamplerSettings { banned: vec![0], ..plain() };
    assert_eq!(Sampler::new(banned).unwrap().sample(&[1.0]), Err(SampleError::NothingLeft));
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
    let settings = SamplerSettings { logprobs: true, repeat_penalty: 3.0, ..SamplerSettings::greedy() };
    let choice = Sampler::new(settings).unwrap().sample(&logits).unwrap();
    assert!((choice.logprob.unwrap() - 0.5_f32.ln()).abs() < 1e-6);
    let top = top_logprobs(&logits, 2).unwrap();
    assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1]);
    assert!((top[1].1 - 0.25_f32.ln()).abs() < 1e-6);
    assert_eq!(logprob(&logits, 7), None);
    assert!(top_logprobs(&[f32::NAN], 1).is_err());
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

const DRAWS: [Token; 8] = [35, 90, 49, 79, 30, 13, 19, 95];

proptest! {
    #[test]
    fn the_top_is_the_top(logits in prop::collection::vec(-5_i8..5, 1..400), count in 1_usize..50) {
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        let mut candidates = Candidates::default();
        candidates.take_top(&logits, count);
        let mut sorted: Vec<(Token, f32)> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        sorted.truncate(count);
        prop_assert_eq!(candidates.iter().collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn any_logits_give_a_token_or_an_error(
        logits in prop::collection::vec(prop_oneof![any::<f32>(), -10.0_f32..10.0], 0..50),
        temperature in 0.0_f32..3.0, top_k in 0_usize..60, top_p in 0.0_f32..=1.0, min_p in 0.0_f32..=1.0,
        typical_p in 0.0_f32..=1.0, repeat_penalty in 0.01_f32..100.0, frequency_penalty in any::<f32>(),
    ) {
        let settings = SamplerSettings {
            temperature, top_k, top_p, min_p, typical_p, repeat_penalty,
            frequency_penalty: if frequency_penalty.is_finite() { frequency_penalty } else { 0.0 },
            ..SamplerSettings::default()
        };
        let mut sampler = Sampler::new(settings).unwrap();
        for _ in 0..5 {
            if let Ok(choice) = sampler.sample(&logits) {
                prop_assert!(logits[choice.token as usize].is_finite());
            }
        }
    }
}
