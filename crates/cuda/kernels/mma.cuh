// Products of small matrices by a whole warp: d += a b, a of 16 x 16, b of 16 x 8 16-bit numbers, d of 16 x 8 32-bit ones.
//
// Lane l, with g = l / 4 and j = l % 4, has of a: rows g and g + 8 (words 0 and 1), columns 2 j and 2 j + 1; and the same for
// columns 2 j + 8 and 2 j + 9 (words 2 and 3); of b: rows 2 j and 2 j + 1 (the first word), 2 j + 8 and 2 j + 9 (the second),
// column g; of d: row g, columns 2 j and 2 j + 1 (0 and 1), and row g + 8 (2 and 3).
#pragma once

#include "base.cuh"

#ifdef OXCART_EMULATE
template <bool BRAIN> DEVICE void emulate_mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Words {
        u32 a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    auto& warp = emulate::offer(mine);
    auto number = [](u32 word, int half) { return BRAIN ? from_brain((u16)(word >> 16 * half)) : from_half((u16)(word >> 16 * half)); };
    int g = lane_number() / 4, j = lane_number() % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + 8 * (i / 2), column = 2 * j + i % 2;
        for (int k = 0; k < 16; k++) {
            Words left = emulate::offered<Words>(warp, row % 8 * 4 + k % 8 / 2), right = emulate::offered<Words>(warp, column * 4 + k % 8 / 2);
            d[i] += number(left.a[row / 8 + 2 * (k / 8)], k % 2) * number(right.b[k / 8], k % 2);
        }
    }
    emulate::taken();
}
DEVICE void mma_half(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { emulate_mma<false>(d, a, b0, b1); }
DEVICE void mma_brain(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { emulate_mma<true>(d, a, b0, b1); }
#else
DEVICE void mma_half(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ARCH >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
#if ARCH >= 800
DEVICE void mma_brain(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
#endif

// Four matrices of 8 x 8 16-bit numbers from shared memory, as the product above wants b: lane l names where row l % 8 of matrix
// l / 8 begins. Word i of lane l is row l / 4, columns 2 (l % 4) and the next, of matrix i; turned around, it is column l / 4,
// rows 2 (l % 4) and the next.
#ifdef OXCART_EMULATE
template <bool TURNED> DEVICE void emulate_matrices(u32 (&out)[4], const u8* row) {
    auto& warp = emulate::offer(row);
    int g = lane_number() / 4, j = lane_number() % 4;
    for (int i = 0; i < 4; i++) {
        if (TURNED) {
            const u16 *first = (const u16*)emulate::offered<const u8*>(warp, 8 * i + 2 * j), *second = (const u16*)emulate::offered<const u8*>(warp, 8 * i + 2 * j + 1);
            out[i] = (u32)first[g] | (u32)second[g] << 16;
        } else {
            out[i] = ((const u32*)emulate::offered<const u8*>(warp, 8 * i + g))[j];
        }
    }
    emulate::taken();
}
DEVICE void load_matrices(u32 (&out)[4], const u8* row) { emulate_matrices<false>(out, row); }
DEVICE void load_matrices_turned(u32 (&out)[4], const u8* row) { emulate_matrices<true>(out, row); }
#else
DEVICE void load_matrices(u32 (&out)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEVICE void load_matrices_turned(u32 (&out)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
#endif
