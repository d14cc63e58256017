// What products of some columns take, and how their columns lie.
#pragma once

#include "part.cuh"

// Columns are made ready once for all blocks, in groups of 16, 32 or 64, unit after unit of 32 numbers, so that a block copies what
// it needs as it is: eight columns of a unit are 512 bytes, in which lane l of a warp finds 16 bytes that are the matrix
// instruction's: eight neighbours of column l / 4, which are two steps of the instruction.
DEVICE constexpr int unit_bytes(int columns) { return 64 * columns; }

struct BandsParams {
    Part part[3];
    i64 row_bytes;
    u64 x;            // columns as above
    i64 x_group;      // bytes of a group of them
    u64 x_scales;     // what results of each column are multiplied by
    i32 k, columns;
    i32 tiles, steps; // bands of rows of all parts, and steps of a row
    i32 row_step;     // bytes from row to row of a stage
    i32 stage_bytes;  // of a step's rows and columns
    i32 stages;
    i32 early;        // weights may be read before the kernel before has ended
    i32 aligned;      // whether every step of a row begins at a multiple of 16 bytes
    i32 unused;
    u64 sums;         // scratch memory for bands that several blocks share
    u64 counters;     // zeros; they are zeros again afterwards
};

struct BandColumnsParams {
    u64 x;
    i64 x_stride;     // bytes from column to column
    u64 norm;         // weights of a norm; 0 for none
    u64 to;
    i64 group_bytes;
    u64 scales;       // one number per column
    i32 k, columns;
    i32 group;        // columns of a group
    i32 brain;        // brain floats, which need no scale; otherwise half precision
    i32 norms;        // whether columns are normalized first
    float eps;
};
