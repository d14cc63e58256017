// Scaled, masked softmax of rows, its gradient, and losses made of it.
#include "base.cuh"

struct SoftMaxParams {
    Tensor a, mask, sinks, y;  // without mask or sinks, their address is 0
    i64 rows;
    float scale, max_bias;
    float m0, m1;  // bases of slopes
    i32 heads_log2, unused;
};

DEVICE float slope_of(i64 head, float max_bias, i64 power, float m0, float m1) {
    if (max_bias <= 0.0f) return 1.0f;
    return head < power ? powf(m0, (float)(head + 1)) : powf(m1, (float)(2 * (head - power) + 1));
}

KERNEL(soft_max, SoftMaxParams, 1024) {
    wait_for_previous();
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 ne0 = p.a.ne[0], i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        const float* row = (const float*)at(p.a, i1, i2, i3);
        float* out = (float*)at(p.y, i1, i2, i3);
        const u8* mask = p.mask.data ? at(p.mask, i1, i2 % p.mask.ne[2], i3 % p.mask.ne[3]) : nullptr;
        float slope = slope_of(i2, p.max_bias, (i64)1 << p.heads_log2, p.m0, p.m1);
        float sink = p.sinks.data ? ((const float*)p.sinks.data)[i2] : -INFINITY;
        i64 step = p.mask.type == F32 ? 4 : 2;
        float most = sink;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) {
            float x = row[i] * p.scale;
            if (mask) x += slope * load(mask + i * step, p.mask.type);
            out[i] = x;
            most = fmaxf(most, x);
        }
        most = block_max(most);
        float sum = 0.0f;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) {
            float e = expf(out[i] - most);
            out[i] = e;
            sum += e;
        }
        sum = block_sum(sum);
        if (p.sinks.data) sum += expf(sink - most);
        float factor = 1.0f / sum;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) out[i] *= factor;
    }
}

// y = (dy - dot(y, dy)) y scale; a is dy, mask is y.
KERNEL(soft_max_back, SoftMaxParams, 1024) {
    wait_for_previous();
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 ne0 = p.a.ne[0];
        const float *dy = (const float*)p.a.data + r * ne0, *y = (const float*)p.mask.data + r * ne0;
        float* out = (float*)p.y.data + r * ne0;
        float dot = 0.0f;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) dot += y[i] * dy[i];
        dot = block_sum(dot);
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) out[i] = (dy[i] - dot) * y[i] * p.scale;
    }
}

struct LossParams {
    Tensor logits, targets, y, gradient;
    i64 rows;
    u64 scratch;
};

DEVICE void row_max_and_log(const float* row, i64 ne0, float& most, float& log_sum) {
    most = -INFINITY;
    for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) most = fmaxf(most, row[i]);
    most = block_max(most);
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) sum += (double)expf(row[i] - most);
    log_sum = logf((float)block_sum(sum));
}

// Each block leaves the sums of its rows; `cross_entropy_sum` adds them.
KERNEL(cross_entropy, LossParams, 256) {
    wait_for_previous();
    double total = 0.0;
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 ne0 = p.logits.ne[0];
        i64 i1 = r % p.logits.ne[1], i2 = r / p.logits.ne[1] % p.logits.ne[2], i3 = r / (p.logits.ne[1] * p.logits.ne[2]);
        const float *a = (const float*)at(p.logits, i1, i2, i3), *b = (const float*)at(p.targets, i1, i2, i3);
        float most, log_sum;
        row_max_and_log(a, ne0, most, log_sum);
        double sum = 0.0;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) sum += (double)((a[i] - most - log_sum) * b[i]);
        total += block_sum(sum);
    }
    if (threadIdx.x == 0) ((double*)p.scratch)[blockIdx.x] = total;
}
KERNEL(cross_entropy_sum, LossParams, 256) {
    wait_for_previous();
    double sum = 0.0;
    // The grid of `cross_entropy` has as many blocks as `y.ne[1]` says.
    for (i64 n = threadIdx.x; n < p.y.ne[1]; n += blockDim.x) sum += ((const double*)p.scratch)[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *(float*)p.y.data = (float)(-sum / (double)p.rows);
}
KERNEL(cross_entropy_back, LossParams, 256) {
    wait_for_previous();
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 ne0 = p.logits.ne[0];
        const float *a = (const float*)p.logits.data + r * ne0, *b = (const float*)p.targets.data + r * ne0;
        float* out = (float*)p.y.data + r * ne0;
        float most, log_sum;
        row_max_and_log(a, ne0, most, log_sum);
        float factor = *(const float*)p.gradient.data / (float)p.rows;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) out[i] = (expf(a[i] - most - log_sum) - b[i]) * factor;
    }
}
