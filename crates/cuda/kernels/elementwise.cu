// Elements computed one by one: functions, arithmetic with repetition, gated units, constants, regions.
#include "math.cuh"

enum Map : i32 {
    ABS, SGN, NEG, STEP, TANH, ELU, RELU, SIGMOID, GELU, GELU_QUICK, SILU, HARDSWISH, HARDSIGMOID, EXP, EXPM1, SOFTPLUS,
    GELU_ERF, XIELU, FLOOR, CEIL, ROUND, TRUNC,
    SQR, SQRT, LOG, SIN, COS, SCALE, CLAMP, LEAKY_RELU, FILL,
};

struct MapParams {
    Tensor a, y;
    i64 count;
    i32 op;
    i32 packed;  // a and y are packed alike
    float c[4];
};

DEVICE float mapped(i32 op, i32 type, float x, const float* c) {
    switch (op) {
        case ABS: return fabsf(x);
        case SGN: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
        case NEG: return -x;
        case STEP: return x > 0.0f ? 1.0f : 0.0f;
        case TANH: return tanhf(x);
        case ELU: return x > 0.0f ? x : expm1f(x);
        case RELU: return x > 0.0f ? x : 0.0f;
        case SIGMOID: return sigmoid(x);
        case GELU: return gelu(x, type);
        case GELU_QUICK: return gelu_quick(x, type);
        case SILU: return silu(x);
        case HARDSWISH: return x * fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
        case HARDSIGMOID: return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
        case EXP: return expf(x);
        case EXPM1: return expf(x) - 1.0f;
        case SOFTPLUS: return softplus(x);
        case GELU_ERF: return gelu_erf(x);
        case XIELU: {
            float alpha_n = c[0], alpha_p = c[1], beta = c[2], eps = c[3];
            return x > 0.0f ? alpha_p * x * x + beta * x : (expm1f(fminf(x, eps)) - x) * alpha_n + beta * x;
        }
        case FLOOR: return floorf(x);
        case CEIL: return ceilf(x);
        case ROUND: return roundf(x);
        case TRUNC: return truncf(x);
        case SQR: return x * x;
        case SQRT: return sqrtf(x);
        case LOG: return logf(x);
        case SIN: return sinf(x);
        case COS: return cosf(x);
        case SCALE: return c[1] == 0.0f ? x * c[0] : fmaf(x, c[0], c[1]);
        case CLAMP: {
            float least = x < c[1] ? x : c[1];
            return least > c[0] ? least : c[0];
        }
        case LEAKY_RELU: return (x > 0.0f ? x : 0.0f) + c[0] * (x < 0.0f ? x : 0.0f);
        case FILL: return c[0];
        default: return 0.0f;
    }
}

KERNEL(map, MapParams, 256) {
    wait_for_previous();
    i64 size_a = p.a.type == F32 ? 4 : 2, size_y = p.y.type == F32 ? 4 : 2;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        if (p.packed) {
            float x = p.op == FILL ? 0.0f : load((u8*)p.a.data + n * size_a, p.a.type);
            store((u8*)p.y.data + n * size_y, p.y.type, mapped(p.op, p.a.type, x, p.c));
        } else {
            Index i = place_of(n, p.y.ne);
            float x = p.op == FILL ? 0.0f : load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
            store(at(p.y, i.i0, i.i1, i.i2, i.i3), p.y.type, mapped(p.op, p.a.type, x, p.c));
        }
    }
}

enum Binary : i32 { ADD, SUB, MUL, DIV };

struct BinaryParams {
    Tensor a, b, y;
    i64 count;
    i32 op;
    // How b repeats: 0 anyhow; 1 not at all, all three being packed f32; 2 row by row, all three being packed f32.
    i32 form;
};

DEVICE float combined(i32 op, float x, float y) {
    switch (op) {
        case ADD: return __fadd_rn(x, y);
        case SUB: return __fsub_rn(x, y);
        case MUL: return __fmul_rn(x, y);
        default: return __fdiv_rn(x, y);
    }
}

KERNEL(binary, BinaryParams, 256) {
    wait_for_previous();
    if (p.form != 0) {
        const float *a = (const float*)p.a.data, *b = (const float*)p.b.data;
        float* y = (float*)p.y.data;
        for (i64 n = thread_number(); n < p.count; n += thread_count()) {
            y[n] = combined(p.op, a[n], b[p.form == 1 ? n : n % p.b.ne[0]]);
        }
        return;
    }
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.y.ne);
        float x = load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
        const u8* other = at(p.b, i.i0 % p.b.ne[0], i.i1 % p.b.ne[1], i.i2 % p.b.ne[2], i.i3 % p.b.ne[3]);
        store(at(p.y, i.i0, i.i1, i.i2, i.i3), p.y.type, combined(p.op, x, load(other, p.b.type)));
    }
}

