//! Models of a few kilobytes, one or more for each family: settings here, tensors as the architecture asks for them, numbers that
//! follow from names. So the same model can be made anywhere, and what the reference computed with it can be kept instead of it.

use std::path::{Path, PathBuf};

use oxcart_gguf::{Builder, Header};
use oxcart_llm::model::{HyperParameters, Pooling};
use oxcart_tensor::{DType, Layout, Shape};

/// Tokens of a text, of which so many come after the prompt.
pub(crate) const TOKENS: usize = 32;
pub(crate) const AFTER_PROMPT: usize = 8;
/// More tokens than two pages have.
const MANY_TOKENS: usize = 300;

/// Tokens of every vocabulary.
pub(crate) const VOCABULARY: usize = 32;

/// The token after a source.
pub(crate) const START: u32 = 3;

/// A value of a setting.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    Count(u32),
    Counts(&'static [u32]),
    LongCounts(&'static [u64]),
    Number(f32),
    Flag(bool),
    Text(&'static str),
    Texts(&'static [&'static str]),
}

use Setting::{Count, Counts, Flag, LongCounts, Number, Text, Texts};

/// A model in the making.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// What tells it from others.
    pub(crate) name: &'static str,
    architecture: &'static str,
    settings: Vec<(&'static str, Setting)>,
    /// Tensors that it has though it need not, or that it has in another form.
    extra: Vec<(&'static str, &'static [usize])>,
    /// Names of tensors that it has not, because it has them in another form.
    left_out: Vec<&'static str>,
    /// Tokens of its text; all but the last few are the prompt.
    pub(crate) tokens: usize,
    /// Whether the reference only computes it as it is meant with flash attention.
    pub(crate) flash: bool,
    /// Which of the recorded rows can be compared.
    pub(crate) compared: &'static [usize],
    /// How it pools rows, if it is an encoder.
    pub(crate) pooling: Option<Pooling>,
    /// How many of the tokens are a source; after them comes the token that answers begin with.
    pub(crate) source: usize,
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
        Sample {
            name,
            architecture,
            settings,
            extra: Vec::new(),
            left_out: Vec::new(),
            tokens: TOKENS,
            flash: false,
            compared: &[0, 1, 2],
            pooling: None,
            source: 0,
        }
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

    /// One of an encoder.
    fn encoder(name: &'static str, architecture: &'static str) -> Sample {
        let settings =
            [("attention.head_count_kv", Count(4)), ("attention.layer_norm_epsilon", Number(1e-5))];
        let sample = Sample::new(name, architecture).with(&settings);
        Sample { pooling: Some(Pooling::None), ..sample }
    }

    /// With norms that have biases, without which the reference does not run BERT's kin.
    fn biased_norms(self) -> Sample {
        self.and("token_embd_norm.bias", &[64])
            .and("blk.0.attn_output_norm.bias", &[64])
            .and("blk.1.attn_output_norm.bias", &[64])
            .and("blk.0.layer_output_norm.bias", &[64])
            .and("blk.1.layer_output_norm.bias", &[64])
    }

    /// With queries, keys and values from one matrix.
    fn fused(self) -> Sample {
        self.without(&["attn_q.weight", "attn_k.weight", "attn_v.weight"])
            .and("blk.0.attn_qkv.weight", &[64, 192])
            .and("blk.1.attn_qkv.weight", &[64, 192])
    }

    /// Without tensors whose names end so.
    fn without(mut self, endings: &[&'static str]) -> Sample {
        self.left_out.extend(endings);
        self
    }

    /// An encoder that ranks texts.
    fn ranking(mut self) -> Sample {
        self.pooling = Some(Pooling::Rank);
        self.with(&[("pooling_type", Count(4)), ("classifier.output_labels", Texts(&["no", "yes"]))])
    }

    /// With more tokens than two pages have.
    fn long(mut self) -> Sample {
        self.tokens = MANY_TOKENS;
        self.with(&[("context_length", Count(512))])
    }

    /// One that reads a source before it writes.
    fn sourced(name: &'static str) -> Sample {
        let sample = Sample::new(name, "t5").with(&[
            ("attention.head_count_kv", Count(4)),
            ("attention.relative_buckets_count", Count(8)),
            ("decoder_start_token_id", Count(START)),
        ]);
        Sample { tokens: 48, source: 28, ..sample }
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt(&self) -> usize {
        self.tokens - AFTER_PROMPT
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
                LongCounts(values) => builder.set(&key, values.to_vec()),
                Number(value) => builder.set(&key, *value),
                Flag(value) => builder.set(&key, *value),
                Text(value) => builder.set(&key, *value),
                Texts(values) => builder.set(&key, values.to_vec()),
            };
        }
        if self.pooling.is_some() {
            builder.set("tokenizer.ggml.token_type_count", 2_u32);
        }
        builder
    }

    /// Writes it to a folder.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let (mut header, mut builder) = (Vec::new(), self.settings());
        self.settings().write(&mut header).unwrap();
        let hyper = HyperParameters::read(Header::parse(&header).unwrap().metadata()).unwrap();
        let extents = |shape: Shape| (0..shape.dims()).map(|at| shape[at]).collect();
        let is_needed = |(name, _): &(String, Shape)| {
            let is_left_out = self.left_out.iter().any(|ending| name.ends_with(ending));
            !is_left_out && self.extra.iter().all(|(other, _)| other != name)
        };
        let needed = hyper.tensors().unwrap().into_iter().filter(is_needed);
        let needed = needed.map(|(name, shape)| (name, extents(shape)));
        let extra = self.extra.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()));
        for (name, shape) in needed.chain(extra) {
            let mut extents = [1; 4];
            extents[..shape.len()].copy_from_slice(&shape);
            let (dtype, bytes) = match name.contains("tid2eid") {
                true => (DType::I32, experts_of_tokens(&shape)),
                false => (DType::F32, contents(&name, &shape)),
            };
            builder.tensor(&name, Layout::packed(dtype, extents).unwrap(), bytes);
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

/// Experts for each token, out of four and no two the same.
fn experts_of_tokens(shape: &[usize]) -> Vec<u8> {
    let used = shape[0];
    let expert = |at: usize| ((at / used * 3 + at % used * (1 + at / used % 3)) % 4) as i32;
    (0..used * shape[1]).flat_map(|at| expert(at).to_le_bytes()).collect()
}

/// One that sees a text whole, and is not among the others because it continues nothing.
pub(crate) fn filling_in() -> Sample {
    Sample::new("llada", "llada")
}

/// Models that read a source before they write. The second has gates, an output matrix, heads of another size, and fewer blocks that
/// write, of which one has distances of its own.
pub(crate) fn sourced() -> Vec<Sample> {
    vec![
        Sample::sourced("t5"),
        Sample::sourced("t5-gated")
            .with(&[
                ("attention.key_length", Count(24)),
                ("attention.value_length", Count(24)),
                ("attention.relative_buckets_count", Count(32)),
                ("block_count", Count(3)),
                ("decoder_block_count", Count(2)),
            ])
            .and("output.weight", &[64, VOCABULARY])
            .and("enc.blk.0.ffn_gate.weight", &[64, 96])
            .and("enc.blk.1.ffn_gate.weight", &[64, 96])
            .and("enc.blk.2.ffn_gate.weight", &[64, 96])
            .and("dec.blk.0.ffn_gate.weight", &[64, 96])
            .and("dec.blk.1.ffn_gate.weight", &[64, 96])
            .and("dec.blk.1.attn_rel_b.weight", &[4, 32]),
    ]
}

/// Encoders: what they make of texts is embeddings, or ranks.
pub(crate) fn encoders() -> Vec<Sample> {
    let window =
        [("attention.sliding_window", Count(8)), ("attention.sliding_window_pattern", Counts(&[0, 1]))];
    vec![
        Sample::encoder("bert-ranks", "bert")
            .ranking()
            .biased_norms()
            .and("token_types.weight", &[64, 2])
            .and("cls.weight", &[64, 64])
            .and("cls.bias", &[64])
            .and("cls.output.weight", &[64, 2])
            .and("cls.output.bias", &[2]),
        // The second block has the experts.
        Sample::encoder("nomic-bert-moe", "nomic-bert-moe")
            .with(&[
                ("moe_every_n_layers", Count(2)),
                ("expert_count", Count(4)),
                ("expert_used_count", Count(2)),
            ])
            .and("token_types.weight", &[64, 2])
            .and("blk.0.ffn_up.bias", &[96])
            .and("blk.0.attn_output.bias", &[64])
            .biased_norms(),
        Sample::encoder("jina-bert-v2", "jina-bert-v2")
            .and("token_types.weight", &[64, 2])
            .and("blk.0.attn_q_norm.weight", &[64])
            .and("blk.0.attn_q_norm.bias", &[64])
            .and("blk.0.attn_k_norm.weight", &[64])
            .and("blk.0.attn_k_norm.bias", &[64])
            .and("blk.0.attn_norm_2.weight", &[64])
            .and("blk.0.attn_norm_2.bias", &[64])
            .and("blk.0.ffn_gate.weight", &[64, 96])
            .and("blk.1.ffn_up.weight", &[64, 192])
            .and("blk.0.ffn_down.bias", &[64])
            .and("blk.1.ffn_down.bias", &[64])
            .biased_norms(),
        Sample::encoder("jina-bert-v3", "jina-bert-v3")
            .biased_norms()
            .and("blk.0.attn_q.bias", &[64])
            .and("blk.1.ffn_down.bias", &[64]),
        Sample::encoder("neo-bert", "neo-bert").fused(),
        Sample::encoder("eurobert", "eurobert"),
        Sample::encoder("modern-bert", "modern-bert").with(&window).fused(),
        Sample::encoder("modern-bert-ranks", "modern-bert")
            .with(&window)
            .with(&[("hidden_activation", Text("silu"))])
            .fused()
            .ranking()
            .and("cls.weight", &[64, 64])
            .and("cls.norm.weight", &[64])
            .and("cls.output.weight", &[64, 2])
            .and("cls.output.bias", &[2]),
        Sample::encoder("gemma-embedding", "gemma-embedding")
            .with(&window)
            .with(&[("dense_2_feat_out", Count(80)), ("dense_3_feat_in", Count(80))])
            .and("dense_2.weight", &[64, 80])
            .and("dense_3.weight", &[80, 64]),
        Sample::encoder("t5encoder", "t5encoder")
            .with(&[("attention.relative_buckets_count", Count(8))])
            .and("enc.blk.1.attn_rel_b.weight", &[4, 8]),
        Sample::encoder("llama-embed", "llama-embed").with(&[("attention.causal", Flag(false))]),
    ]
}

/// All samples of models that continue text.
pub(crate) fn all() -> Vec<Sample> {
    let wkv = [
        ("attention.head_count", Count(0)),
        ("attention.layer_norm_epsilon", Number(1e-5)),
        ("wkv.head_size", Count(32)),
    ];
    let wkv6 = [("time_mix_extra_dim", Count(8)), ("time_decay_extra_dim", Count(12))];
    // The reference computes heads of this size alone as they are meant.
    let wkv7 = [
        ("wkv.head_size", Count(64)),
        ("attention.decay_lora_rank", Count(8)),
        ("attention.iclr_lora_rank", Count(12)),
        ("attention.value_residual_mix_lora_rank", Count(10)),
        ("attention.gate_lora_rank", Count(16)),
    ];
    // The reference does not run them without these.
    let with_biases = |sample: Sample| {
        sample
            .and("token_embd_norm.bias", &[64])
            .and("output_norm.bias", &[64])
            .and("blk.0.attn_norm.bias", &[64])
            .and("blk.0.attn_norm_2.bias", &[64])
            .and("blk.1.attn_norm.bias", &[64])
            .and("blk.1.attn_norm_2.bias", &[64])
            .and("output.weight", &[64, 32])
    };
    let with_first_values = |sample: Sample| {
        sample
            .and("blk.0.time_mix_v0.weight", &[64])
            .and("blk.0.time_mix_v1.weight", &[64, 12])
            .and("blk.0.time_mix_v2.weight", &[12, 64])
    };
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
    // With fewer heads many scores would be the same: zero, if no head agrees.
    let index = [
        ("attention.indexer.head_count", Count(8)),
        ("attention.indexer.key_length", Count(64)),
        ("attention.indexer.top_k", Count(8)),
    ];
    let streams = [
        ("hyper_connection.count", Count(4)),
        ("hyper_connection.sinkhorn_iterations", Count(3)),
        ("hyper_connection.epsilon", Number(1e-6)),
    ];
    let blocks = [
        ("rope.dimension_count", Count(8)),
        ("attention.indexer.head_count", Count(2)),
        ("attention.indexer.key_length", Count(16)),
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
        Sample::new("mamba", "mamba")
            .with(&space)
            .and("blk.0.ssm_conv1d.bias", &[128])
            .and("blk.1.ssm_conv1d.bias", &[128]),
        with_biases(Sample::new("rwkv6", "rwkv6").with(&wkv).with(&wkv6))
            .with(&[("rescale_every_n_layers", Count(1))])
            .and("blk.1.time_mix_lerp_fused.weight", &[64, 1, 1, 5]),
        // Two heads of queries for each one of keys and values.
        Sample::new("rwkv6qwen2", "rwkv6qwen2")
            .with(&wkv)
            .with(&wkv6)
            .with(&[("wkv.head_size", Count(16)), ("token_shift_count", Count(1))])
            .without(&["lerp_w.weight", "lerp_k.weight", "lerp_v.weight", "lerp_r.weight", "lerp_g.weight"])
            .and("output.weight", &[64, 32])
            .and("blk.0.time_mix_lerp_fused.weight", &[64, 1, 1, 5])
            .and("blk.1.time_mix_lerp_fused.weight", &[64, 1, 1, 5])
            .and("blk.0.time_mix_key.bias", &[32]),
        with_biases(with_first_values(Sample::new("rwkv7", "rwkv7").with(&wkv).with(&wkv7))),
        with_first_values(Sample::new("arwkv7", "arwkv7").with(&wkv).with(&wkv7))
            .and("output.weight", &[64, 32])
            .with(&[("token_shift_count", Count(1))])
            .and("blk.0.time_mix_g1.weight", &[64, 16])
            .and("blk.0.time_mix_g2.weight", &[16, 64])
            .and("blk.1.time_mix_g1.weight", &[64, 16])
            .and("blk.1.time_mix_g2.weight", &[16, 64])
            .and("blk.1.time_mix_ln.weight", &[64])
            .and("blk.1.time_mix_ln.bias", &[64]),
        with_first_values(Sample::new("arwkv7-without-gates", "arwkv7").with(&wkv).with(&wkv7[..4]))
            .and("output.weight", &[64, 32])
            .with(&[("token_shift_count", Count(1))])
            .and("blk.0.time_mix_lerp_fused.weight", &[64, 1, 1, 5])
            .and("blk.1.time_mix_lerp_fused.weight", &[64, 1, 1, 5]),
        Sample::new("kimi-linear", "kimi-linear")
            .with(&latent)
            .with(&experts)
            .with(&grouped[..3])
            .with(&[
                ("attention.head_count_kv", Counts(&[1, 0])),
                ("ssm.conv_kernel", Count(4)),
                ("kda.head_dim", Count(16)),
            ])
            .and("output.weight", &[64, 32])
            .and("blk.1.exp_probs_b.bias", &[4]),
        Sample::new("nemotron_h_moe", "nemotron_h_moe")
            .with(&space)
            .with(&experts[..3])
            .with(&grouped[1..3])
            .with(&[
                ("block_count", Count(3)),
                ("feed_forward_length", Counts(&[0, 0, 96])),
                ("attention.head_count", Counts(&[4, 0, 4])),
                ("attention.head_count_kv", Counts(&[2, 0, 2])),
                ("attention.layer_norm_epsilon", Number(1e-5)),
                ("expert_shared_feed_forward_length", Count(48)),
            ])
            .and("blk.1.ssm_conv1d.bias", &[192])
            .and("blk.2.exp_probs_b.bias", &[4]),
        Sample::new("minimax-01", "minimax-01").with(&[
            ("full_attention_interval", Count(2)),
            ("residual_scale", Number(1.5)),
            ("expert_count", Count(4)),
            ("expert_used_count", Count(2)),
        ]),
        // Fewer tokens are found than there are.
        Sample::new("deepseek32", "deepseek32")
            .with(&latent)
            .with(&experts)
            .with(&grouped[..3])
            .with(&index)
            .and("blk.0.indexer.k_norm.bias", &[64])
            .and("blk.1.indexer.k_norm.bias", &[64]),
        Sample::new("hy_v4", "hy_v4")
            .with(&latent)
            .with(&experts)
            .with(&grouped[..3])
            .with(&index)
            .with(&[
                ("attention.indexer.types", Counts(&[1, 0])),
                ("hyper_connection.count", Count(3)),
                ("hyper_connection.epsilon", Number(1e-6)),
                ("hyper_connection.magnitude", Number(2.0)),
                ("swiglu_clamp_exp", Number(1.5)),
            ])
            .and("output.weight", &[64, 32])
            .and("blk.0.indexer.k_norm.bias", &[64]),
        // The second block takes over what the first one finds.
        Sample::new("glm-dsa", "glm-dsa")
            .with(&latent)
            .with(&experts)
            .with(&grouped[1..3])
            .with(&index)
            .with(&[("attention.indexer.types", Counts(&[1, 0]))])
            .and("blk.0.indexer.k_norm.bias", &[64]),
        Sample::new("dots3note", "dots3note")
            .with(&latent)
            .with(&experts)
            .with(&grouped[..3])
            .with(&index)
            .with(&[
                ("attention.sliding_window", Count(8)),
                ("attention.sliding_window_pattern", Counts(&[0, 1])),
                ("attention.indexer.types", Counts(&[1, 0])),
                ("attention.kv_lora_rank_swa", Count(16)),
                ("attention.key_length_swa", Count(24)),
                ("attention.value_length_swa", Count(16)),
                ("attention.key_length_mla_swa", Count(20)),
                ("attention.value_length_mla_swa", Count(12)),
                ("rope.freq_base_swa", Number(500.0)),
            ])
            .and("output.weight", &[64, 32])
            .and("blk.0.attn_k_norm.weight", &[8])
            .and("blk.1.attn_k_norm.weight", &[8])
            .and("blk.0.indexer.k_norm.bias", &[64])
            .and("blk.1.exp_probs_b.bias", &[4]),
        Sample::new("glm5-next", "glm5-next")
            .with(&latent)
            .with(&experts)
            .with(&grouped[1..3])
            .with(&index)
            .with(&streams)
            .with(&[
                ("attention.head_count_kv", Counts(&[1, 0])),
                ("attention.key_length", Count(32)),
                ("rope.dimension_count", Count(0)),
                ("attention.indexer.kpool", Count(4)),
                ("attention.layer_norm_epsilon", Number(1e-6)),
                ("ssm.conv_kernel", Count(4)),
                ("kda.head_dim", Count(16)),
                ("kda.gate_lower_bound", Number(-5.0)),
                ("swiglu_clamp_exp", Number(1.5)),
            ])
            .and("output.weight", &[64, 32])
            .and("blk.1.ssm_a", &[4])
            .and("blk.0.indexer.k_norm.bias", &[64])
            .and("blk.1.exp_probs_b.bias", &[4]),
        // The reference fills up what is missing of a run with tokens of another one, so that only some rows can be compared.
        Sample {
            compared: &[1],
            ..Sample::new("qwen4exp", "qwen4exp").with(&space).with(&delta).with(&index).with(&[
                ("attention.key_length", Count(16)),
                ("attention.value_length", Count(16)),
                ("rope.dimension_sections", Counts(&[1, 1, 1, 1])),
                ("attention.indexer.key_length", Count(16)),
                ("attention.compress_ratios", Counts(&[2, 2])),
                ("hyper_connection.count", Count(3)),
                ("hyper_connection.low_rank", Count(8)),
                ("embedding_length_per_layer_input", Count(16)),
                ("ple.layers", Counts(&[0])),
                ("ple.ngram_size", Count(3)),
                ("ple.heads_per_ngram", Count(2)),
                ("ple.conv_kernel", Count(4)),
                ("ple.eos_token_id", Count(5)),
                (
                    "ple.layer_multipliers",
                    LongCounts(&[0x9E37_79B9_7F4A, 0x2545_F491_4F6C, 0x5851_F42D_4C95]),
                ),
                ("ple.head_offsets", LongCounts(&[0, 20, 50, 80])),
                ("ple.head_vocab_sizes", LongCounts(&[19, 23, 29, 31])),
            ])
        },
        Sample {
            flash: true,
            ..Sample::new("minimax-m3", "minimax-m3").with(&experts).with(&grouped[..3]).with(&blocks).with(
                &[
                    ("attention.indexer.block_size", Count(4)),
                    ("attention.indexer.local_blocks", Count(1)),
                    ("attention.indexer.top_k", Count(3)),
                ],
            )
        }
        .and("output.weight", &[64, 32])
        .and("blk.1.exp_probs_b.bias", &[4]),
        // Blocks of two pages, of which one is the last and one is found.
        Sample {
            flash: true,
            ..Sample::new("minimax-m3-long", "minimax-m3")
                .with(&experts)
                .with(&grouped[..3])
                .with(&blocks)
                .with(&[
                    ("attention.indexer.block_size", Count(128)),
                    ("attention.indexer.local_blocks", Count(1)),
                    ("attention.indexer.top_k", Count(2)),
                ])
                .long()
        }
        .and("output.weight", &[64, 32])
        .and("blk.1.exp_probs_b.bias", &[4]),
        // Runs of both lengths become whole, more of the short ones than are found.
        Sample::new("deepseek4", "deepseek4")
            .with(&experts)
            .with(&grouped[1..3])
            .with(&index)
            .with(&streams)
            .with(&[
                ("block_count", Count(4)),
                ("attention.head_count_kv", Count(1)),
                ("attention.key_length", Count(32)),
                ("attention.value_length", Count(32)),
                ("rope.dimension_count", Count(8)),
                ("attention.q_lora_rank", Count(24)),
                ("attention.sliding_window", Count(16)),
                ("attention.compress_ratios", Counts(&[4, 128, 0, 4])),
                ("attention.compress_rope_freq_base", Number(500.0)),
                ("attention.output_group_count", Count(2)),
                ("attention.output_lora_rank", Count(12)),
                ("expert_gating_func", Count(4)),
                ("hash_layer_count", Count(1)),
                ("swiglu_clamp_exp", Number(1.5)),
                ("rope.scaling.type", Text("yarn")),
                ("rope.scaling.factor", Number(4.0)),
                ("rope.scaling.original_context_length", Count(64)),
            ])
            .and("blk.1.exp_probs_b.bias", &[4])
            .and("blk.2.exp_probs_b.bias", &[4])
            .and("blk.3.exp_probs_b.bias", &[4])
            .long(),
    ]
}
