// What all kernels of attention take, and what a token may see.
#pragma once

#include "base.cuh"

struct AttentionParams {
    Tensor q, k, v, mask, y;
    u64 sinks;      // 0 for none
    i64 keys;
    i64 group;      // query heads per head of keys
    i64 rows;       // queries per head of keys: tokens times group
    i64 splits;     // blocks that share the keys of a query
    u64 parts;      // scratch memory for what they find
    u64 counters;   // zeros; they are zeros again afterwards
    float scale, softcap, max_bias, m0, m1;
    i32 heads_log2;
    i32 by_rows;    // warps have queries of their own
    i32 window, chunk;
    i32 unused;
    u64 table;      // pages by position, a row for each sequence
    i64 table_step; // bytes from row to row
    i64 pages, sequences, cells;
    u64 owners;     // sequence and position of each token
    i64 owners_step;
    u64 faults;
};

const int PAGE = 64;

const float LOG2_E = 1.4426950408889634f;

DEVICE float slope_of(i64 head, const AttentionParams& p) {
    if (p.max_bias <= 0.0f) return 1.0f;
    i64 power = (i64)1 << p.heads_log2;
    return head < power ? powf(p.m0, (float)(head + 1)) : powf(p.m1, (float)(2 * (head - power) + 1));
}

// What a token may see.
struct Owner {
    i32 sequence;  // negative for none
    i32 first, last;
};

DEVICE Owner owner_of(const AttentionParams& p, i64 token) {
    const i32* owner = (const i32*)(p.owners + token * p.owners_step);
    Owner out = {owner[0], 0, owner[1]};
    if (out.sequence < 0) return out;
    if (out.sequence >= p.sequences || out.last < 0 || out.last >= p.pages * PAGE) {
        report(p.faults, BAD_STATE);
        out.sequence = -1;
        return out;
    }
    if (p.window > 0) out.first = out.last + 1 > p.window ? out.last + 1 - p.window : 0;
    if (p.chunk > 0) {
        i32 start = out.last / p.chunk * p.chunk;
        out.first = start > out.first ? start : out.first;
    }
    return out;
}

// The cell of a position's page, or -1 where the table names none that exists.
DEVICE i64 page_start(const AttentionParams& p, i32 sequence, i64 position) {
    i32 page = ((const i32*)(p.table + sequence * p.table_step))[position / PAGE];
    if (page < 0 || (i64)(page + 1) * PAGE > p.cells) {
        report(p.faults, BAD_STATE);
        return -1;
    }
    return (i64)page * PAGE + position % PAGE;
}

// One over the sum of weights, with the weight that belongs to no key.
DEVICE float factor_of(const AttentionParams& p, i64 head, i64 row, float most, float sum, float& shrink) {
    shrink = 1.0f;
    if (p.sinks) {
        float sink = ((const float*)p.sinks)[head * p.group + row % p.group] * LOG2_E;
        float larger = fmaxf(most, sink);
        shrink = most == -INFINITY ? 0.0f : fast_exp2(most - larger);
        sum = sum * shrink + fast_exp2(sink - larger);
    }
    return sum > 0.0f ? 1.0f / sum : 0.0f;
}
