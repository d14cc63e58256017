//! Arbitrary bytes as a saved sampler: it is refused, or can be saved and restored again, and chooses.
#![no_main]

use oxcart_llm::text::Sampler;

libfuzzer_sys::fuzz_target!(|input: (Vec<u8>, Vec<f32>)| {
    let (bytes, logits) = input;
    let Ok(mut sampler) = Sampler::restore(&bytes) else { return };
    let saved = sampler.save();
    assert_eq!(Sampler::restore(&saved).as_ref(), Ok(&sampler));
    let _ = sampler.sample(&logits);
});
