// State-space models, RWKV, gated linear attention and delta nets; and the triangular solver that goes with them.
//
// A warp has one row of a state and walks over the tokens with it in registers: lane l has elements l, l + 32, ...
#include "math.cuh"

struct SsmConvParams {
    Tensor a, kernel, y;
    i64 count;
};

// y[c, t, q] = sum of a[t + j, c, q] kernel[j, c]
KERNEL(ssm_conv, SsmConvParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        float sum = 0.0f;
        for (i64 j = 0; j < p.kernel.ne[0]; j++) {
            sum = fmaf(*(const float*)at(p.a, o.i1 + j, o.i0, o.i2, 0), *(const float*)at(p.kernel, j, o.i0, 0, 0), sum);
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, 0) = sum;
    }
}

struct ScanParams {
    Tensor source[7];
    u64 y;
    i64 width;      // elements of a row of a state
    i64 rows;       // rows of a head's state
    i64 heads, tokens, sequences, snapshots;
    i64 groups;     // heads of B and C, or of queries and keys
    i64 batch;      // of queries and keys
    u64 faults;
    float scale;
    i32 in_turn;    // how heads are dealt out to groups
};

// The most elements of a row that a lane has.
const int MOST = 8;

DEVICE float* outputs(const ScanParams& p, i64 sequence, i64 token, i64 head) {
    return (float*)p.y + ((sequence * p.tokens + token) * p.heads + head) * p.rows;
}
DEVICE float* snapshot(const ScanParams& p, i64 age, i64 sequence, i64 head, i64 row) {
    i64 all = p.tokens * p.sequences * p.heads * p.rows;
    return (float*)p.y + all + (((age * p.sequences + sequence) * p.heads + head) * p.rows + row) * p.width;
}

// Keeps the state as it is after a token, if it is among the last.
DEVICE void keep(const ScanParams& p, i64 token, i64 sequence, i64 head, i64 row, const float* state) {
    i64 age = p.tokens - 1 - token;
    if (age >= p.snapshots) return;
    float* to = snapshot(p, age, sequence, head, row);
#pragma unroll
    for (int m = 0; m < MOST; m++) {
        i64 i = lane_number() + 32 * m;
        if (i < p.width) to[i] = state[m];
    }
}

