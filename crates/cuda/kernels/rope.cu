// Rotary positions, alone or together with the cache they go into.
//
// One launch does up to three tensors: queries rotated in place, keys rotated into the rows of a cache, values put there as
// they are. A block has channels of one token, or several tokens in turn: how far pairs turn is the same for all heads, so it is
// computed once. A thread has one pair of channels, or one channel that passes through.
#include "rope.cuh"

// Pairs whose turns a block keeps; what comes after them is computed anew for every head.
const int KEPT = 256;

KERNEL(rope, RopeParams, 256) {
    __shared__ F2 kept[KEPT];
    wait_for_previous();
    next_may_start();
    const RopeJob& job = p.job[blockIdx.y];
    int ne0 = (int)job.a.ne[0], heads = (int)job.a.ne[1];
    int pairs = !job.rotates ? 0 : p.mode == VISION ? p.n_dims : p.n_dims / 2;
    int per_row = ne0 - pairs;
    i32 size_a = job.a.type == F32 ? 4 : 2, size_y = job.y.type == F32 ? 4 : 2;
    for (i64 t = blockIdx.z; t < job.a.ne[2] * job.a.ne[3]; t += gridDim.z) {
        i64 batch = job.a.ne[3] == 1 ? 0 : t / job.a.ne[2], token = t - batch * job.a.ne[2];
        if (pairs) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < pairs && pair < KEPT; pair += blockDim.x) kept[pair] = turn_of(p, token, pair);
            __syncthreads();
        }
        i64 row = job.rows ? row_of_cache(p, job, token) : 0;
        if (row < 0) continue;
        for (u32 n = blockIdx.x * blockDim.x + threadIdx.x; n < (u32)job.per_token; n += gridDim.x * blockDim.x) {
            int head = (int)(n / (u32)per_row), c = (int)(n - (u32)head * (u32)per_row);
            const u8* from = at(job.a, head, token, batch);
            u8* to = job.rows ? at(job.y, row, 0, 0) + (i64)head * ne0 * size_y : at(job.y, head, token, batch);
            if (c < pairs) {
                int i = p.first_channel + (p.mode == NORMAL ? 2 * c : c), j = p.mode == NORMAL ? i + 1 : i + pairs;
                F2 turn = c < KEPT ? kept[c] : turn_of(p, token, c);
                float x = load(from + i * size_a, job.a.type), y = load(from + j * size_a, job.a.type);
                store(to + i * size_y, job.y.type, x * turn.x - y * turn.y);
                store(to + j * size_y, job.y.type, x * turn.y + y * turn.x);
            } else {
                // Channels before and after those that rotate.
                int i = c - pairs;
                if (pairs && i >= p.first_channel) i += 2 * pairs;
                store(to + i * size_y, job.y.type, load(from + i * size_a, job.a.type));
            }
        }
    }
}
