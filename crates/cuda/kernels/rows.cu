// Rows picked and placed by number, and copies that take blocks apart or make them.
#include "encode.cuh"
#include "quant.cuh"

struct RowsParams {
    Tensor a;     // table, or values
    Tensor rows;  // row numbers, i32 or i64
    Tensor y;     // result, or target
    i64 count;    // pieces in all: elements, or units or blocks of 32
    i64 width;    // pieces of a row
    u64 faults;
};

DEVICE i64 number_at(const Tensor& rows, i64 i0, i64 i1, i64 i2) {
    const u8* from = at(rows, i0, i1, i2, 0);
    return rows.type == I64 ? *(const i64*)from : *(const i32*)from;
}

// y[:, j, k, l] = a[:, rows[j, k, l], k, l], plain elements.
KERNEL(get_rows, RowsParams, 256) {
    wait_for_previous();
    i64 size = p.a.type == F32 || p.a.type == I32 ? 4 : 2;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 i0 = n % p.width, r = n / p.width;
        i64 j = r % p.y.ne[1], k = r / p.y.ne[1] % p.y.ne[2], l = r / (p.y.ne[1] * p.y.ne[2]);
        i64 row = number_at(p.rows, j, k, l);
        if (row < 0 || row >= p.a.ne[1]) {
            report(p.faults, BAD_ROW);
            continue;
        }
        const u8* from = at(p.a, row, k, l) + i0 * size;
        float* to = (float*)at(p.y, j, k, l) + i0;
        if (p.a.type == I32) {
            *(i32*)to = *(const i32*)from;
        } else {
            *to = load(from, p.a.type);
        }
    }
}

// A unit of a row to 32 numbers.
struct UnitToNumbers {
    const u8* row;
    i64 unit;
    float* to;
    template <class F> DEVICE_METHOD void run() {
        const int units = F::BLOCK / 32;
        Unit u;
        F::unit(row + unit / units * F::BYTES, (int)(unit % units), u);
#pragma unroll
        for (int e = 0; e < 32; e++) to[e] = element<F>(u, e);
    }
};

KERNEL(get_rows_blocks, RowsParams, 128) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 unit = n % p.width, r = n / p.width;
        i64 j = r % p.y.ne[1], k = r / p.y.ne[1] % p.y.ne[2], l = r / (p.y.ne[1] * p.y.ne[2]);
        i64 row = number_at(p.rows, j, k, l);
        if (row < 0 || row >= p.a.ne[1]) {
            report(p.faults, BAD_ROW);
            continue;
        }
        UnitToNumbers body = {at(p.a, row, k, l), unit, (float*)at(p.y, j, k, l) + 32 * unit};
        with_format(p.a.type, body);
    }
}

// y[:, rows[j, k mod, l mod], k, l] = a[:, j, k, l], plain elements.
KERNEL(set_rows, RowsParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 i0 = n % p.width, r = n / p.width;
        i64 j = r % p.a.ne[1], k = r / p.a.ne[1] % p.a.ne[2], l = r / (p.a.ne[1] * p.a.ne[2]);
        i64 row = number_at(p.rows, j, k % p.rows.ne[1], l % p.rows.ne[2]);
        if (row < 0 || row >= p.y.ne[1]) {
            report(p.faults, BAD_ROW);
            continue;
        }
        const u8* from = at(p.a, j, k, l) + i0 * (p.a.type == F32 ? 4 : 2);
        u8* to = at(p.y, row, k, l) + i0 * (p.y.type == F32 || p.y.type == I32 ? 4 : 2);
        if (p.a.type == F16 && p.y.type == F16) {
            *(u16*)to = *(const u16*)from;
        } else {
            store(to, p.y.type, load(from, p.a.type));
        }
    }
}

DEVICE void load_32(float* x, const u8* from, i32 type) {
    i32 size = type == F32 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < 32; i++) x[i] = load(from + i * size, type);
}
DEVICE i32 block_bytes(i32 type) {
    switch (type) {
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        default: return 18;
    }
}

KERNEL(set_rows_blocks, RowsParams, 128) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 block = n % p.width, r = n / p.width;
        i64 j = r % p.a.ne[1], k = r / p.a.ne[1] % p.a.ne[2], l = r / (p.a.ne[1] * p.a.ne[2]);
        i64 row = number_at(p.rows, j, k % p.rows.ne[1], l % p.rows.ne[2]);
        if (row < 0 || row >= p.y.ne[1]) {
            report(p.faults, BAD_ROW);
            continue;
        }
        float x[32];
        load_32(x, at(p.a, j, k, l) + 32 * block * (p.a.type == F32 ? 4 : 2), p.a.type);
        encode_block(at(p.y, row, k, l) + block * block_bytes(p.y.type), p.y.type, x);
    }
}

// y = 0 before; y[:, rows[j]] += a[:, j]. A thread has a column of y, so that sums have an order.
KERNEL(get_rows_back, RowsParams, 256) {
    wait_for_previous();
    for (i64 i0 = thread_number(); i0 < p.y.ne[0]; i0 += thread_count()) {
        for (i64 j = 0; j < p.rows.ne[0]; j++) {
            i64 row = number_at(p.rows, j, 0, 0);
            if (row < 0 || row >= p.y.ne[1]) {
                report(p.faults, BAD_ROW);
                continue;
            }
            *((float*)at(p.y, row, 0, 0) + i0) += load(at(p.a, i0, j, 0, 0), p.a.type);
        }
    }
}

struct RecodeParams {
    Tensor a, y;
    i64 count;   // units or blocks of 32
    i64 width;   // of a row of the blocks
    i32 packed;  // y is
    i32 unused;
};

// Blocks to numbers: unit n of a, to elements 32 n and on of y.
KERNEL(decode, RecodeParams, 128) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 unit = n % p.width, r = n / p.width;
        i64 i1 = r % p.a.ne[1], i2 = r / p.a.ne[1] % p.a.ne[2], i3 = r / (p.a.ne[1] * p.a.ne[2]);
        float* to = (float*)p.y.data + 32 * n;
        if (!p.packed) {
            Index o = place_of(32 * n, p.y.ne);
            to = (float*)at(p.y, o.i0, o.i1, o.i2, o.i3);
        }
        UnitToNumbers body = {at(p.a, i1, i2, i3), unit, to};
        with_format(p.a.type, body);
    }
}

// Numbers to blocks: elements 32 n and on of a, to block n of y, which is packed.
KERNEL(encode, RecodeParams, 128) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index i = place_of(32 * n, p.a.ne);
        float x[32];
        load_32(x, at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type);
        encode_block((u8*)p.y.data + n * block_bytes(p.y.type), p.y.type, x);
    }
}
