// Products that share columns are one launch: up to three matrices of one type, with what is added to their results.
#pragma once

#include "base.cuh"

struct Part {
    u64 weights;
    u64 y;
    u64 bias;      // 0 for none; one number per row
    u64 residual;  // 0 for none; laid out as y
    i32 rows, tiles;
    i64 y_stride;  // elements from column to column of results
};
