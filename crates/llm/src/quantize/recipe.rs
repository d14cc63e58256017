//! Which type each tensor of a file gets: most get the file's own, those that matter more get a larger one.
//!
//! Invariant: a type is chosen only if rows of the tensor are whole blocks of it.

use oxcart_tensor::DType;

use crate::file_type::FileType;

/// What the choice depends on besides the tensor itself.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) architecture: String,
    pub(super) layers: usize,
    pub(super) experts: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Tensors that make values of attention.
    pub(super) values: usize,
    /// Whether there is an output matrix, or the one of the embeddings is used twice.
    pub(super) has_output: bool,
}

/// Goes through the tensors of a file in their order.
#[derive(Debug)]
pub(super) struct Recipe<'m> {
    file: FileType,
    model: &'m Model,
    /// Tensors of a kind that have been seen.
    values: usize,
    downs: usize,
}

/// Parts of names whose tensors are small or fragile, and are left as they are.
const LEFT_ALONE: [&str; 12] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b.weight",
    "time_mix_",
    "channel_mix_",
];

/// Whether a tensor is quantized at all.
pub(super) fn is_quantized(name: &str, dims: usize) -> bool {
    name.ends_with("weight") && dims >= 2 && !LEFT_ALONE.iter().any(|part| name.contains(part))
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
        Recipe { file, model, values: 0, downs: 0 }
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
        let (base, file, model) = (self.file.base(), self.file.name(), self.model);
        let is_small = matches!(file, "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "IQ2_M" | "IQ1_S" | "IQ1_M");
        if name == "output.weight" || (!model.has_output && name == "token_embd.weight") {
            return self.output(ne[0], is_small);
        }
        if file == "MXFP4_MOE" {
            // Experts only: there are many of them, and few are used at a time.
            return if ne[2] > 1 { DType::MXFP4 } else { DType::Q8_0 };
        }
        if name == "token_embd.weight" {
            return match file {
                _ if is_small && file != "IQ2_S" && file != "IQ2_M" => DType::Q2_K,
                "IQ2_S" | "IQ2_M" | "IQ3_XXS" => DType::IQ3_S,
                "TQ1_0" | "TQ2_0" => DType::Q4_K,
                _ => base,
            };
        }
        if is_small {
            return self.small(name);
        }
        match name {
            _ if makes_values(name) => self.value(),
            _ if name.contains("attn_k.weight") => self.key(),
            _ if name.contains("ffn_down") => self.down(name),
            _ if name.contains("attn_output.weight") => self.attention_output(),
            _ if name.contains("ffn_gate") || name.contains("ffn_up") => self.gate_or_up(name),
            _ => base,
        }
    }

    fn output(&self, columns: usize, is_small: bool) -> DType {
        let (base, file) = (self.file.base(), self.file.name());
        let fits = columns.is_multiple_of(base.block_len());
        match () {
            () if file == "MXFP4_MOE" || self.model.architecture == "falcon" || !fits => DType::Q8_0,
            () if is_small || file == "IQ3_XXS" => DType::Q5_K,
            () if base != DType::Q8_0 => DType::Q6_K,
            () => base,
        }
    }

    /// Very small types keep a little more where it helps most.
    fn small(&mut self, name: &str) -> DType {
        let (base, file, model) = (self.file.base(), self.file.name(), self.model);
        let is_larger = file == "IQ2_S" || file == "IQ2_M";
        if makes_values(name) {
            self.values += 1;
            let shared = model.heads / model.kv_heads.max(1) >= 4 || model.experts >= 4;
            return match shared {
                true => DType::Q4_K,
                false if is_larger => DType::IQ3_S,
                false => DType::Q2_K,
            };
        }
        if model.experts == 8 && name.contains("attn_k.weight") {
            return DType::Q4_K;
        }
        if name.contains("ffn_down") {
            let first = self.downs < model.layers / 8;
            self.downs += 1;
            return match first {
                true if is_larger => DType::IQ3_S,
                true => DType::Q2_K,
                false => base,
            };
        }
        if name.contains("attn_output.weight") {
            return match model.experts == 8 {
                true => DType::Q5_K,
                false if file == "IQ1_S" || file == "IQ1_M" => DType::IQ2_XXS,
                false if is_larger => DType::IQ3_S,
                false => base,
            };
        }
        base
    }

    fn value(&mut self) -> DType {
        let (base, file, model) = (self.file.base(), self.file.name(), self.model);
        let at = self.values;
        self.values += 1;
        let shared = model.heads / model.kv_heads.max(1);
        let chosen = match file {
            "Q2_K" if shared >= 4 => DType::Q4_K,
            "Q2_K" => DType::Q3_K,
            "Q2_K_S" if shared >= 4 => DType::Q4_K,
            "IQ3_XXS" => {
                if shared >= 4 {
                    DType::Q4_K
                } else {
                    DType::IQ3_S
                }
            }
            "IQ3_XS" | "IQ3_S" if shared >= 4 => DType::Q4_K,
            "IQ3_M" => DType::Q4_K,
            "Q3_K_M" => {
                if at < 2 {
                    DType::Q5_K
                } else {
                    DType::Q4_K
                }
            }
            "Q3_K_L" => DType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if shared >= 4 => DType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if deserves_more(at, model.values) => DType::Q6_K,
            "Q4_K_S" if at < 4 => DType::Q5_K,
            _ => base,
        };
        // Of 80 layers with shared values these are small, and little is lost by giving them more.
        let is_70b = model.layers == 80 && model.heads != model.kv_heads;
        match chosen {
            DType::Q3_K | DType::Q4_K if is_70b => DType::Q5_K,
            _ if model.experts == 8 => DType::Q8_0,
            chosen => chosen,
        }
    }

    fn key(&self) -> DType {
        match self.file.name() {
            _ if self.model.experts == 8 => DType::Q8_0,
            "IQ3_XS" => DType::IQ3_XXS,
            "IQ3_XXS" => DType::IQ2_S,
            _ => self.file.base(),
        }
    }

    fn down(&mut self, name: &str) -> DType {
        let (base, file, model) = (self.file.base(), self.file.name(), self.model);
        // Experts are several tensors per layer in old files.
        let at = if model.experts > 1 { layer_of(name).unwrap_or(self.downs) } else { self.downs };
        self.downs += 1;
        let (layers, falcon) = (model.layers, model.architecture == "falcon");
        match file {
            "Q2_K" => DType::Q3_K,
            "Q2_K_S" if at < layers / 8 => DType::Q4_K,
            "IQ3_XXS" => {
                if at < layers / 8 {
                    DType::Q4_K
                } else {
                    DType::Q3_K
                }
            }
            "Q3_K_M" if at < layers / 16 => DType::Q5_K,
            "Q3_K_M" if !falcon || deserves_more(at, layers) => DType::Q4_K,
            "IQ3_M" if at < layers / 8 => DType::Q4_K,
            "Q3_K_L" => {
                if falcon {
                    DType::Q4_K
                } else {
                    DType::Q5_K
                }
            }
            "Q4_K_M" if falcon => match () {
                () if at < layers / 16 => DType::Q6_K,
                () if deserves_more(at, layers) => DType::Q5_K,
                () => DType::Q4_K,
            },
            "Q4_K_M" | "Q5_K_M" if deserves_more(at, layers) => DType::Q6_K,
            "Q4_K_S" if !falcon && at < layers / 8 => DType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if !falcon && at < layers / 8 => DType::Q5_K,
            _ => base,
        }
    }

    fn attention_output(&self) -> DType {
        let (base, file) = (self.file.base(), self.file.name());
        if self.model.architecture == "falcon" {
            return if file == "Q3_K_L" { DType::Q4_K } else { base };
        }
        if self.model.experts == 8 {
            let takes_more = matches!(
                file,
                "Q2_K"
                    | "IQ3_XS"
                    | "IQ3_XXS"
                    | "Q3_K_S"
                    | "Q3_K_M"
                    | "IQ4_NL"
                    | "Q4_K_S"
                    | "Q4_K_M"
                    | "IQ3_S"
                    | "IQ3_M"
                    | "IQ4_XS"
            );
            return if takes_more { DType::Q5_K } else { base };
        }
        match file {
            "Q2_K" => DType::Q3_K,
            "IQ3_XXS" => DType::IQ3_S,
            "Q3_K_M" | "IQ3_M" => DType::Q4_K,
            "Q3_K_L" => DType::Q5_K,
            _ => base,
        }
    }

    fn gate_or_up(&self, name: &str) -> DType {
        let layers = self.model.layers;
        let is_middle = layer_of(name).is_some_and(|at| at >= layers / 8 && at < 7 * layers / 8);
        if self.file.name() == "IQ3_XS" && is_middle { DType::IQ3_XXS } else { self.file.base() }
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
        DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
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
    fn what_is_small_or_fragile_is_left_alone() {
        assert!(is_quantized("blk.0.attn_q.weight", 2));
        let alone = [
            ("blk.0.attn_q.bias", 2),
            ("blk.0.attn_norm.weight", 2),
            ("blk.0.ssm_conv1d_q.weight", 3),
            ("output.weight", 1),
        ];
        for (name, dims) in alone {
            assert!(!is_quantized(name, dims), "{name}");
        }
        assert!(!is_quantized("blk.0.ffn_gate_inp.weight", 2));
    }
}
