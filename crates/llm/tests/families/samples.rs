//! Models of a few kilobytes, one or more for each family: settings here, tensors as the architecture asks for them, numbers that
//! follow from names. So the same model can be made anywhere, and what the reference computed with it can be kept instead of it.

use std::path::{Path, PathBuf};

use oxcart_gguf::{Builder, Header};
use oxcart_llm::model::HyperParameters;
use oxcart_tensor::{DType, Layout, Shape};

/// Tokens of every vocabulary.
pub(crate) const VOCABULARY: usize = 32;

/// A value of a setting.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    Count(u32),
    Counts(&'static [u32]),
    Number(f32),
    Flag(bool),
    Text(&'static str),
}

use Setting::{Count, Counts, Flag, Number, Text};

/// A model in the making.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// What tells it from others.
    pub(crate) name: &'static str,
    architecture: &'static str,
    settings: Vec<(&'static str, Setting)>,
    /// Tensors that it has though it need not.
    extra: Vec<(&'static str, &'static [usize])>,
}

impl Sample {
    fn new(name: &'static str, architecture: &'static str) -> Sample {
        let settings = vec![
            ("context_length", Count(128)),
            ("embedding_length", Count(64)),
            ("block_count", Count(2)),
            ("feed_forward_length", Count(96)),
            ("attention.head_count", Count(4)),
            ("attention.head_count_kv", Count(2)),
            ("attention.layer_norm_rms_epsilon", Number(1e-5)),
            ("vocab_size", Count(VOCABULARY as u32)),
        ];
        Sample { name, architecture, settings, extra: Vec::new() }
    }

    fn with(mut self, settings: &[(&'static str, Setting)]) -> Sample {
        for (key, value) in settings {
            self.settings.retain(|(other, _)| other != key);
            self.settings.push((key, value.clone()));
        }
        self
    }

    fn and(mut self, name: &'static str, shape: &'static [usize]) -> Sample {
        self.extra.push((name, shape));
        self
    }

    /// A file with its settings and no tensors yet.
    fn settings(&self) -> Builder<'static> {
        let mut builder = Builder::new();
        builder.set("general.architecture", self.architecture).set("tokenizer.ggml.model", "none");
        for (key, value) in &self.settings {
            let key = format!("{}.{key}", self.architecture);
            match value {
                Count(value) => builder.set(&key, *value),
                Counts(values) => builder.set(&key, values.to_vec()),
                Number(value) => builder.set(&key, *value),
                Flag(value) => builder.set(&key, *value),
                Text(value) => builder.set(&key, *value),
            };
        }
        builder
    }

    /// Writes it to a folder.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let (mut header, mut builder) = (Vec::new(), self.settings());
        self.settings().write(&mut header).unwrap();
        let hyper = HyperParameters::read(Header::parse(&header).unwrap().metadata()).unwrap();
        let extents = |shape: Shape| (0..shape.dims()).map(|at| shape[at]).collect();
        let needed = hyper.tensors().unwrap().into_iter().map(|(name, shape)| (name, extents(shape)));
        let extra = self.extra.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()));
        for (name, shape) in needed.chain(extra) {
            let mut extents = [1; 4];
            extents[..shape.len()].copy_from_slice(&shape);
            builder.tensor(&name, Layout::packed(DType::F32, extents).unwrap(), contents(&name, &shape));
        }
        let path = folder.join(format!("{}.gguf", self.name));
        builder.write(std::fs::File::create(&path).unwrap()).unwrap();
        path
    }
}

/// Numbers that look random: around one for norms, negative where they say how fast states decay, small otherwise.
fn contents(name: &str, shape: &[usize]) -> Vec<u8> {
    let mut state = name
        .bytes()
        .fold(0x9E37_79B9_7F4A_7C15_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let (centre, spread) = match name {
        name if name.contains("norm") => (1.0, 0.2),
        name if name.ends_with("ssm_a") => (-0.5, 0.4),
        name if name.contains("conv") => (0.0, 1.0),
        _ if shape.len() == 1 => (0.0, 0.5),
        _ => (0.0, 2.0 / (shape[0] as f32).sqrt()),
    };
    let count: usize = shape.iter().product();
    let number = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (centre + spread * uniform).to_le_bytes()
    };
    (0..count).flat_map(number).collect()
}

