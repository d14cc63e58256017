//! Kimi Linear, Kimi K3 and Ling 3: delta nets with decays by channel in most blocks, latent attention in a few, experts. K3 mixes the
//! stream with what it was some blocks before.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertSize, ExpertUse, Heads, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{ChannelDelta, DecayRule, Gating, HyperParameters, Latent, rope};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_BLOCKS, MAX_FEED_FORWARD};
use crate::model::net::{Bias, ChannelGates, Checkpoints, Gate, Glu, Moe, Net, Norms};

/// Without positions.
const KIMI: Traits = Traits {
    rope: None,
    heads: Heads::Some,
    experts: ExpertUse::Always,
    expert_size: ExpertSize::Own,
    leading_dense: true,
    scales: ScaleUse { logits: false, ..ScaleUse::PLAIN },
    ..Traits::plain(RopeMode::Normal)
};

const UNSCALED: ScaleUse = ScaleUse { attention_output: false, ..KIMI.scales };

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "kimi-linear",
        traits: KIMI,
        complete: |hyper, keys| complete(hyper, keys, DecayRule::Softplus, None),
        forward: forward_linear,
    },
    Architecture {
        name: "kimi-k3",
        traits: Traits { scales: UNSCALED, ..KIMI },
        complete: complete_k3,
        forward: forward_k3,
    },
    Architecture {
        name: "bailingmoe3",
        traits: Traits { rope: Some(RopeMode::Normal), scales: UNSCALED, ..KIMI },
        complete: complete_ling,
        forward: forward_ling,
    },
];

fn complete(
    hyper: &mut HyperParameters,
    keys: &Keys<'_>,
    decay: DecayRule,
    query_rank: Option<usize>,
) -> Result<(), Error> {
    let delta = ChannelDelta::read(keys, &hyper.blocks, decay)?;
    hyper.remember_without_heads(delta.remembered());
    hyper.channel_delta = Some(delta);
    let latent = Latent::read(keys, &mut hyper.blocks, hyper.rope.n_dims, query_rank)?;
    hyper.factors.attention = Some((latent.key_size as f32).sqrt().recip());
    hyper.latent = Some(latent);
    Ok(())
}

fn query_rank(keys: &Keys<'_>) -> Result<Option<usize>, Error> {
    keys.count("attention.q_lora_rank", MAX_FEED_FORWARD)
}

/// The bound of decays is what makes them sigmoids; the numbers of heads are below zero.
fn complete_k3(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let least = keys.number("kda.gate_lower_bound")?;
    let decay = least.map_or(DecayRule::Softplus, |least| DecayRule::Sigmoid { least, factor: -1.0 });
    complete(hyper, keys, decay, query_rank(keys)?)?;
    hyper.checkpoint_period = keys.count("attn_res.block_size", MAX_BLOCKS)?;
    let key = "activation.situ_beta";
    let gate = keys.positive(key)?.ok_or_else(|| keys.refuse(key, 0, "must be above zero"))?;
    hyper.saturation = Some((gate, keys.number("activation.situ_linear_beta")?.filter(|&up| up > 0.0)));
    Ok(())
}

fn complete_ling(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    rope::rotate_by_sections(&mut hyper.rope, keys)?;
    let (key, safe) = ("kda.gate_lower_bound", "kda.safe_gate");
    if keys.flag(safe)? == Some(false) {
        return Err(keys.refuse(safe, false, "decays without a bound cannot be computed"));
    }
    let least = keys.number(key)?.filter(|&least| least < 0.0);
    let least = least.ok_or_else(|| keys.refuse(key, "none", "must be below zero"))?;
    complete(hyper, keys, DecayRule::Sigmoid { least, factor: 1.0 }, query_rank(keys)?)?;
    hyper.read_limits(keys, false)
}

