// Rotary positions, alone or together with the cache they go into.
//
// One launch does up to three tensors: queries rotated in place, keys rotated into the rows of a cache, values put there as
// they are. A block has channels of one token, or several tokens in turn, of one tensor or, where there are many tokens, of all: how far
// pairs turn is the same for all heads, so it is computed once. A thread has one pair of channels, or one channel that passes through,
// and some of them at a time, so that their reads are under way together.
#include "rope.cuh"

// Pairs whose turns a block keeps; what comes after them is computed anew for every head.
const int KEPT = 256;
const int AT_ONCE = 4;

KERNEL(rope, RopeParams, 256) {
    __shared__ F2 kept[KEPT];
    wait_for_previous();
    next_may_start();
    i64 tokens = 0;
    for (int which = blockIdx.y; which < 3 && p.job[which].per_token; which += gridDim.y) tokens = at_least(tokens, p.job[which].a.ne[2] * p.job[which].a.ne[3]);
    for (i64 t = blockIdx.z; t < tokens; t += gridDim.z) {
        bool known = false;
        for (int which = blockIdx.y; which < 3 && p.job[which].per_token; which += gridDim.y) {
            const RopeJob& job = p.job[which];
            if (t >= job.a.ne[2] * job.a.ne[3]) continue;
            int ne0 = (int)job.a.ne[0];
            int pairs = !job.rotates ? 0 : p.mode == VISION ? p.n_dims : p.n_dims / 2;
            int per_row = ne0 - pairs;
            i32 size_a = job.a.type == F32 ? 4 : 2, size_y = job.y.type == F32 ? 4 : 2;
            i64 batch = job.a.ne[3] == 1 ? 0 : t / job.a.ne[2], token = t - batch * job.a.ne[2];
            if (pairs && !known) {
                __syncthreads();
                for (int pair = threadIdx.x; pair < pairs && pair < KEPT; pair += blockDim.x) kept[pair] = turn_of(p, token, pair);
                __syncthreads();
                known = true;
            }
            i64 row = job.rows ? row_of_cache(p, job, token) : 0;
            if (row < 0) continue;
            u32 step = gridDim.x * blockDim.x;
            for (u32 first = blockIdx.x * blockDim.x + threadIdx.x; first < (u32)job.per_token; first += AT_ONCE * step) {
                float x[AT_ONCE], y[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
                    u32 n = first + k * step;
                    if (n >= (u32)job.per_token) break;
                    int head = (int)(n / (u32)per_row), c = (int)(n - (u32)head * (u32)per_row);
                    const u8* from = at(job.a, head, token, batch);
                    int i = c < pairs ? p.first_channel + (p.mode == NORMAL ? 2 * c : c) : c - pairs;
                    // Channels before and after those that rotate.
                    if (c >= pairs && pairs && i >= p.first_channel) i += 2 * pairs;
                    x[k] = load(from + i * size_a, job.a.type);
                    y[k] = c < pairs ? load(from + (p.mode == NORMAL ? i + 1 : i + pairs) * size_a, job.a.type) : 0.0f;
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
                    u32 n = first + k * step;
                    if (n >= (u32)job.per_token) break;
                    int head = (int)(n / (u32)per_row), c = (int)(n - (u32)head * (u32)per_row);
                    u8* to = job.rows ? at(job.y, row, 0, 0) + (i64)head * ne0 * size_y : at(job.y, head, token, batch);
                    int i = c < pairs ? p.first_channel + (p.mode == NORMAL ? 2 * c : c) : c - pairs;
                    if (c >= pairs) {
                        if (pairs && i >= p.first_channel) i += 2 * pairs;
                        store(to + i * size_y, job.y.type, x[k]);
                        continue;
                    }
                    F2 turn = c < KEPT ? kept[c] : turn_of(p, token, c);
                    store(to + i * size_y, job.y.type, x[k] * turn.x - y[k] * turn.y);
                    store(to + (p.mode == NORMAL ? i + 1 : i + pairs) * size_y, job.y.type, x[k] * turn.y + y[k] * turn.x);
                }
            }
        }
    }
}
