//! T5: an encoder, alone or with a decoder that looks at what the encoder makes of a source. Nothing rotates; learnt numbers move
//! scores by the distance.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, Purpose, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Block, BlockState, Distances, Half, HyperParameters, Source};
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Bias, Net};

const T5: Architecture = Architecture {
    name: "t5",
    traits: Traits { rope: None, ..Traits::plain(RopeMode::Neox) },
    complete,
    forward: |net| match net.reads() {
        true => {
            let rows = read(net)?;
            net.store_source(rows)?;
            Ok(rows)
        }
        false => write(net),
    },
};

pub(super) const FAMILY: &[Architecture] = &[
    T5,
    Architecture {
        name: "t5encoder",
        traits: Traits { purpose: Purpose::Embed, ..T5.traits },
        complete: complete_reading,
        forward: |net| {
            net.pass_over("output.weight");
            read(net)
        },
    },
];

fn complete_reading(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.distances = Some(Distances::read(keys)?);
    // Files have it beside that of the norms there are.
    keys.number("attention.layer_norm_epsilon")?;
    for block in &mut hyper.blocks {
        block.half = Half::Reading;
        block.state = BlockState::default();
    }
    Ok(())
}

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let writes = hyper.blocks[0];
    complete_reading(hyper, keys)?;
    let blocks = hyper.blocks.len();
    let written = keys.count("decoder_block_count", MAX_BLOCKS)?.unwrap_or(blocks);
    let block = |tensors| Block { half: Half::Writing, tensors, ..writes };
    hyper.blocks.extend((0..written).map(block));
    let start = keys.start_token("decoder_start_token_id", hyper.vocabulary)?;
    hyper.source = Some(Source { blocks, start });
    Ok(())
}

/// What the encoder makes of a text. [E, T]
fn read(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in net.reading_blocks() {
        net.enter_block(block);
        let h = net.norm(x, "attn_norm")?;
        let a = net.distance_attention(h)?;
        let a = net.widened(a, "attn_o")?;
        let x1 = net.add(a, x)?;
        let h = net.norm(x1, "ffn_norm")?;
        let f = feed_forward(net, h)?;
        x = net.leave_block(f, x1)?;
    }
    net.final_norm(x, "enc.output_norm")
}

/// Logits of what comes next, after a source and what was written so far.
fn write(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in net.writing_blocks() {
        net.enter_block(block);
        let h = net.norm(x, "attn_norm")?;
        let a = net.distance_attention(h)?;
        let a = net.widened(a, "attn_o")?;
        let x1 = net.add(a, x)?;
        let h = net.norm(x1, "cross_attn_norm")?;
        let a = net.source_attention(h)?;
        let a = net.widened(a, "cross_attn_o")?;
        let [a, x1] = net.keep_wanted([a, x1])?;
        let x2 = net.add(a, x1)?;
        let h = net.norm(x2, "ffn_norm")?;
        let f = feed_forward(net, h)?;
        x = net.leave_block(f, x2)?;
    }
    net.logits_after(x, "dec.output_norm")
}

/// Later versions have a gate.
fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    net.pass_over("cross_attn_rel_b.weight");
    match net.has("ffn_gate.weight") {
        true => net.gated(h, GluKind::Geglu, Bias::None),
        false => net.plain(h, Unary::Relu, Bias::None),
    }
}
