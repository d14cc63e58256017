// Rotary positions, alone or together with the cache they go into.
//
// One launch does up to three tensors: queries rotated in place, keys rotated into the rows of a cache, values put there as
// they are. A thread has one pair of channels, or one channel that passes through.
#include "rope.cuh"

KERNEL(rope, RopeParams, 256) {
    wait_for_previous();
    next_may_start();
    const RopeJob& job = p.job[blockIdx.y];
    i64 ne0 = job.a.ne[0];
    int pairs = !job.rotates ? 0 : p.mode == VISION ? p.n_dims : p.n_dims / 2;
    i64 per_row = ne0 - pairs;
    for (i64 n = thread_number(); n < job.count; n += thread_count()) {
        i64 c = n % per_row, r = n / per_row;
        i64 head = r % job.a.ne[1], token = r / job.a.ne[1] % job.a.ne[2], batch = r / (job.a.ne[1] * job.a.ne[2]);
        const u8* from = at(job.a, head, token, batch);
        u8* to;
        i64 shift = 0;
        if (job.rows) {
            i64 row = row_of_cache(p, job, token);
            if (row < 0) continue;
            to = at(job.y, row, 0, 0), shift = head * ne0;
        } else {
            to = at(job.y, head, token, batch);
        }
        i32 size_a = job.a.type == F32 ? 4 : 2, size_y = job.y.type == F32 ? 4 : 2;
        if (c < pairs) {
            int pair = (int)c;
            i64 i, j;
            if (p.mode == NORMAL) {
                i = p.first_channel + 2 * pair, j = i + 1;
            } else {
                i = p.first_channel + pair, j = i + pairs;
            }
            F2 turn = turn_of(p, token, pair);
            float cosine = turn.x, sine = turn.y;
            float x = load(from + i * size_a, job.a.type), y = load(from + j * size_a, job.a.type);
            store(to + (shift + i) * size_y, job.y.type, x * cosine - y * sine);
            store(to + (shift + j) * size_y, job.y.type, x * sine + y * cosine);
        } else {
            // Channels before and after those that rotate.
            i64 i = c - pairs;
            if (i >= p.first_channel) i += 2 * pairs;
            if (!job.rotates) i = c;
            store(to + (shift + i) * size_y, job.y.type, load(from + i * size_a, job.a.type));
        }
    }
}
