//! Rotary positions.

use oxcart_tensor::ops::{Rope, RopeMode};

use super::Block;
use crate::model::arch::Traits;
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_HEAD_SIZE};

pub(super) fn rope(keys: &Keys<'_>, traits: &Traits, first: &Block, context: usize) -> Result<Rope, Error> {
    let key = "rope.dimension_count";
    let size = first.key_size;
    let dims = keys.count(key, MAX_HEAD_SIZE)?.unwrap_or(size);
    let mode = traits.rope.unwrap_or(RopeMode::Neox);
    let sections = if mode.has_sections() { sections(keys)? } else { [0; 4] };
    if traits.rope.is_some() {
        check_dims(keys, key, dims, size)?;
        if traits.rotates_all && dims != size {
            return Err(keys.refuse(key, dims, format!("must be the head size {size}")));
        }
    }
    let mut rope = Rope::new(dims, mode, keys.positive("rope.freq_base")?.unwrap_or(10_000.0));
    set_sections(&mut rope, sections);
    rope.n_ctx_orig = keys.count("rope.scaling.original_context_length", MAX_CONTEXT)?.unwrap_or(context);
    let factor = match keys.positive("rope.scaling.factor")? {
        None => keys.positive("rope.scale_linear")?,
        factor => factor,
    };
    let factor = factor.unwrap_or(1.0);
    rope.attn_factor = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    rope.beta_fast = keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(rope.beta_fast);
    rope.beta_slow = keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(rope.beta_slow);
    let key = "rope.scaling.type";
    match keys.text(key)?.unwrap_or("linear") {
        "none" => {}
        // Long contexts scale by factors, of which the file has tensors.
        "linear" | "longrope" => rope.freq_scale = 1.0 / factor,
        "yarn" => {
            rope.freq_scale = 1.0 / factor;
            rope.ext_factor = 1.0;
            if factor < 1.0 {
                // The magnitude is taken as 1 there, and the op multiplies by what it thinks it is.
                rope.attn_factor /= 1.0 + 0.1 * factor.ln();
            }
        }
        other => return Err(keys.refuse(key, other, "must be none, linear, yarn or longrope")),
    }
    Ok(rope)
}

fn check_dims(keys: &Keys<'_>, key: &str, dims: usize, size: usize) -> Result<(), Error> {
    if dims <= size && dims.is_multiple_of(2) {
        return Ok(());
    }
    Err(keys.refuse(key, dims, format!("must be even, and at most the head size {size}")))
}

/// Rotary positions of blocks that see a window, of which one is given.
pub(super) fn rope_windowed(
    keys: &Keys<'_>,
    traits: &Traits,
    dense: Rope,
    block: &Block,
) -> Result<Rope, Error> {
    let mut rope = dense;
    if let Some((base, scale)) = traits.rope_windowed {
        (rope.freq_base, rope.freq_scale) = (base, scale);
    }
    if let Some(base) = keys.positive("rope.freq_base_swa")? {
        rope.freq_base = base;
    }
    let key = "rope.dimension_count_swa";
    if let Some(dims) = keys.count(key, MAX_HEAD_SIZE)? {
        if traits.rope.is_some() {
            check_dims(keys, key, dims, block.key_size)?;
        }
        rope.n_dims = dims;
    }
    Ok(rope)
}

/// Pairs of channels that each of a token's four positions steers.
pub(crate) fn sections(keys: &Keys<'_>) -> Result<[u32; 4], Error> {
    let key = "rope.dimension_sections";
    let Some(stated) = keys.list(key, MAX_HEAD_SIZE)? else { return Ok([0; 4]) };
    if stated.len() > 4 {
        return Err(keys.refuse(key, format!("{} numbers", stated.len()), "must be at most four"));
    }
    let mut sections = [0; 4];
    for (section, stated) in sections.iter_mut().zip(stated) {
        *section = stated as u32;
    }
    Ok(sections)
}

/// Rotates by sections of channels where a file has them, as those of models that see pictures do.
pub(crate) fn rotate_by_sections(rope: &mut Rope, keys: &Keys<'_>) -> Result<(), Error> {
    let sections = sections(keys)?;
    if sections[0] > 0 && sections[1] > 0 {
        rope.mode = RopeMode::Mrope;
        set_sections(rope, sections);
    }
    Ok(())
}

/// Has sections of channels be steered by positions of their own. Text has the same first three positions; where the fourth steers
/// nothing, sections make no difference, and the rotation is the one it would be without them.
pub(crate) fn set_sections(rope: &mut Rope, sections: [u32; 4]) {
    let all = sections.iter().sum::<u32>().max(1);
    let pairs = || (0..rope.n_dims as u32 / 2).map(|pair| pair % all);
    let has_fourth = match rope.mode {
        RopeMode::Mrope => pairs().any(|pair| pair >= sections[..3].iter().sum::<u32>()),
        RopeMode::Imrope => pairs().any(|pair| pair >= 3 * sections[pair as usize % 3]),
        RopeMode::Normal | RopeMode::Neox | RopeMode::Vision => return,
    };
    match has_fourth {
        true => rope.sections = sections,
        false => rope.mode = RopeMode::Neox,
    }
}