/// One that sees a text whole, and is not among the others because it continues nothing.
pub(crate) fn filling_in() -> Sample {
    Sample::new("llada", "llada")
}

/// All samples.
pub(crate) fn all() -> Vec<Sample> {
    let latent = [
        ("attention.head_count_kv", Count(1)),
        ("attention.q_lora_rank", Count(24)),
        ("attention.kv_lora_rank", Count(32)),
        ("attention.key_length", Count(40)),
        ("attention.value_length", Count(32)),
        ("attention.key_length_mla", Count(24)),
        ("attention.value_length_mla", Count(16)),
        ("rope.dimension_count", Count(8)),
    ];
    let expanded = [
        ("attention.head_count_kv", Count(4)),
        ("attention.q_lora_rank", Count(24)),
        ("attention.kv_lora_rank", Count(32)),
        ("attention.key_length", Count(24)),
        ("attention.value_length", Count(16)),
        ("rope.dimension_count", Count(8)),
        ("rope.scaling.type", Text("yarn")),
        ("rope.scaling.factor", Number(4.0)),
        ("rope.scaling.original_context_length", Count(32)),
        ("rope.scaling.yarn_log_multiplier", Number(0.0707)),
    ];
    let experts = [
        ("expert_count", Count(4)),
        ("expert_used_count", Count(2)),
        ("expert_feed_forward_length", Count(32)),
        ("expert_shared_count", Count(1)),
        ("leading_dense_block_count", Count(1)),
    ];
    let grouped = [
        ("expert_gating_func", Count(2)),
        ("expert_weights_norm", Flag(true)),
        ("expert_weights_scale", Number(2.5)),
        ("expert_group_count", Count(2)),
        ("expert_group_used_count", Count(1)),
    ];
    let space = [
        ("ssm.conv_kernel", Count(4)),
        ("ssm.inner_size", Count(128)),
        ("ssm.state_size", Count(16)),
        ("ssm.time_step_rank", Count(4)),
        ("ssm.group_count", Count(2)),
    ];
    let every_other =
        [("attention.head_count", Counts(&[4, 0])), ("attention.head_count_kv", Counts(&[2, 0]))];
    let factors = [
        ("embedding_scale", Number(3.0)),
        ("residual_scale", Number(0.4)),
        ("logit_scale", Number(2.0)),
        ("attention.scale", Number(0.1)),
    ];
    let delta = [
        ("ssm.inner_size", Count(64)),
        ("full_attention_interval", Count(2)),
        ("rope.dimension_count", Count(8)),
        ("expert_count", Count(4)),
        ("expert_used_count", Count(2)),
        ("expert_feed_forward_length", Count(32)),
        ("expert_shared_feed_forward_length", Count(48)),
    ];
    vec![
        Sample::new("deepseek2", "deepseek2")
            .with(&latent)
            .with(&experts)
            .with(&grouped)
            .and("blk.1.exp_probs_b.bias", &[4]),
        Sample::new("deepseek2-expanded", "deepseek2").with(&expanded).with(&experts),
        // The reference does not run them without these biases.
        Sample::new("mamba2", "mamba2")
            .with(&space)
            .and("blk.0.ssm_conv1d.bias", &[192])
            .and("blk.1.ssm_conv1d.bias", &[192]),
        Sample::new("granitehybrid", "granitehybrid")
            .with(&space)
            .with(&every_other)
            .with(&factors)
            .and("blk.1.ssm_conv1d.bias", &[192]),
        Sample::new("granitehybrid-experts", "granitehybrid")
            .with(&space)
            .with(&every_other)
            .with(&[
                ("expert_count", Count(4)),
                ("expert_used_count", Count(2)),
                ("expert_shared_feed_forward_length", Count(48)),
                ("rope.scaling.finetuned", Flag(false)),
            ])
            .and("blk.1.ssm_conv1d.bias", &[192]),
        Sample::new("lfm2", "lfm2").with(&every_other).with(&[("shortconv.l_cache", Count(3))]),
        Sample::new("lfm2-windowed", "lfm2")
            .with(&every_other)
            .with(&[("shortconv.l_cache", Count(4)), ("attention.sliding_window", Count(8))]),
        Sample::new("qwen3next", "qwen3next").with(&space).with(&delta),
    ]
}
