//! Random models of every architecture against the logits that llama.cpp computed.
//!
//! Needs the recorded data (`OXCART_GOLDEN`); says so and stops where it is not given.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use model_support::{
    Golden, PLAINEST, Precision, Session, Way, decode, judge, largest_difference, load, rms,
};
use oxcart_llm::model::{ModelFile, Pooling};
use oxcart_llm::runner::{AttentionChoice, Encoder, EncoderOptions, RunnerOptions, Wanted};
use oxcart_tensor::DType;

fn check_all(what: &str, way: impl Fn(&Golden) -> Option<Way>) {
    let Some(models) = Golden::all() else { return };
    let mut failures = Vec::new();
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        let Some(way) = way(golden) else { continue };
        let rows = decode(golden, way);
        match judge(golden, &rows, way.cache_type) {
            Ok(said) => eprintln!("{what}: {} {:?}: {said}", golden.name(), golden.precision()),
            Err(said) => failures.push(format!("{}: {said}", golden.name())),
        }
    }
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

#[test]
fn logits_with_an_f32_cache() {
    check_all("f32 cache", |_| Some(PLAINEST));
}

#[test]
fn logits_with_an_f16_cache() {
    check_all("f16 cache", |_| Some(Way { cache_type: DType::F16, ..PLAINEST }));
}

#[test]
fn logits_with_attention_in_one_op() {
    check_all("flash", |_| Some(Way { attention: AttentionChoice::Flash, ..PLAINEST }));
}

#[test]
fn logits_with_plain_attention_and_an_f16_cache() {
    let way = Way { attention: AttentionChoice::Plain, cache_type: DType::F16, ..PLAINEST };
    check_all("plain, f16 cache", |_| Some(way));
}

#[test]
fn logits_of_single_tokens() {
    check_all("one by one", |_| Some(Way { call: 1, ..PLAINEST }));
}

#[test]
fn logits_of_small_batches() {
    check_all("batches of 5", |_| Some(Way { batch: 5, ..PLAINEST }));
}

#[test]
fn logits_over_two_devices() {
    check_all("two devices", |_| Some(Way { devices: 2, ..PLAINEST }));
}

#[test]
fn logits_over_three_devices() {
    check_all("three devices", |_| Some(Way { devices: 3, cache_type: DType::F16, ..PLAINEST }));
}

/// Devices change nothing at all: the same kernels compute the same numbers elsewhere.
#[test]
fn devices_do_not_change_a_bit() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        let one = decode(golden, PLAINEST);
        assert_eq!(one, decode(golden, Way { devices: 3, ..PLAINEST }), "{}", golden.name());
    }
}

/// Quantized caches have no recordings; they must not be far off, and q8_0 closer than q4_0.
#[test]
fn quantized_caches_are_close() {
    let Some(models) = Golden::all() else { return };
    let mut tried = 0;
    for golden in models.iter().filter(|golden| !golden.is_encoder() && golden.precision() == Precision::F32)
    {
        let file = ModelFile::open(golden.path()).unwrap();
        if !file.hyper().blocks[0].key_size.is_multiple_of(32) {
            continue;
        }
        tried += 1;
        let exact = golden.array("logits_kv_f32").unwrap();
        let error = |cache_type| rms(&decode(golden, Way { cache_type, ..PLAINEST }), &exact);
        let (fine, coarse) = (error(DType::Q8_0), error(DType::Q4_0));
        eprintln!("{}: rms q8_0 {fine:.4}, q4_0 {coarse:.4}", golden.name());
        assert!(fine < 0.1 && coarse < 1.5 && fine < coarse, "{}: {fine} {coarse}", golden.name());
    }
    assert!(tried > 0);
}

/// The GELU of the reference, and ours, goes through a table of half-precision numbers: where an input lies at the edge of a
/// step, its last bit moves the output by 5e-4 of it, and the positions after it feel that. So the reference, built for another
/// processor than the recordings were made on, is off from them itself: by 1.04e-3 at one position of gemma2 and 3.4e-4 of gemma3
/// (other architectures: 1.3e-5 at most). After its first block of gemma2, 23 positions are off by 1e-6 and one by 2.6e-4; after
/// the second, six are. Here it is 1.04e-3 and 1.12e-3 at most, and half of the positions must hardly notice.
#[test]
fn logits_of_all_positions() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder() && golden.precision() == Precision::F32)
    {
        let has_steps = golden.name().starts_with("gemma");
        let (tolerance, usual) = if has_steps { (1.2e-3, 3e-4) } else { (1e-3, 5e-5) };
        for (attention, batch) in [
            (AttentionChoice::Flash, 24),
            (AttentionChoice::Flash, 10),
            (AttentionChoice::Plain, 24),
            (AttentionChoice::Plain, 1),
        ] {
            let (model, streams) = load(&golden.path(), 1);
            let cache_type = DType::F32;
            let options =
                RunnerOptions { context: 256, batch, cache_type, attention, ..RunnerOptions::default() };
            let mut session = Session::new(model, streams, options).unwrap();
            let rows = session.evaluate(&golden.tokens("prompt"), Wanted::From(0)).unwrap();
            let reference = golden.array("prompt_logits_kv_f32").unwrap();
            let position = |(found, wanted): (&Vec<f32>, &Vec<f32>)| {
                largest_difference(std::slice::from_ref(found), std::slice::from_ref(wanted))
            };
            let mut worst: Vec<f32> = rows.iter().zip(&reference).map(position).collect();
            assert_eq!(worst.len(), reference.len());
            worst.sort_by(f32::total_cmp);
            let (median, worst) = (worst[worst.len() / 2], worst[worst.len() - 1]);
            let what =
                format!("{} {attention:?} {batch}: max {worst:.2e}, median {median:.1e}", golden.name());
            eprintln!("all positions: {what}");
            assert!(worst <= tolerance && median <= usual, "{what}");
        }
    }
}

#[test]
fn embeddings() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| golden.is_encoder()) {
        let tolerance = if golden.precision() == Precision::F32 { 1e-3 } else { 0.02 };
        for devices in [1, 2] {
            for (pooling, array) in [
                (Pooling::None, "token_embeddings"),
                (Pooling::Mean, "pooled_mean"),
                (Pooling::Cls, "pooled_cls"),
                (Pooling::Last, "pooled_last"),
            ] {
                let (model, streams) = load(&golden.path(), devices);
                let options = EncoderOptions { pooling: Some(pooling) };
                let mut encoder = Encoder::new(model, streams, options).unwrap();
                let reference = golden.array(array).unwrap();
                for _ in 0..2 {
                    let found = encoder.embed(&golden.tokens("prompt")).unwrap();
                    let found: Vec<Vec<f32>> =
                        found.chunks(reference[0].len()).map(<[f32]>::to_vec).collect();
                    let worst = largest_difference(&found, &reference);
                    eprintln!("{} {array} on {devices}: max {worst:.1e}", golden.name());
                    assert!(worst <= tolerance, "{}: {array} {worst}", golden.name());
                }
            }
        }
    }
}