// Selective scan over states, x, dt, a, b, c, ids.
KERNEL(ssm_scan, ScanParams, 128) {
    wait_for_previous();
    i64 unit = (i64)blockIdx.x * 4 + warp_number();
    if (unit >= p.rows * p.heads * p.sequences) return;
    i64 row = unit % p.rows, head = unit / p.rows % p.heads, sequence = unit / (p.rows * p.heads);
    i64 id = ((const i32*)p.source[6].data)[sequence];
    if (id < 0 || id >= p.source[0].ne[3]) {
        report(p.faults, BAD_STATE);
        return;
    }
    const float* from = (const float*)p.source[0].data + ((id * p.heads + head) * p.rows + row) * p.width;
    i64 decays = p.source[3].ne[0], group = p.in_turn ? head % p.groups : head / (p.heads / p.groups);
    const float* decay = (const float*)p.source[3].data + head * decays;
    float state[MOST];
#pragma unroll
    for (int m = 0; m < MOST; m++) {
        i64 i = lane_number() + 32 * m;
        state[m] = i < p.width ? from[i] : 0.0f;
    }
    for (i64 token = 0; token < p.tokens; token++) {
        float delta = softplus(((const float*)p.source[2].data)[(sequence * p.tokens + token) * p.heads + head]);
        float x = *(const float*)at(p.source[1], row, head, token, sequence) * delta;
        const float *b = (const float*)at(p.source[4], group, token, sequence), *c = (const float*)at(p.source[5], group, token, sequence);
        float sum = 0.0f;
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            i64 i = lane_number() + 32 * m;
            if (i < p.width) {
                float fade = expf(delta * decay[decays == 1 ? 0 : i]);
                state[m] = fmaf(state[m], fade, b[i] * x);
                sum = fmaf(state[m], c[i], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane_number() == 0) outputs(p, sequence, token, head)[row] = sum;
        keep(p, token, sequence, head, row, state);
    }
}

// Version 6 over k, v, r, tf, td, state, and gated linear attention over k, v, q, g, state. States are stored with the key
// index as the slow one; a thread has one value index, that is a column.
template <bool GATED> DEVICE void columns(const ScanParams& p) {
    i64 unit = thread_number();
    if (unit >= p.width * p.heads * p.sequences) return;
    i64 j = unit % p.width, head = unit / p.width % p.heads, sequence = unit / (p.width * p.heads);
    const float* from = (const float*)p.source[GATED ? 4 : 5].data + (sequence * p.heads + head) * p.width * p.width + j;
    float* state = snapshot(p, 0, sequence, head, 0) + j;
    for (i64 i = 0; i < p.width; i++) state[i * p.width] = from[i * p.width];
    for (i64 token = 0; token < p.tokens; token++) {
        i64 start = ((sequence * p.tokens + token) * p.heads + head) * p.width;
        const float *k = (const float*)p.source[0].data + start, *r = (const float*)p.source[2].data + start;
        const float *decay = (const float*)p.source[GATED ? 3 : 4].data + start, *first = (const float*)p.source[3].data + head * p.width;
        float v = ((const float*)p.source[1].data)[start + j], sum = 0.0f;
        for (i64 i = 0; i < p.width; i++) {
            float kv = k[i] * v, s = state[i * p.width];
            if (GATED) {
                s = s * decay[i] + kv;
                sum += r[i] * p.scale * s;
            } else {
                sum += r[i] * (first[i] * kv + s);
                s = s * decay[i] + kv;
            }
            state[i * p.width] = s;
        }
        outputs(p, sequence, token, head)[j] = sum;
    }
}
KERNEL(rwkv_wkv6, ScanParams, 128) {
    wait_for_previous();
    columns<false>(p);
}
KERNEL(gated_linear_attn, ScanParams, 128) {
    wait_for_previous();
    columns<true>(p);
}

// Version 7 over r, w, k, v, a, b, state.
KERNEL(rwkv_wkv7, ScanParams, 128) {
    wait_for_previous();
    i64 unit = (i64)blockIdx.x * 4 + warp_number();
    if (unit >= p.rows * p.heads * p.sequences) return;
    i64 row = unit % p.rows, head = unit / p.rows % p.heads, sequence = unit / (p.rows * p.heads);
    const float* from = (const float*)p.source[6].data + ((sequence * p.heads + head) * p.rows + row) * p.width;
    float state[MOST];
#pragma unroll
    for (int m = 0; m < MOST; m++) {
        i64 i = lane_number() + 32 * m;
        state[m] = i < p.width ? from[i] : 0.0f;
    }
    for (i64 token = 0; token < p.tokens; token++) {
        i64 start = ((sequence * p.tokens + token) * p.heads + head) * p.width;
        const float *r = (const float*)p.source[0].data + start, *w = (const float*)p.source[1].data + start;
        const float *k = (const float*)p.source[2].data + start, *a = (const float*)p.source[4].data + start;
        const float* b = (const float*)p.source[5].data + start;
        float v = ((const float*)p.source[3].data)[start + row], held = 0.0f, sum = 0.0f;
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            i64 i = lane_number() + 32 * m;
            if (i < p.width) held = fmaf(a[i], state[m], held);
        }
        held = warp_sum(held);
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            i64 i = lane_number() + 32 * m;
            if (i < p.width) {
                state[m] = fmaf(state[m], w[i], fmaf(v, k[i], held * b[i]));
                sum = fmaf(state[m], r[i], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane_number() == 0) outputs(p, sequence, token, head)[row] = sum;
        keep(p, token, sequence, head, row, state);
    }
}

// Delta rule over q, k, v, g, beta, state.
KERNEL(gated_delta_net, ScanParams, 128) {
    wait_for_previous();
    i64 unit = (i64)blockIdx.x * 4 + warp_number();
    if (unit >= p.rows * p.heads * p.sequences) return;
    i64 row = unit % p.rows, head = unit / p.rows % p.heads, sequence = unit / (p.rows * p.heads);
    const float* from = (const float*)p.source[5].data + ((sequence * p.heads + head) * p.rows + row) * p.width;
    i64 gates = p.source[3].ne[0], batch = sequence / (p.sequences / p.batch);
    float state[MOST];
#pragma unroll
    for (int m = 0; m < MOST; m++) {
        i64 i = lane_number() + 32 * m;
        state[m] = i < p.width ? from[i] : 0.0f;
    }
    for (i64 token = 0; token < p.tokens; token++) {
        const float *q = (const float*)at(p.source[0], head % p.groups, token, batch), *k = (const float*)at(p.source[1], head % p.groups, token, batch);
        i64 place = (sequence * p.tokens + token) * p.heads + head;
        const float* gate = (const float*)p.source[3].data + place * gates;
        float beta = ((const float*)p.source[4].data)[place], held = 0.0f, sum = 0.0f;
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            i64 i = lane_number() + 32 * m;
            if (i < p.width) {
                state[m] *= expf(gate[gates == 1 ? 0 : i]);
                held = fmaf(state[m], k[i], held);
            }
        }
        held = warp_sum(held);
        float change = (*(const float*)at(p.source[2], row, head, token, sequence) - held) * beta;
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            i64 i = lane_number() + 32 * m;
            if (i < p.width) {
                state[m] = fmaf(change, k[i], state[m]);
                sum = fmaf(state[m], q[i], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane_number() == 0) outputs(p, sequence, token, head)[row] = sum * p.scale;
        keep(p, token, sequence, head, row, state);
    }
}

struct SolveParams {
    Tensor a, b, y;
    i64 count;  // columns of all matrices
    i64 unused;
};

// A thread has one column of the result.
KERNEL(solve_tri, SolveParams, 128) {
    wait_for_previous();
    i64 unit = thread_number();
    if (unit >= p.count) return;
    i64 n = p.a.ne[0], columns = p.b.ne[0], j = unit % columns, m = unit / columns;
    const float *a = (const float*)p.a.data + m * n * n, *b = (const float*)p.b.data + m * n * columns + j;
    float* x = (float*)p.y.data + m * n * columns + j;
    for (i64 i = 0; i < n; i++) {
        float sum = 0.0f;
        for (i64 t = 0; t < i; t++) sum = fmaf(a[i * n + t], x[t * columns], sum);
        x[i * columns] = (b[i * columns] - sum) / a[i * n + i];
    }
}

struct HyperParams {
    Tensor source[4];
    Tensor y;
    i64 count;
    float scale, eps;
    i32 iterations, gated;
};

// The mixing matrix of four streams; a thread has a token.
KERNEL(hc_comb, HyperParams, 128) {
    wait_for_previous();
    i64 t = thread_number();
    if (t >= p.count) return;
    float m[4][4];  // [src][dst]
    float scale = *(const float*)at(p.source[1], 2, 0, 0, 0);
    for (int s = 0; s < 4; s++) {
        float most = -INFINITY, sum = 0.0f;
        for (int d = 0; d < 4; d++) {
            i64 i = 8 + d + 4 * s;
            m[s][d] = *(const float*)at(p.source[0], i, t, 0, 0) * scale + *(const float*)at(p.source[2], i, 0, 0, 0);
            most = fmaxf(most, m[s][d]);
        }
        for (int d = 0; d < 4; d++) m[s][d] = expf(m[s][d] - most), sum += m[s][d];
        float factor = 1.0f / sum;
        for (int d = 0; d < 4; d++) m[s][d] = m[s][d] * factor + p.eps;
    }
    for (int round = 0; round < p.iterations; round++) {
        if (round > 0) {
            for (int s = 0; s < 4; s++) {
                float factor = 1.0f / (m[s][0] + m[s][1] + m[s][2] + m[s][3] + p.eps);
                for (int d = 0; d < 4; d++) m[s][d] *= factor;
            }
        }
        for (int d = 0; d < 4; d++) {
            float factor = 1.0f / (m[0][d] + m[1][d] + m[2][d] + m[3][d] + p.eps);
            for (int s = 0; s < 4; s++) m[s][d] *= factor;
        }
    }
    for (int s = 0; s < 4; s++)
        for (int d = 0; d < 4; d++) *(float*)at(p.y, d, s, t, 0) = m[s][d];
}

KERNEL(hc_pre, HyperParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 e = n % p.y.ne[0], t = n / p.y.ne[0];
        float sum = 0.0f;
        for (i64 h = 0; h < p.source[0].ne[1]; h++) {
            float w = p.gated ? sigmoid(*(const float*)at(p.source[1], e, h, t, 0)) : *(const float*)at(p.source[1], h, t, 0, 0);
            sum = fmaf(*(const float*)at(p.source[0], e, h, t, 0), w, sum);
        }
        *(float*)at(p.y, e, t, 0, 0) = p.scale * sum;
    }
}