struct AddIdParams {
    Tensor a, b, ids, y;
    i64 count;
    u64 faults;
};

KERNEL(add_id, AddIdParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.y.ne);
        i32 id = *(const i32*)at(p.ids, i.i1, i.i2, 0, 0);
        if (id < 0 || id >= p.b.ne[1]) {
            report(p.faults, BAD_ROW);
            continue;
        }
        float x = *(const float*)at(p.a, i.i0, i.i1, i.i2, i.i3);
        *(float*)at(p.y, i.i0, i.i1, i.i2, i.i3) = x + *(const float*)at(p.b, i.i0, id, 0, 0);
    }
}

struct GluParams {
    Tensor a, b, y;  // x and gate, rows of y's length each
    i64 count;
    i32 kind;
    i32 packed;  // all of them, as f32
    float alpha, limit;
};

KERNEL(glu, GluParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        if (p.packed) {
            float x = ((const float*)p.a.data)[n], g = ((const float*)p.b.data)[n];
            ((float*)p.y.data)[n] = gated(p.kind, F32, x, g, p.alpha, p.limit);
        } else {
            Index i = place_of(n, p.y.ne);
            float x = load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
            float g = load(at(p.b, i.i0, i.i1, i.i2, i.i3), p.a.type);
            store(at(p.y, i.i0, i.i1, i.i2, i.i3), p.y.type, gated(p.kind, p.a.type, x, g, p.alpha, p.limit));
        }
    }
}

KERNEL(silu_back, BinaryParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.y.ne);
        float dy = load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
        float x = load(at(p.b, i.i0, i.i1, i.i2, i.i3), p.b.type);
        float s = sigmoid(x);
        store(at(p.y, i.i0, i.i1, i.i2, i.i3), p.y.type, dy * s * (1.0f + x * (1.0f - s)));
    }
}

struct RegionParams {
    Tensor b;       // what is laid into the region
    Tensor region;  // the region of the result, of b's shape
    i64 count;
    i32 adds;
    i32 unused;
};

// The rest of the result is copied before.
KERNEL(region, RegionParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.b.ne);
        const u8* from = at(p.b, i.i0, i.i1, i.i2, i.i3);
        u8* to = at(p.region, i.i0, i.i1, i.i2, i.i3);
        if (p.adds) {
            *(float*)to += *(const float*)from;
        } else {
            *(u32*)to = *(const u32*)from;
        }
    }
}

enum Make : i32 { ARANGE, TRI, DIAG_MASK, DIAG, TIMESTEP };

struct MakeParams {
    Tensor a, y;
    i64 count;
    i32 op;
    i32 kind;  // of a triangle; 1 for minus infinity, 0 for zero in a mask
    i64 past;
    float c[2];
};

KERNEL(make, MakeParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.y.ne);
        float value = 0.0f;
        switch (p.op) {
            case ARANGE: value = __fadd_rn(p.c[0], __fmul_rn(p.c[1], (float)n)); break;
            case TRI: {
                bool keep = p.kind == 0 ? i.i0 >= i.i1 : p.kind == 1 ? i.i0 > i.i1 : p.kind == 2 ? i.i0 <= i.i1 : i.i0 < i.i1;
                value = keep ? *(const float*)at(p.a, i.i0, i.i1, i.i2, i.i3) : 0.0f;
                break;
            }
            case DIAG_MASK:
                if (i.i0 > p.past + i.i1) {
                    value = p.kind ? -INFINITY : 0.0f;
                } else {
                    value = *(const float*)at(p.a, i.i0, i.i1, i.i2, i.i3);
                }
                break;
            case DIAG: value = i.i0 == i.i1 ? *(const float*)at(p.a, i.i0, 0, i.i2, i.i3) : 0.0f; break;
            case TIMESTEP: {
                i64 half = p.past;
                if (i.i0 < 2 * half) {
                    i64 j = i.i0 < half ? i.i0 : i.i0 - half;
                    float step = *(const float*)at(p.a, i.i1, 0, 0, 0);
                    float angle = step * expf(-logf(p.c[0]) * (float)j / (float)half);
                    value = i.i0 < half ? cosf(angle) : sinf(angle);
                }
                break;
            }
        }
        *(float*)at(p.y, i.i0, i.i1, i.i2, i.i3) = value;
    }
}
