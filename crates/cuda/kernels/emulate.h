// A card for tests: runs kernels on a processor, each thread of a block as a fiber of its own.
//
// Fibers switch only where threads wait for each other: at barriers and in warp operations. Blocks run one after another,
// so what a block shares is a static variable. Every kernel registers itself by name; `oxcart_emulate` runs one.
//
// Invariant: a kernel whose result depends on the order of its threads between two barriers is wrong on a card too; to
// show it, the order in which fibers run can be turned around (`oxcart_emulate_backwards`).
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE static inline __attribute__((unused))
#define DEVICE_METHOD inline
#define TABLE static const __attribute__((unused))
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

namespace emulate {

struct Dim {
    unsigned x, y, z;
};

struct Fiber {
    void* stack_pointer;
    char* stack;
    Dim thread;
    int lane, warp;
    bool done;
};

struct Warp {
    int alive, arrived;
    unsigned turn;
    alignas(16) unsigned char slots[32][64];
};

constexpr size_t STACK = 256 << 10;
constexpr int MOST = 1024;

struct Block {
    Fiber fibers[MOST];
    Warp warps[MOST / 32];
    int count, alive, arrived;
    unsigned turn;
    void* scheduler;
    void (*body)(const void*);
    const void* params;
    bool backwards;
};

extern Block block;
extern Fiber* current;
extern Dim block_number, block_count, block_size;
extern unsigned char shared_memory[256 << 10];

extern "C" void emulate_switch(void** from, void* to);

inline void yield() { emulate_switch(&current->stack_pointer, block.scheduler); }

inline void wait_for_block() {
    unsigned turn = block.turn;
    if (++block.arrived == block.alive) {
        block.arrived = 0;
        block.turn++;
        return;
    }
    while (block.turn == turn) yield();
}

inline void wait_for_warp() {
    Warp& warp = block.warps[current->warp];
    unsigned turn = warp.turn;
    if (++warp.arrived == warp.alive) {
        warp.arrived = 0;
        warp.turn++;
        return;
    }
    while (warp.turn == turn) yield();
}

// Lays a value out for the other lanes of the warp; `taken` ends the exchange.
template <class T> inline Warp& offer(const T& value) {
    static_assert(sizeof(T) <= 64, "too much for a slot");
    Warp& warp = block.warps[current->warp];
    memcpy(warp.slots[current->lane], &value, sizeof(T));
    wait_for_warp();
    return warp;
}
inline void taken() { wait_for_warp(); }
template <class T> inline T offered(const Warp& warp, int lane) {
    T value;
    memcpy(&value, warp.slots[lane], sizeof(T));
    return value;
}

struct Kernel {
    const char* name;
    void (*body)(const void*);
    size_t params;
    int threads;
    Kernel* next;
    Kernel(const char* name, void (*body)(const void*), size_t params, int threads);
};

}  // namespace emulate

#define threadIdx (emulate::current->thread)
#define blockIdx (emulate::block_number)
#define gridDim (emulate::block_count)
#define blockDim (emulate::block_size)
#define dynamic_shared (emulate::shared_memory)

#define KERNEL(name, Params, THREADS)                                                                       \
    static void name##_body(const Params& p);                                                               \
    static emulate::Kernel name##_entry(                                                                    \
        #name, [](const void* p) { name##_body(*(const Params*)p); }, sizeof(Params), THREADS);             \
    static void name##_body(const Params& p)
#define KERNEL_BLOCKS(name, Params, THREADS, BLOCKS) KERNEL(name, Params, THREADS)

// ---- what the compiler for cards knows by itself ----

DEVICE void __syncthreads() { emulate::wait_for_block(); }
DEVICE void __syncwarp() { emulate::wait_for_warp(); }
DEVICE void __threadfence() {}

template <class T> DEVICE T __shfl_xor_sync(unsigned, T value, int mask) {
    auto& warp = emulate::offer(value);
    T other = emulate::offered<T>(warp, emulate::current->lane ^ mask);
    emulate::taken();
    return other;
}
template <class T> DEVICE T __shfl_sync(unsigned, T value, int lane) {
    auto& warp = emulate::offer(value);
    T other = emulate::offered<T>(warp, lane & 31);
    emulate::taken();
    return other;
}
template <class T> DEVICE T __shfl_up_sync(unsigned, T value, int by) {
    auto& warp = emulate::offer(value);
    int lane = emulate::current->lane;
    T other = emulate::offered<T>(warp, lane >= by ? lane - by : lane);
    emulate::taken();
    return other;
}
DEVICE unsigned __ballot_sync(unsigned, int vote) {
    auto& warp = emulate::offer(vote);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (unsigned)(emulate::offered<int>(warp, lane) != 0) << lane;
    emulate::taken();
    return bits;
}
DEVICE int __any_sync(unsigned lanes, int vote) { return __ballot_sync(lanes, vote) != 0; }
DEVICE int __all_sync(unsigned lanes, int vote) { return __ballot_sync(lanes, vote) == 0xffffffffu; }

template <class T> DEVICE T atomicAdd(T* at, T value) {
    T before = *at;
    *at = before + value;
    return before;
}
DEVICE unsigned atomicMax(unsigned* at, unsigned value) {
    unsigned before = *at;
    if (value > before) *at = value;
    return before;
}
DEVICE unsigned atomicInc(unsigned* at, unsigned limit) {
    unsigned before = *at;
    *at = before >= limit ? 0 : before + 1;
    return before;
}

DEVICE int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
DEVICE unsigned __byte_perm(unsigned a, unsigned b, unsigned pick) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned from = pick >> 4 * i & 15;
        unsigned byte = both >> 8 * (from & 7) & 255;
        if (from & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << 8 * i;
    }
    return out;
}
DEVICE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
DEVICE int __ffs(int x) { return __builtin_ffs(x); }

template <class To, class From> DEVICE To emulate_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE float __uint_as_float(unsigned x) { return emulate_bits<float>(x); }
DEVICE float __int_as_float(int x) { return emulate_bits<float>(x); }
DEVICE unsigned __float_as_uint(float x) { return emulate_bits<unsigned>(x); }
DEVICE int __float_as_int(float x) { return emulate_bits<int>(x); }
DEVICE int __float2int_rz(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x <= -2147483648.0f) return -2147483647 - 1;
    return (int)x;
}
DEVICE int __float2int_rn(float x) { return __float2int_rz(rintf(x)); }
DEVICE float __fmul_rn(float a, float b) { return a * b; }
DEVICE float __fadd_rn(float a, float b) { return a + b; }
DEVICE float __fsub_rn(float a, float b) { return a - b; }
DEVICE float __fdiv_rn(float a, float b) { return a / b; }
DEVICE double __dmul_rn(double a, double b) { return a * b; }
DEVICE double __dadd_rn(double a, double b) { return a + b; }
DEVICE float rsqrtf(float x) { return 1.0f / sqrtf(x); }

DEVICE float from_half(unsigned short bits) {
    unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    float value = exponent ? ldexpf((float)(fraction | 0x400), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return sign ? -value : value;
}
DEVICE unsigned short to_half(float value) {
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x477ff000u) return (unsigned short)(sign | 0x7c00);
    if (rest < 0x38800000u) return (unsigned short)(sign | (unsigned)rintf(ldexpf(__uint_as_float(rest), 24)));
    unsigned rounded = rest + 0xfff + (rest >> 13 & 1);
    return (unsigned short)(sign | (rounded - 0x38000000u) >> 13);
}
