// What products of many columns take, and the columns they take.
#pragma once

#include "base.cuh"

struct TilesParams {
    u64 weights;
    i64 row_bytes;
    i64 m, k;
    u64 x;          // columns of 16-bit numbers, each of `x_step` bytes
    i64 x_step;
    i64 columns;
    u64 y;
    i64 y_step;     // elements from column to column
    // Of experts: columns in the order of their experts, where those of each expert begin, and where its tiles do.
    u64 order;      // 0 for one matrix and columns as they are
    u64 starts, tiles;
    i64 experts, expert_bytes;
    i64 used, x_per_token;
    u64 bias, residual;  // 0 for none; one number per row, and laid out as y
};

struct ExpandParams {
    u64 weights;
    i64 row_bytes;
    i64 units;     // of a row
    i64 count;     // units in all
    u64 to;        // rows of 16-bit numbers
    i64 to_step;   // bytes from row to row
};
