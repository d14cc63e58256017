// Sums, means, running sums, largest elements, equal elements, and the gradient of repetition.
#include "base.cuh"

struct ReduceParams {
    Tensor a, b, y;
    i64 rows;
    i64 count;
    u64 scratch;
};

// One block per row: its sum, or its mean where `count` says so.
KERNEL(sum_rows, ReduceParams, 1024) {
    wait_for_previous();
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        const float* row = (const float*)at(p.a, i1, i2, i3);
        double sum = 0.0;
        for (i64 i = threadIdx.x; i < p.a.ne[0]; i += blockDim.x) sum += (double)row[i];
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            float total = (float)sum;
            *(float*)at(p.y, 0, i1, i2, i3) = p.count ? total / (float)p.a.ne[0] : total;
        }
    }
}

// The sum of everything: each block leaves its part, `sum_parts` adds them.
KERNEL(sum_all, ReduceParams, 256) {
    wait_for_previous();
    double sum = 0.0;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.a.ne);
        sum += (double)load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) ((double*)p.scratch)[blockIdx.x] = sum;
}
KERNEL(sum_parts, ReduceParams, 256) {
    wait_for_previous();
    double sum = 0.0;
    for (i64 n = threadIdx.x; n < p.count; n += blockDim.x) sum += ((const double*)p.scratch)[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store((u8*)p.y.data, p.y.type, (float)sum);
}

// One warp per row: pieces of 32, one after another.
KERNEL(cumsum, ReduceParams, 32) {
    wait_for_previous();
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        i64 i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        const float* row = (const float*)at(p.a, i1, i2, i3);
        float* out = (float*)at(p.y, i1, i2, i3);
        float before = 0.0f;
        for (i64 i = 0; i < p.a.ne[0]; i += 32) {
            float value = i + lane_number() < p.a.ne[0] ? row[i + lane_number()] : 0.0f;
            for (int step = 1; step < 32; step *= 2) {
                float lower = __shfl_up_sync(ALL_LANES, value, step);
                if (lane_number() >= step) value += lower;
            }
            value += before;
            if (i + lane_number() < p.a.ne[0]) out[i + lane_number()] = value;
            before = __shfl_sync(ALL_LANES, value, 31);
        }
    }
}

// The last of the largest elements of each row. NaN is never the largest, and forgets what was before it.
KERNEL(argmax, ReduceParams, 1024) {
    wait_for_previous();
    __shared__ float values[32];
    __shared__ i32 places[32];
    __shared__ i32 first;
    for (i64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        const float* row = (const float*)at(p.a, r, 0, 0);
        // What counts begins after the last NaN.
        i32 after = 0;
        for (i32 i = threadIdx.x; i < p.a.ne[0]; i += blockDim.x) {
            if (row[i] != row[i]) after = i + 1;
        }
        if (threadIdx.x == 0) first = 0;
        __syncthreads();
        if (after) atomicMax((u32*)&first, (u32)after);
        __syncthreads();
        float best = -INFINITY;
        i32 place = -1;
        for (i32 i = first + threadIdx.x; i < p.a.ne[0]; i += blockDim.x) {
            if (row[i] >= best) best = row[i], place = i;
        }
        for (int step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            i32 there = __shfl_xor_sync(ALL_LANES, place, step);
            if (there >= 0 && (other > best || (other == best && there > place) || place < 0)) best = other, place = there;
        }
        if (lane_number() == 0) values[warp_number()] = best, places[warp_number()] = place;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < (int)blockDim.x / 32; w++) {
                float other = values[w];
                i32 there = places[w];
                if (there >= 0 && (other > best || (other == best && there > place) || place < 0)) best = other, place = there;
            }
            if (place < 0) {
                // The row ends in NaN: what counts is what lies before.
                i32 i = (i32)p.a.ne[0] - 1;
                while (i >= 0 && row[i] != row[i]) i--;
                if (i >= 0) best = row[i], place = i;
                while (--i >= 0 && row[i] == row[i]) {
                    if (row[i] > best) best = row[i], place = i;
                }
            }
            ((i32*)p.y.data)[r] = place < 0 ? 0 : place;
        }
        __syncthreads();
    }
}

// The result is zero before.
KERNEL(count_equal, ReduceParams, 256) {
    wait_for_previous();
    u64 equal = 0;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.a.ne);
        equal += *(const i32*)at(p.a, i.i0, i.i1, i.i2, i.i3) == *(const i32*)at(p.b, i.i0, i.i1, i.i2, i.i3);
    }
    equal = block_sum(equal);
    if (threadIdx.x == 0) atomicAdd((u64*)p.y.data, equal);
}

// All tiles of a summed into y.
KERNEL(repeat_back, ReduceParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(n, p.y.ne);
        float sum = 0.0f;
        for (i64 i3 = i.i3; i3 < p.a.ne[3]; i3 += p.y.ne[3])
            for (i64 i2 = i.i2; i2 < p.a.ne[2]; i2 += p.y.ne[2])
                for (i64 i1 = i.i1; i1 < p.a.ne[1]; i1 += p.y.ne[1])
                    for (i64 i0 = i.i0; i0 < p.a.ne[0]; i0 += p.y.ne[0]) sum += *(const float*)at(p.a, i0, i1, i2, i3);
        *(float*)at(p.y, i.i0, i.i1, i.i2, i.i3) = sum;
    }
}
