// How far channels turn at a position, and what a launch that turns them takes.
//
// Angles are a running product of 32-bit numbers, as on the CPU device: a power per channel would be more exact and different.
#pragma once

#include "base.cuh"

enum RopeMode : i32 { NORMAL, NEOX, MROPE, VISION, IMROPE };

struct RopeJob {
    Tensor a, y;
    u64 rows;        // row numbers of y by token, where it is a cache; 0 where y is as a
    i32 rows_type;   // i32 or i64
    i32 rotates;
    i64 per_token;   // threads: pairs and single channels of a token
};

struct RopeParams {
    RopeJob job[3];
    u64 positions;
    u64 factors;  // 0 where there are none
    i64 tokens;
    u64 faults;
    i32 mode, n_dims, first_channel, sections[4];
    float step, freq_scale, ext_factor, fade_first, fade_last, size, signed_size;
};

DEVICE float stretched(const RopeParams& p, float angle, int pair) {
    float interpolated = __fmul_rn(p.freq_scale, angle);
    if (p.ext_factor == 0.0f) return interpolated;
    float along = ((float)pair - p.fade_first) / fmaxf(p.fade_last - p.fade_first, 0.001f);
    float ramp = (1.0f - fminf(1.0f, fmaxf(0.0f, along))) * p.ext_factor;
    return __fadd_rn(__fmul_rn(interpolated, 1.0f - ramp), __fmul_rn(angle, ramp));
}

// The angle of a pair before factors and stretching.
DEVICE float running_angle(const RopeParams& p, i64 token, int pair) {
    const i32* positions = (const i32*)p.positions;
    if (p.mode == NORMAL || p.mode == NEOX) {
        float angle = (float)positions[token];
        for (int i = 0; i < pair; i++) angle = __fmul_rn(angle, p.step);
        return angle;
    }
    int begins[4] = {0, p.sections[0], p.sections[0] + p.sections[1], p.sections[0] + p.sections[1] + p.sections[2]};
    int total = begins[3] + p.sections[3];
    float start[4], running[4], angle = 0.0f;
#pragma unroll
    for (int s = 0; s < 4; s++) running[s] = start[s] = (float)positions[s * p.tokens + token];
    for (int i = 0; i <= pair; i++) {
        int here = i % total, which = 0;
        if (p.mode == IMROPE) {
            int phase = here % 3;
            which = phase == 0 && here < 3 * p.sections[0] ? 0 : phase == 1 && here < 3 * p.sections[1] ? 1 : phase == 2 && here < 3 * p.sections[2] ? 2 : 3;
        } else {
            if (p.mode == VISION) {
                // Angles start anew where their section begins; of several that begin at once, only the first does.
                bool found = false;
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    if (!found && begins[s] == here) running[s] = start[s], found = true;
                }
            }
            which = (here >= begins[1]) + (here >= begins[2]) + (here >= begins[3]);
        }
        angle = which == 0 ? running[0] : which == 1 ? running[1] : which == 2 ? running[2] : running[3];
#pragma unroll
        for (int s = 0; s < 4; s++) running[s] = __fmul_rn(running[s], p.step);
    }
    return angle;
}

// Cosine and sine of a pair's angle, with the sizes that a law gives them.
DEVICE F2 turn_of(const RopeParams& p, i64 token, int pair) {
    float angle = running_angle(p, token, pair);
    if (p.factors) angle = angle / ((const float*)p.factors)[pair];
    float sine, cosine;
    sincosf(stretched(p, angle, pair), &sine, &cosine);
    F2 turn = {cosine * p.size, sine * p.signed_size};
    return turn;
}

// The row of a cache that a token goes to; -1 where there is none.
DEVICE i64 row_of_cache(const RopeParams& p, const RopeJob& job, i64 token) {
    i64 row = job.rows_type == I64 ? ((const i64*)job.rows)[token] : ((const i32*)job.rows)[token];
    if (row >= 0 && row < job.y.ne[1]) return row;
    report(p.faults, BAD_ROW);
    return -1;
}
