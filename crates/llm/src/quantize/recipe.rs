//! Which type each tensor of a file gets: most get the file's own, those that matter more get a larger one.
//!
//! Invariant: a type is chosen only if rows of the tensor are whole blocks of it.

use oxcart_tensor::DType;

use crate::file_type::FileType::{
    self, IQ1_M, IQ1_S, IQ2_M, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_M, IQ3_S, IQ3_XS, IQ3_XXS, IQ4_NL, IQ4_XS,
    MXFP4_MOE, Q2_K, Q2_K_S, Q3_K_L, Q3_K_M, Q3_K_S, Q4_0, Q4_K_M, Q4_K_S, Q5_0, Q5_K_M, TQ1_0, TQ2_0,
};

/// What the choice depends on besides the tensor itself.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) architecture: String,
    pub(super) layers: usize,
    pub(super) experts: usize,
    /// Of the first layer.
    pub(super) heads: usize,
    /// Of the first layer.
    pub(super) kv_heads: usize,
    /// Tensors that make values of attention.
    pub(super) values: usize,
    /// Whether there is an output matrix, or the one of the embeddings is used twice.
    pub(super) has_output: bool,
    /// Whether it is known how much columns matter.
    pub(super) has_importance: bool,
}

impl Model {
    /// Heads of queries that share one of values.
    fn shared(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Whether it is of the size at which the reference gives values more: they are small there, and little is lost by it.
    fn is_70b(&self) -> bool {
        match self.architecture.as_str() {
            "llama" | "llama-embed" => self.layers == 80 && self.experts != 8 && self.heads != self.kv_heads,
            "deci" | "olmo" | "qwen2" => self.layers == 80,
            "jais2" => self.layers == 68,
            _ => false,
        }
    }
}

/// Goes through the tensors of a file in their order.
#[derive(Debug)]
pub(super) struct Recipe<'m> {
    file: FileType,
    model: &'m Model,
    /// Tensors of a kind that have been seen.
    values: usize,
    downs: usize,
    gates: usize,
    ups: usize,
}

/// What a tensor is for, as far as that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Output,
    Embeddings,
    Values,
    Keys,
    Queries,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Role {
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embeddings,
            _ if makes_values(name) => Role::Values,
            _ if name.contains("attn_k.weight") => Role::Keys,
            _ if name.contains("attn_q.weight") => Role::Queries,
            _ if name.contains("attn_output.weight") => Role::AttentionOutput,
            _ if name.contains("ffn_up") => Role::Up,
            _ if name.contains("ffn_gate") => Role::Gate,
            _ if name.contains("ffn_down") => Role::Down,
            _ => Role::Other,
        }
    }
}

/// Parts of names whose tensors are small or fragile, and are left as they are.
const LEFT_ALONE: [&str; 37] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    // Of what sees and hears beside a language model.
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// The same for GLM 5 Next alone.
const LEFT_ALONE_GLM5_NEXT: [&str; 14] = [
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Of GLM 5 Next, what never becomes less than `Q8_0`.
const FINE_GLM5_NEXT: [&str; 3] = ["attn_q_a", "attn_q_b", "nextn.eh_proj"];

const GLM5_NEXT: &str = "glm5-next";

/// Whether a tensor is quantized at all.
pub(super) fn is_quantized(name: &str, dims: usize, architecture: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    name.ends_with("weight")
        && dims >= 2
        && !has(&LEFT_ALONE)
        && !(architecture == GLM5_NEXT && has(&LEFT_ALONE_GLM5_NEXT))
}

/// Whether a tensor is worth nothing in a type unless it is known how much its columns matter.
pub(super) fn needs_importance(name: &str, dtype: DType, file: FileType) -> bool {
    match dtype {
        _ if name == "token_embd.weight" || name == "output.weight" => false,
        DType::IQ3_XXS | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ1_M | DType::IQ1_S => true,
        DType::Q2_K => file == Q2_K_S,
        _ => false,
    }
}

/// Whether a layer is among the first or last eighth, or is every third in between.
fn deserves_more(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The layer in a name: `blk.7.ffn_down.weight`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Whether values of attention come of a tensor, alone or with queries and keys.
pub(super) fn makes_values(name: &str) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|part| name.contains(part))
}