KERNEL(hc_post, HyperParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        float sum = *(const float*)at(p.source[0], o.i0, o.i2, 0, 0) * *(const float*)at(p.source[2], o.i1, o.i2, 0, 0);
        if (p.source[3].data) {
            for (i64 s = 0; s < p.source[1].ne[1]; s++) {
                sum = fmaf(*(const float*)at(p.source[1], o.i0, s, o.i2, 0), *(const float*)at(p.source[3], o.i1, s, o.i2, 0), sum);
            }
        } else {
            sum += *(const float*)at(p.source[1], o.i0, o.i1, o.i2, 0);
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, 0) = sum;
    }
}

struct OptimizerParams {
    Tensor parameter, gradient, m, v;
    u64 settings;
    i64 count;
};

KERNEL(adamw, OptimizerParams, 256) {
    wait_for_previous();
    const float* c = (const float*)p.settings;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.parameter.ne);
        float g = *(const float*)at(p.gradient, i.i0, i.i1, i.i2, i.i3);
        float *w = (float*)at(p.parameter, i.i0, i.i1, i.i2, i.i3), *m = (float*)at(p.m, i.i0, i.i1, i.i2, i.i3), *v = (float*)at(p.v, i.i0, i.i1, i.i2, i.i3);
        *m = *m * c[1] + g * (1.0f - c[1]);
        *v = *v * c[2] + g * g * (1.0f - c[2]);
        float mh = *m * c[5], vh = sqrtf(*v * c[6]) + c[3];
        *w = *w * (1.0f - c[0] * c[4]) - c[0] * mh / vh;
    }
}
KERNEL(sgd, OptimizerParams, 256) {
    wait_for_previous();
    const float* c = (const float*)p.settings;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.parameter.ne);
        float* w = (float*)at(p.parameter, i.i0, i.i1, i.i2, i.i3);
        *w = *w * (1.0f - c[0] * c[1]) - c[0] * *(const float*)at(p.gradient, i.i0, i.i1, i.i2, i.i3);
    }
}