/// A delta net, or latent attention and what becomes of its results.
fn mix(
    net: &mut Net<'_>,
    h: TensorId,
    gates: ChannelGates,
    finish: fn(&mut Net<'_>, TensorId, TensorId) -> Result<TensorId, Error>,
) -> Result<TensorId, Error> {
    if net.block().is_recurrent() {
        return net.channel_delta_net(h, gates);
    }
    let scale = net.head_scale();
    let a = net.latent_attention(h, scale)?;
    let a = finish(net, a, h)?;
    net.attention_output(a, Bias::None)
}

fn forward_linear(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let gates = ChannelGates { decays: &["ssm_f_a", "ssm_f_b"], results: &["ssm_g_a", "ssm_g_b"] };
    net.decoder(
        Norms::BEFORE,
        |net, h| mix(net, h, gates, |_, a, _| Ok(a)),
        |net, h| {
            let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
                return net.gated(h, GluKind::Swiglu, Bias::None);
            };
            let moe = Moe { normalized: true, ..Moe::stated(&experts, Gating::Sigmoid) };
            net.experts_and_shared(h, moe, experts.feed_forward * experts.shared.max(1))
        },
    )
}

/// A block where the stream is put aside adds nothing to it: what its first part gives is the stream from there on.
fn forward_k3(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    let mut aside = Checkpoints::default();
    for block in 0..net.block_count() {
        net.enter_block(block);
        let begins = net.hyper().checkpoint_period.is_some_and(|period| block.is_multiple_of(period));
        let h = net.mixture(&aside, x, "attn_res_score")?;
        if begins {
            net.put_aside(&mut aside, x)?;
        }
        let h = net.norm(h, "attn_norm")?;
        let a = mix_k3(net, h)?;
        let x1 = if begins { a } else { net.add(x, a)? };
        let h = net.mixture(&aside, x1, "ffn_res_score")?;
        let h = net.norm(h, "ffn_norm")?;
        let f = feed_forward_k3(net, h)?;
        x = net.leave_block(f, x1)?;
    }
    let x = net.last_mixture(aside, x, "output_res_score")?;
    net.logits(x)
}

fn mix_k3(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let gates = ChannelGates { decays: &["ssm_f_a", "ssm_f_b"], results: &["ssm_g"] };
    mix(net, h, gates, |net, a, h| match net.has("attn_gate.weight") {
        true => net.gated_result(a, h, Gate::Channels, Unary::Sigmoid),
        false => Ok(a),
    })
}

fn feed_forward_k3(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let saturation = net.hyper().saturation;
    let kind = saturation.map_or(GluKind::Swiglu.into(), |(gate, up)| Glu::Saturating { gate, up });
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, kind, Bias::None);
    };
    let moe = Moe { kind, ..Moe::stated(&experts, Gating::Sigmoid) };
    let chosen = net.narrowed_experts(h, moe, ["ffn_routed_down", "ffn_routed_norm", "ffn_routed_up"])?;
    let shared = net.shared_expert(h, experts.feed_forward * experts.shared.max(1), kind)?;
    net.add(chosen, shared)
}

fn forward_ling(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let gates = ChannelGates { decays: &["ssm_f_a"], results: &["ssm_g_a"] };
    net.decoder(
        Norms::BEFORE,
        |net, h| mix(net, h, gates, |net, a, h| net.gated_result(a, h, Gate::Heads, Unary::Sigmoid)),
        |net, h| {
            let block = net.block();
            let limited = |limit: Option<f32>| limit.map_or(GluKind::Swiglu.into(), Glu::Limited);
            let Some(experts) = net.hyper().experts.filter(|_| block.has_experts) else {
                return net.gated(h, limited(block.shared_limit), Bias::None);
            };
            let inner = experts.shared_feed_forward.unwrap_or(experts.feed_forward * experts.shared.max(1));
            let moe = Moe { kind: limited(block.expert_limit), ..Moe::stated(&experts, Gating::Sigmoid) };
            net.experts_and_other_shared(h, moe, inner, limited(block.shared_limit))
        },
    )
}