impl<'m> Recipe<'m> {
    pub(super) fn new(file: FileType, model: &'m Model) -> Recipe<'m> {
        Recipe { file, model, values: 0, downs: 0, gates: 0, ups: 0 }
    }

    /// The type of the next tensor, which is quantized.
    pub(super) fn next(&mut self, name: &str, ne: [usize; 4]) -> DType {
        let base = self.file.base();
        if !base.is_quantized() {
            return base;
        }
        whole_blocks(self.wanted(name, ne), ne[0])
    }

    /// The type that the recipe asks for.
    fn wanted(&mut self, name: &str, ne: [usize; 4]) -> DType {
        let (base, file, model) = (self.file.base(), self.file, self.model);
        let role = Role::of(name);
        let is_small = matches!(file, IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M | IQ1_S | IQ1_M);
        if model.architecture == GLM5_NEXT && FINE_GLM5_NEXT.iter().any(|part| name.contains(part)) {
            return DType::Q8_0;
        }
        if role == Role::Output || (!model.has_output && role == Role::Embeddings) {
            return self.output(ne[0], is_small);
        }
        if file == MXFP4_MOE {
            // Experts only: there are many of them, and few are used at a time. Elsewhere a matrix for each head has as many
            // extents.
            let has_deep_heads = model.architecture == "bailingmoe3";
            let is_expert =
                ne[2] > 1 && (!has_deep_heads || matches!(role, Role::Up | Role::Gate | Role::Down));
            return if is_expert { DType::MXFP4 } else { DType::Q8_0 };
        }
        if role == Role::Embeddings {
            return match file {
                _ if is_small && file != IQ2_S && file != IQ2_M => DType::Q2_K,
                IQ2_S | IQ2_M | IQ3_XXS => DType::IQ3_S,
                TQ1_0 | TQ2_0 => DType::Q4_K,
                _ => base,
            };
        }
        if is_small {
            return self.small(role);
        }
        match role {
            Role::Values => self.value(),
            Role::Keys if model.experts == 8 => DType::Q8_0,
            Role::Keys | Role::Queries => match file {
                IQ3_XS => DType::IQ3_XXS,
                IQ3_XXS => DType::IQ2_S,
                _ => base,
            },
            Role::Down => self.down(name),
            Role::AttentionOutput => self.attention_output(),
            Role::Gate => {
                self.gates += 1;
                self.gate_or_up(name, self.gates - 1)
            }
            Role::Up => {
                self.ups += 1;
                self.gate_or_up(name, self.ups - 1)
            }
            Role::Output | Role::Embeddings | Role::Other => base,
        }
    }

    fn output(&self, columns: usize, is_small: bool) -> DType {
        let (base, file) = (self.file.base(), self.file);
        let fits = columns.is_multiple_of(base.block_len());
        match () {
            () if file == MXFP4_MOE || self.model.architecture == "falcon" || !fits => DType::Q8_0,
            () if is_small || file == IQ3_XXS => DType::Q5_K,
            () if base != DType::Q8_0 => DType::Q6_K,
            () => base,
        }
    }

    /// Very small types keep a little more where it helps most.
    fn small(&mut self, role: Role) -> DType {
        let (base, file, model) = (self.file.base(), self.file, self.model);
        let is_larger = file == IQ2_S || file == IQ2_M;
        let more = if is_larger { DType::IQ3_S } else { DType::Q2_K };
        match role {
            Role::Values if model.shared() >= 4 || model.experts >= 4 => DType::Q4_K,
            Role::Values => more,
            Role::Keys if model.experts == 8 => DType::Q4_K,
            Role::Down => {
                self.downs += 1;
                if self.downs <= model.layers / 8 { more } else { base }
            }
            Role::AttentionOutput => match model.experts == 8 {
                true => DType::Q5_K,
                false if file == IQ1_S || file == IQ1_M => DType::IQ2_XXS,
                false if is_larger => DType::IQ3_S,
                false => base,
            },
            _ => base,
        }
    }

    fn value(&mut self) -> DType {
        let (base, file, model) = (self.file.base(), self.file, self.model);
        let at = self.values;
        self.values += 1;
        let shared = model.shared();
        let chosen = match file {
            Q2_K if shared >= 4 => DType::Q4_K,
            Q2_K => DType::Q3_K,
            Q2_K_S if shared >= 4 => DType::Q4_K,
            IQ3_XXS if shared >= 4 => DType::Q4_K,
            IQ3_XXS if !model.has_importance => DType::IQ3_S,
            IQ3_XS | IQ3_S if shared >= 4 => DType::Q4_K,
            IQ3_M => DType::Q4_K,
            Q3_K_M => {
                if at < 2 {
                    DType::Q5_K
                } else {
                    DType::Q4_K
                }
            }
            Q3_K_L => DType::Q5_K,
            IQ4_NL | IQ4_XS if shared >= 4 => DType::Q5_K,
            Q4_K_M | Q5_K_M if deserves_more(at, model.values) => DType::Q6_K,
            Q4_K_S if at < 4 => DType::Q5_K,
            _ => base,
        };
        match chosen {
            _ if model.experts == 8 => DType::Q8_0,
            DType::Q3_K | DType::Q4_K if model.is_70b() => DType::Q5_K,
            chosen => chosen,
        }
    }

    fn down(&mut self, name: &str) -> DType {
        let (base, file, model) = (self.file.base(), self.file, self.model);
        let at = self.place_of(name, self.downs);
        self.downs += 1;
        let (layers, falcon) = (model.layers, model.architecture == "falcon");
        match file {
            Q2_K => DType::Q3_K,
            Q2_K_S if at < layers / 8 => DType::Q4_K,
            IQ3_XXS if !model.has_importance => {
                if at < layers / 8 {
                    DType::Q4_K
                } else {
                    DType::Q3_K
                }
            }
            Q3_K_M if at < layers / 16 => DType::Q5_K,
            Q3_K_M if !falcon || deserves_more(at, layers) => DType::Q4_K,
            IQ3_M if at < layers / 8 || (model.experts == 8 && deserves_more(at, layers)) => DType::Q4_K,
            Q3_K_L => {
                if falcon {
                    DType::Q4_K
                } else {
                    DType::Q5_K
                }
            }
            Q4_K_M if falcon => match () {
                () if at < layers / 16 => DType::Q6_K,
                () if deserves_more(at, layers) => DType::Q5_K,
                () => DType::Q4_K,
            },
            Q4_K_M | Q5_K_M if deserves_more(at, layers) => DType::Q6_K,
            Q4_K_S if !falcon && at < layers / 8 => DType::Q5_K,
            IQ4_NL | IQ4_XS if !falcon && at < layers / 8 && !model.has_importance => DType::Q5_K,
            Q4_0 if at < layers / 8 && model.has_importance => DType::Q4_1,
            Q5_0 if at < layers / 8 && model.has_importance => DType::Q5_1,
            _ => base,
        }
    }

    fn attention_output(&self) -> DType {
        let (base, file) = (self.file.base(), self.file);
        if self.model.architecture == "falcon" {
            return if file == Q3_K_L { DType::Q4_K } else { base };
        }
        if self.model.experts == 8 {
            let takes_more = matches!(
                file,
                Q2_K | IQ3_XS | IQ3_XXS | Q3_K_S | Q3_K_M | IQ4_NL | Q4_K_S | Q4_K_M | IQ3_S | IQ3_M | IQ4_XS
            );
            return if takes_more { DType::Q5_K } else { base };
        }
        match file {
            Q2_K => DType::Q3_K,
            IQ3_XXS => DType::IQ3_S,
            Q3_K_M | IQ3_M => DType::Q4_K,
            Q3_K_L => DType::Q5_K,
            _ => base,
        }
    }

    fn gate_or_up(&self, name: &str, seen: usize) -> DType {
        let (at, layers) = (self.place_of(name, seen), self.model.layers);
        let is_middle = at >= layers / 8 && at < 7 * layers / 8;
        if self.file == IQ3_XS && is_middle { DType::IQ3_XXS } else { self.file.base() }
    }

    /// Where a tensor stands among its kind: in its layer, where experts are several tensors of a layer in old files, and else as
    /// many as came before it.
    fn place_of(&self, name: &str, seen: usize) -> usize {
        if self.model.experts > 1 { layer_of(name).unwrap_or(seen) } else { seen }
    }
}

/// A type that rows of this length are whole blocks of, as like the wanted one as there is.
fn whole_blocks(wanted: DType, columns: usize) -> DType {
    let fits = |dtype: DType| columns.is_multiple_of(dtype.block_len());
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        _ => DType::IQ4_NL,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            architecture: "llama".into(),
            layers: 32,
            experts: 0,
            heads: 32,
            kv_heads: 8,
            values: 32,
            has_output: true,
            has_importance: false,
        }
    }

    #[test]
    fn the_usual_mix() {
        let model = model();
        let mut recipe = Recipe::new("Q4_K_M".parse().unwrap(), &model);
        let ne = [4096, 4096, 1, 1];
        assert_eq!(recipe.next("output.weight", ne), DType::Q6_K);
        assert_eq!(recipe.next("token_embd.weight", ne), DType::Q4_K);
        let values: Vec<_> = (0..32).map(|l| recipe.next(&format!("blk.{l}.attn_v.weight"), ne)).collect();
        assert_eq!(values.iter().filter(|kind| **kind == DType::Q6_K).count(), 16);
        assert_eq!((values[0], values[4], values[6]), (DType::Q6_K, DType::Q4_K, DType::Q6_K));
        assert_eq!(recipe.next("blk.0.ffn_down.weight", ne), DType::Q6_K);
        assert_eq!(recipe.next("blk.0.attn_q.weight", ne), DType::Q4_K);
    }

    #[test]
    fn rows_are_whole_blocks() {
        let model = model();
        for file in FileType::all() {
            for columns in [31, 32, 100, 576, 4096] {
                let mut recipe = Recipe::new(*file, &model);
                for name in
                    ["output.weight", "blk.0.attn_v.weight", "blk.9.ffn_down.weight", "blk.1.ffn_up.weight"]
                {
                    let dtype = recipe.next(name, [columns, 8, 1, 1]);
                    assert!(columns.is_multiple_of(dtype.block_len()), "{file} {name} {columns}: {dtype}");
                }
            }
        }
    }

    #[test]
    fn the_smallest_types_need_importance_data() {
        let needs = |name: &str, dtype, file: &str| needs_importance(name, dtype, file.parse().unwrap());
        assert!(needs("blk.0.ffn_up.weight", DType::IQ2_XXS, "IQ2_XXS"));
        assert!(needs("blk.0.ffn_up.weight", DType::Q2_K, "Q2_K_S"));
        assert!(!needs("blk.0.ffn_up.weight", DType::Q2_K, "Q2_K"));
        assert!(!needs("blk.0.ffn_up.weight", DType::Q4_K, "IQ2_XXS"));
        assert!(!needs("token_embd.weight", DType::IQ2_XXS, "IQ2_XXS"));
    }

    #[test]
    fn what_is_small_or_fragile_is_left_alone() {
        assert!(is_quantized("blk.0.attn_q.weight", 2, "llama"));
        assert!(is_quantized("blk.0.time_mix_key.weight", 2, "rwkv6"));
        assert!(is_quantized("blk.0.attn_k_b.weight", 3, "deepseek2"));
        assert!(!is_quantized("blk.0.attn_k_b.weight", 3, "glm5-next"));
        let alone = [
            ("blk.0.attn_q.bias", 2),
            ("blk.0.attn_norm.weight", 2),
            ("blk.0.ssm_conv1d_q.weight", 3),
            ("output.weight", 1),
        ];
        for (name, dims) in alone {
            assert!(!is_quantized(name, dims, "llama"), "{name}");
        }
        assert!(!is_quantized("blk.0.ffn_gate_inp.weight", 2, "llama"));
    }
}
