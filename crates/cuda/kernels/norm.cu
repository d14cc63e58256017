// Normalization of rows and groups, with what is fused around it.
#include "base.cuh"

struct NormParams {
    Tensor a, y;
    Tensor weight;  // multiplies the result, where `weighted`; repeats
    Tensor addend;  // added to a first, where `added`; their sum is kept in `sum`
    Tensor sum;
    i64 rows;
    i32 op;
    i32 weighted, added;
    float eps;
};

enum Norm : i32 { NORM, RMS_NORM, L2_NORM };

// One block per row.
KERNEL(norm_rows, NormParams, 1024) {
    wait_for_previous();
    next_may_start();
    i64 ne0 = p.a.ne[0];
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        const u8* row = at(p.a, i1, i2, i3);
        i64 step = p.a.nb[0];
        if (p.added) {
            const float* other = (const float*)at(p.addend, i1, i2, i3);
            float* sum = (float*)at(p.sum, i1, i2, i3);
            for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) sum[i] = __fadd_rn(*(const float*)(row + i * step), other[i]);
            // Every thread reads back what it wrote itself, and nothing else.
            row = (const u8*)sum, step = 4;
        }
        float mean = 0.0f;
        if (p.op == NORM) {
            float sum = 0.0f;
            for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) sum += *(const float*)(row + i * step);
            mean = block_sum(sum) / (float)ne0;
        }
        float squares = 0.0f;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) {
            float x = *(const float*)(row + i * step) - mean;
            squares += x * x;
        }
        squares = block_sum(squares);
        float scale = p.op == L2_NORM ? 1.0f / fmaxf(sqrtf(squares), p.eps) : 1.0f / sqrtf(squares / (float)ne0 + p.eps);
        u8* out = at(p.y, i1, i2, i3);
        const float* weight = p.weighted ? (const float*)at(p.weight, i1 % p.weight.ne[1], i2 % p.weight.ne[2], i3 % p.weight.ne[3]) : nullptr;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) {
            float x = (*(const float*)(row + i * step) - mean) * scale;
            *(float*)(out + i * p.y.nb[0]) = weight ? x * weight[i] : x;
        }
    }
}

// y = (dz + x (-sum(x dz) / (sum(x x) + n eps))) r; a is dz, weight is x.
KERNEL(rms_norm_back, NormParams, 1024) {
    wait_for_previous();
    i64 ne0 = p.a.ne[0];
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        const float *dz = (const float*)at(p.a, i1, i2, i3), *x = (const float*)at(p.weight, i1, i2, i3);
        float* out = (float*)at(p.y, i1, i2, i3);
        double xx = 0.0, xd = 0.0;
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) xx += (double)x[i] * x[i], xd += (double)x[i] * dz[i];
        xx = block_sum(xx), xd = block_sum(xd);
        float scale = 1.0f / sqrtf((float)xx / (float)ne0 + p.eps);
        float factor = -(float)xd / ((float)xx + (float)ne0 * p.eps);
        for (i64 i = threadIdx.x; i < ne0; i += blockDim.x) out[i] = (dz[i] + x[i] * factor) * scale;
    }
}

struct GroupNormParams {
    Tensor a, y;
    i64 groups;
    i64 channels;  // of a group
    float eps;
    i32 unused;
};

// One block per group and batch.
KERNEL(group_norm, GroupNormParams, 1024) {
    wait_for_previous();
    i64 group = blockIdx.x % p.groups, i3 = blockIdx.x / p.groups;
    i64 first = group * p.channels, last = at_most(first + p.channels, p.a.ne[2]);
    i64 plane = p.a.ne[0] * p.a.ne[1], count = at_least(last - first, 0) * plane;
    double sum = 0.0;
    for (i64 n = threadIdx.x; n < count; n += blockDim.x) {
        sum += *(const float*)at(p.a, n % p.a.ne[0], n % plane / p.a.ne[0], first + n / plane, i3);
    }
    float mean = (float)(block_sum(sum) / (double)count);
    double squares = 0.0;
    for (i64 n = threadIdx.x; n < count; n += blockDim.x) {
        float x = *(const float*)at(p.a, n % p.a.ne[0], n % plane / p.a.ne[0], first + n / plane, i3) - mean;
        squares += (double)(x * x);
    }
    float scale = 1.0f / sqrtf((float)(block_sum(squares) / (double)count) + p.eps);
    for (i64 n = threadIdx.x; n < count; n += blockDim.x) {
        i64 i0 = n % p.a.ne[0], i1 = n % plane / p.a.ne[0], i2 = first + n / plane;
        *(float*)at(p.y, i0, i1, i2, i3) = (*(const float*)at(p.a, i0, i1, i2, i3) - mean) * scale;
    }
}
