// Elements and blocks moved: copies between layouts, joins, tiles, shifts, padding, windows of images.
#include "base.cuh"

struct MoveParams {
    Tensor a, y;
    i64 count;  // pieces: elements or blocks
    i32 size;   // bytes of a piece
    i32 packed; // both are: pieces follow each other
};

DEVICE void move_piece(u8* to, const u8* from, i32 size) {
    switch (size) {
        case 1: *to = *from; break;
        case 2: *(u16*)to = *(const u16*)from; break;
        case 4: *(u32*)to = *(const u32*)from; break;
        case 8: *(u64*)to = *(const u64*)from; break;
        case 16: *(U4*)to = *(const U4*)from; break;
        default:
            // Blocks of odd sizes; those of even sizes are aligned to two bytes.
            if (size & 1) {
                for (i32 i = 0; i < size; i++) to[i] = from[i];
            } else {
                for (i32 i = 0; i < size; i += 2) *(u16*)(to + i) = *(const u16*)(from + i);
            }
    }
}

// Piece n of a to piece n of y, in logical order; extents along dimension 0 count pieces.
KERNEL(move, MoveParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        if (p.packed) {
            move_piece((u8*)p.y.data + n * p.size, (const u8*)p.a.data + n * p.size, p.size);
        } else {
            Index i = place_of(n, p.a.ne), o = place_of(n, p.y.ne);
            move_piece(at(p.y, o.i0, o.i1, o.i2, o.i3), at(p.a, i.i0, i.i1, i.i2, i.i3), p.size);
        }
    }
}

// Rows and columns exchanged, for elements of 2 or 4 bytes: tiles go through shared memory so that both sides are read and
// written in order. y[i1, i0] = a[i0, i1], where a's dimension 1 is the dense one; the grid's z counts dimensions 2 and 3.
template <class T> DEVICE void transposed(const MoveParams& p) {
    __shared__ T tile[32][33];
    i64 i2 = blockIdx.z % p.a.ne[2], i3 = blockIdx.z / p.a.ne[2];
    i64 column = (i64)blockIdx.x * 32, row = (i64)blockIdx.y * 32;
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int j = y; j < 32; j += 8) {
        i64 i0 = row + j, i1 = column + x;
        if (i0 < p.a.ne[0] && i1 < p.a.ne[1]) tile[j][x] = *(const T*)at(p.a, i0, i1, i2, i3);
    }
    __syncthreads();
    for (int j = y; j < 32; j += 8) {
        i64 i0 = row + x, i1 = column + j;
        if (i0 < p.a.ne[0] && i1 < p.a.ne[1]) *(T*)at(p.y, i0, i1, i2, i3) = tile[x][j];
    }
}
KERNEL(transpose_2, MoveParams, 256) {
    wait_for_previous();
    transposed<u16>(p);
}
KERNEL(transpose_4, MoveParams, 256) {
    wait_for_previous();
    transposed<u32>(p);
}

// Element n of a to element n of y, converted.
KERNEL(convert, MoveParams, 256) {
    wait_for_previous();
    i64 size_a = p.a.type == F32 || p.a.type == I32 ? 4 : 2, size_y = p.y.type == F32 || p.y.type == I32 ? 4 : 2;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        if (p.packed) {
            store((u8*)p.y.data + n * size_y, p.y.type, load((const u8*)p.a.data + n * size_a, p.a.type));
        } else {
            Index i = place_of(n, p.a.ne), o = place_of(n, p.y.ne);
            store(at(p.y, o.i0, o.i1, o.i2, o.i3), p.y.type, load(at(p.a, i.i0, i.i1, i.i2, i.i3), p.a.type));
        }
    }
}

enum Arrange : i32 { CONCAT, REPEAT, ROLL, PAD, PAD_CIRCULAR, PAD_REFLECT, WIN_PART, WIN_UNPART, REL_POS };

struct ArrangeParams {
    Tensor a, b, y;
    i64 count;
    i64 left[4];  // what is before index 0; shifts; of windows, their side and how many fit along x
    i32 op;
    i32 dim;
    i32 size;  // bytes of a piece
    i32 unused;
};

DEVICE i64 wrapped(i64 i, i64 ne) {
    i %= ne;
    return i < 0 ? i + ne : i;
}

// Every piece of y is fetched from where it comes, or is zero.
KERNEL(arrange, ArrangeParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        i64 i[4] = {o.i0, o.i1, o.i2, o.i3};
        u8* to = at(p.y, i[0], i[1], i[2], i[3]);
        const Tensor* from = &p.a;
        bool inside = true;
        switch (p.op) {
            case CONCAT:
#pragma unroll
                for (int d = 0; d < 4; d++) {
                    if (d == p.dim && i[d] >= p.a.ne[d]) i[d] -= p.a.ne[d], from = &p.b;
                }
                break;
            case REPEAT:
#pragma unroll
                for (int d = 0; d < 4; d++) i[d] %= p.a.ne[d];
                break;
            case ROLL:
            case PAD_CIRCULAR:
#pragma unroll
                for (int d = 0; d < 4; d++) i[d] = wrapped(i[d] - p.left[d], p.a.ne[d]);
                break;
            case PAD:
#pragma unroll
                for (int d = 0; d < 4; d++) {
                    i[d] -= p.left[d];
                    inside = inside && i[d] >= 0 && i[d] < p.a.ne[d];
                }
                break;
            case PAD_REFLECT: {
                i64 at = i[0] - p.left[0], last = p.a.ne[0] - 1;
                at = at < 0 ? -at : at;
                i[0] = at > last ? 2 * last - at : at;
                break;
            }
            case WIN_PART: {
                i64 side = p.left[0], across = p.left[1];
                i64 x = i[3] % across * side + i[1], y = i[3] / across * side + i[2];
                inside = x < p.a.ne[1] && y < p.a.ne[2];
                i[1] = x, i[2] = y, i[3] = 0;
                break;
            }
            case WIN_UNPART: {
                i64 side = p.left[0], across = p.left[1];
                i[3] = i[2] / side * across + i[1] / side;
                i[1] %= side, i[2] %= side;
                break;
            }
            case REL_POS:
                i[1] = p.y.ne[1] - 1 - i[1] + i[2];
                i[2] = 0;
                break;
        }
        if (inside) {
            move_piece(to, at(*from, i[0], i[1], i[2], i[3]), p.size);
        } else {
            *(float*)to = 0.0f;
        }
    }
}

struct RelPosParams {
    Tensor a, pw, ph, y;
    i64 count;
    i64 side;
};

// y[h * side + w, r] = a + ph[h, r] + pw[w, r]
KERNEL(add_rel_pos, RelPosParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 square = p.side * p.side, r = n / square, i = n % square;
        float h = ((const float*)p.ph.data)[r * p.side + i / p.side];
        float w = ((const float*)p.pw.data)[r * p.side + i % p.side];
        ((float*)p.y.data)[n] = ((const float*)p.a.data)[n] + h + w;
    }
}
