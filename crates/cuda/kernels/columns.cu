// Columns prepared once for all blocks of a product, where there are several.
#include "column.cuh"

struct ColumnsParams {
    MatvecParams of;
    u64 to;
    i32 per;  // plain numbers of a piece of 16 bytes of weights; 0 for bytes
    i32 unused;
};

// Columns as `matvec` wants them in shared memory, one block each.
KERNEL(prepare_columns, ColumnsParams, 256) {
    wait_for_previous();
    next_may_start();
    const float* x = (const float*)(p.of.x + blockIdx.x * p.of.x_stride);
    if (p.per == 0) {
        column_to_bytes(p.of, x, (u8*)p.to + (i64)blockIdx.x * column_bytes((int)((p.of.k + 63) / 64)));
    } else if (p.per == 4) {
        column_to_floats<4>(p.of, x, (u8*)p.to + (i64)blockIdx.x * p.of.k * 4);
    } else {
        column_to_floats<8>(p.of, x, (u8*)p.to + (i64)blockIdx.x * p.of.k * 4);
    }
}
