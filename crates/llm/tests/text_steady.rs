//! Choosing a token allocates nothing, once a sampler is under way.
#![allow(clippy::unwrap_used, reason = "tests")]

use oxcart_llm::text::{Dry, Mirostat, Sampler, SamplerSettings, TokenMask};
use oxcart_tally::allocations;

#[test]
fn a_choice_allocates_nothing() {
    let vocabulary = 128_000;
    let logits: Vec<f32> =
        (0..vocabulary).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-6).collect();
    let mut mask = TokenMask::none(vocabulary);
    (0..vocabulary as u32).filter(|token| token % 3 == 0).for_each(|token| mask.allow(token));
    let all = SamplerSettings {
        top_k: 0,
        top_n_sigma: 2.0,
        typical_p: 0.99,
        xtc_probability: 0.5,
        temperature_range: 0.5,
        repeat_penalty: 1.1,
        dry: Some(Dry { window: 32, ..Dry::default() }),
        logit_bias: vec![(5, 1.0)],
        logprobs: Some(20),
        ..SamplerSettings::default()
    };
    let mirostat = SamplerSettings { mirostat: Some(Mirostat::default()), ..all.clone() };
    for settings in [SamplerSettings::greedy(), SamplerSettings::default(), all, mirostat] {
        let mut sampler = Sampler::new(settings.clone()).unwrap();
        let mut step = || {
            sampler.sample(&logits).unwrap();
            sampler.sample_masked(&logits, &mask).unwrap();
        };
        (0..200).for_each(|_| step());
        let before = allocations();
        (0..20).for_each(|_| step());
        assert_eq!(allocations() - before, 0, "{settings:?}");
    }
}
