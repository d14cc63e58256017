// What every kernel is built from: plain types, tensors as kernels see them, 16-bit numbers, warps and blocks.
//
// A kernel is written once and compiled twice: by NVRTC for cards, and by a C++ compiler together with `emulate.h`, which
// runs it thread by thread on a processor so that tests need no card. So nothing here includes a system header, and
// whatever is an instruction of its own on a card has a twin in `emulate.h`.
//
// Invariant: a kernel takes one structure by value, whose twin in Rust has the same fields; every launch is a whole number
// of warps; all lanes of a warp take part in warp operations.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef OXCART_EMULATE
#include "emulate.h"
#define ARCH 800
#else
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define TABLE static __device__ const
#define ARCH __CUDA_ARCH__
#define INFINITY __int_as_float(0x7f800000)

// A kernel of blocks of at most THREADS threads, of which BLOCKS should fit on a multiprocessor.
#define KERNEL_BLOCKS(name, Params, THREADS, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name(const __grid_constant__ Params p)
#define KERNEL(name, Params, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Params p)

// Memory that a block shares, as much as the launch asks for.
extern __shared__ __align__(128) u8 dynamic_shared[];
#endif

struct alignas(16) U4 {
    u32 x, y, z, w;
};
struct alignas(8) U2 {
    u32 x, y;
};
struct alignas(16) F4 {
    float x, y, z, w;
};
struct alignas(8) F2 {
    float x, y;
};

// Waits until the kernels before have written what they write, where kernels may overlap; nothing that another kernel of
// the same plan writes may be read before. `next_may_start` lets the kernel after begin with what it may do early.
DEVICE void wait_for_previous() {
#if !defined(OXCART_EMULATE) && ARCH >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void next_may_start() {
#if !defined(OXCART_EMULATE) && ARCH >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Types by the numbers that the Rust side gives them: its order of `DType`.
enum Type : i32 {
    F32, F16, BF16, F64, I8, I16, I32, I64,
    Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4,
};

// A tensor: where it is, extents, byte strides. Dimensions beyond the last have extent 1.
struct Tensor {
    u64 data;
    i64 ne[4];
    i64 nb[4];
    i32 type;
    i32 unused;
};

DEVICE u8* at(const Tensor& t, i64 i1, i64 i2, i64 i3) {
    return (u8*)t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}
DEVICE u8* at(const Tensor& t, i64 i0, i64 i1, i64 i2, i64 i3) { return at(t, i1, i2, i3) + i0 * t.nb[0]; }

struct Index {
    i64 i0, i1, i2, i3;
};

// The place of element `n` in logical order.
DEVICE Index place_of(i64 n, const i64* ne) {
    Index at;
    if ((u64)n < 0x80000000ull && (u64)ne[0] < 0x80000000ull && (u64)ne[1] < 0x80000000ull && (u64)ne[2] < 0x80000000ull) {
        // Divisions of 32 bits are several times as fast.
        u32 m = (u32)n, e0 = (u32)ne[0], e1 = (u32)ne[1], e2 = (u32)ne[2];
        u32 q = m / e0;
        at.i0 = m - q * e0;
        m = q, q = m / e1;
        at.i1 = m - q * e1;
        m = q, q = m / e2;
        at.i2 = m - q * e2;
        at.i3 = q;
        return at;
    }
    at.i0 = n % ne[0], n /= ne[0];
    at.i1 = n % ne[1], n /= ne[1];
    at.i2 = n % ne[2];
    at.i3 = n / ne[2];
    return at;
}

// The number of this thread in its grid of one dimension.
DEVICE i64 thread_number() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE i64 thread_count() { return (i64)gridDim.x * blockDim.x; }
DEVICE int lane_number() { return threadIdx.x & 31; }
DEVICE int warp_number() { return threadIdx.x >> 5; }

// Powers for places where a few units in the last place do not matter.
DEVICE float fast_exp2(float x) {
#ifdef OXCART_EMULATE
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

DEVICE i64 at_least(i64 a, i64 b) { return a > b ? a : b; }
DEVICE i64 at_most(i64 a, i64 b) { return a < b ? a : b; }

// ---- 16-bit numbers ----

#ifndef OXCART_EMULATE
DEVICE float from_half(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE u16 to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

DEVICE float from_brain(u16 bits) { return __uint_as_float((u32)bits << 16); }
// Nearest, ties to even; NaN keeps its upper bits and becomes quiet.
DEVICE u16 to_brain(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 64);
    return (u16)((bits + (0x7fffu + (bits >> 16 & 1))) >> 16);
}

// Two numbers in one word, the first in the lower half.
DEVICE u32 pack_half(float low, float high) {
#if defined(OXCART_EMULATE) || ARCH < 800
    return (u32)to_half(low) | (u32)to_half(high) << 16;
#else
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
}
DEVICE u32 pack_brain(float low, float high) {
#if defined(OXCART_EMULATE) || ARCH < 800
    return (u32)to_brain(low) | (u32)to_brain(high) << 16;
#else
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
}

// A number of a plain type.
DEVICE float load(const u8* from, i32 type) {
    switch (type) {
        case F32: return *(const float*)from;
        case F16: return from_half(*(const u16*)from);
        case BF16: return from_brain(*(const u16*)from);
        case I32: return (float)*(const i32*)from;
        default: return 0.0f;
    }
}
// What is too large for an integer becomes the nearest there is; NaN becomes 0.
DEVICE i32 to_integer(float value) { return __float2int_rz(value); }
DEVICE void store(u8* to, i32 type, float value) {
    switch (type) {
        case F32: *(float*)to = value; break;
        case F16: *(u16*)to = to_half(value); break;
        case BF16: *(u16*)to = to_brain(value); break;
        case I32: *(i32*)to = to_integer(value); break;
        default: break;
    }
}

// ---- warps and blocks ----

#define ALL_LANES 0xffffffffu

template <class T> DEVICE T warp_sum(T value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}
DEVICE float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// Sums over all threads of a block; every thread gets the total. May be called again and again.
template <class T> DEVICE T block_sum(T value) {
    __shared__ T parts[32];
    value = warp_sum(value);
    if (blockDim.x <= 32) return value;
    __syncthreads();
    if (lane_number() == 0) parts[warp_number()] = value;
    __syncthreads();
    T part = lane_number() < (int)(blockDim.x + 31) / 32 ? parts[lane_number()] : T(0);
    return warp_sum(part);
}
DEVICE float block_max(float value) {
    __shared__ float parts[32];
    value = warp_max(value);
    if (blockDim.x <= 32) return value;
    __syncthreads();
    if (lane_number() == 0) parts[warp_number()] = value;
    __syncthreads();
    float part = lane_number() < (int)(blockDim.x + 31) / 32 ? parts[lane_number()] : -INFINITY;
    return warp_max(part);
}

// Notes that data named something that does not exist. `faults` is a word that the host looks at after a run.
enum Fault : u32 { BAD_ROW = 1, BAD_EXPERT = 2, BAD_STATE = 3 };
DEVICE void report(u64 faults, u32 fault) { *(volatile u32*)faults = fault; }
