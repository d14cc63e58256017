// Functions of one number, as the CPU device computes them.
#pragma once

#include "base.cuh"

// The reference looks these two up in tables of 16-bit numbers, by a 16-bit argument; so both ends are rounded.
DEVICE float gelu_formula(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286535587989211986876f * x * (1.0f + 0.044715f * x * x)));
}
DEVICE float gelu_quick_formula(float x) { return x * (1.0f / (1.0f + expf(-1.702f * x))); }
DEVICE float through_half(float x) { return from_half(to_half(x)); }

DEVICE float gelu(float x, i32 type) {
    if (type == BF16) return gelu_formula(x);
    if (type == F32) {
        if (x <= -10.0f) return 0.0f;
        if (x >= 10.0f) return x;
    }
    return through_half(gelu_formula(through_half(x)));
}
DEVICE float gelu_quick(float x, i32 type) {
    if (type == BF16) return gelu_quick_formula(x);
    return through_half(gelu_quick_formula(through_half(x)));
}
DEVICE float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
DEVICE float softplus(float x) { return x > 20.0f ? x : logf(1.0f + expf(x)); }

// Gated units, by the numbers that the Rust side gives them.
enum Glu : i32 { REGLU, GEGLU, SWIGLU, SWIGLU_OAI, GEGLU_ERF, GEGLU_QUICK, SWIGLU_CLAMP };

DEVICE float gated(i32 kind, i32 type, float x, float g, float alpha, float limit) {
    switch (kind) {
        case REGLU: return x > 0.0f ? x * g : 0.0f;
        case GEGLU: return gelu(x, type) * g;
        case SWIGLU: return silu(x) * g;
        case SWIGLU_OAI:
            x = fminf(x, limit), g = fminf(fmaxf(g, -limit), limit);
            return x / (1.0f + expf(-alpha * x)) * (g + 1.0f);
        case GEGLU_ERF: return gelu_erf(x) * g;
        case GEGLU_QUICK: return gelu_quick(x, type) * g;
        case SWIGLU_CLAMP:
            x = fminf(x, limit), g = fminf(fmaxf(g, -limit), limit);
            return silu(x) * g;
        default: return 0.0f;
    }
}
