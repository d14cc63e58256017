// Rows sorted, and their largest elements.
//
// A row is sorted by a network of exchanges (bitonic): in shared memory where it fits, else in scratch memory, step by step.
#include "base.cuh"

struct SortParams {
    Tensor a, y;
    i64 rows;
    i64 padded;   // elements of a row, up to a power of two
    u64 scratch;  // indices of padded rows
    i64 block, step;
    i32 descending;
    i32 unused;
};

// Whether element i goes before element j; what is beyond the row goes last.
DEVICE bool goes_before(const float* row, i32 i, i32 j, i64 ne0, i32 descending) {
    if (i >= ne0) return false;
    if (j >= ne0) return true;
    return descending ? row[i] > row[j] : row[i] < row[j];
}

DEVICE const float* sorted_row(const SortParams& p, i64 r) {
    return (const float*)at(p.a, r % p.a.ne[1], r / p.a.ne[1] % p.a.ne[2], r / (p.a.ne[1] * p.a.ne[2]));
}
DEVICE i32* result_row(const SortParams& p, i64 r) {
    return (i32*)at(p.y, r % p.y.ne[1], r / p.y.ne[1] % p.y.ne[2], r / (p.y.ne[1] * p.y.ne[2]));
}

KERNEL(sort_small, SortParams, 1024) {
    wait_for_previous();
    i32* order = (i32*)dynamic_shared;
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        const float* row = sorted_row(p, r);
        __syncthreads();
        for (i32 i = threadIdx.x; i < p.padded; i += blockDim.x) order[i] = i;
        for (i64 block = 2; block <= p.padded; block *= 2) {
            for (i64 step = block / 2; step > 0; step /= 2) {
                __syncthreads();
                for (i32 i = threadIdx.x; i < p.padded; i += blockDim.x) {
                    i32 j = i ^ (i32)step;
                    if (j < i) continue;
                    bool upwards = (i & block) == 0;
                    bool wrong = upwards ? goes_before(row, order[j], order[i], p.a.ne[0], p.descending)
                                         : goes_before(row, order[i], order[j], p.a.ne[0], p.descending);
                    if (wrong) {
                        i32 other = order[i];
                        order[i] = order[j], order[j] = other;
                    }
                }
            }
        }
        __syncthreads();
        i32* out = result_row(p, r);
        for (i32 i = threadIdx.x; i < p.y.ne[0]; i += blockDim.x) out[i] = order[i];
    }
}

KERNEL(sort_begin, SortParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.rows * p.padded; n += thread_count()) ((i32*)p.scratch)[n] = (i32)(n % p.padded);
}
KERNEL(sort_step, SortParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.rows * p.padded; n += thread_count()) {
        i64 r = n / p.padded, i = n % p.padded, j = i ^ p.step;
        if (j < i) continue;
        i32* order = (i32*)p.scratch + r * p.padded;
        const float* row = sorted_row(p, r);
        bool upwards = (i & p.block) == 0;
        bool wrong = upwards ? goes_before(row, order[j], order[i], p.a.ne[0], p.descending)
                             : goes_before(row, order[i], order[j], p.a.ne[0], p.descending);
        if (wrong) {
            i32 other = order[i];
            order[i] = order[j], order[j] = other;
        }
    }
}
KERNEL(sort_end, SortParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.rows * p.y.ne[0]; n += thread_count()) {
        i64 r = n / p.y.ne[0], i = n % p.y.ne[0];
        result_row(p, r)[i] = ((const i32*)p.scratch)[r * p.padded + i];
    }
}
