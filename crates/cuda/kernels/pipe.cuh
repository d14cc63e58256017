// Bytes on their way from a card's memory to shared memory while a warp does something else.
//
// Newer cards have an engine that copies by itself and tells a barrier (9.0), or instructions that copy without registers
// (8.0); older ones load and store.
//
// Invariant: source and target are multiples of 16 bytes, so are sizes.
#pragma once

#include "base.cuh"

#ifndef OXCART_EMULATE
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
#endif

// Copies 16 bytes without waiting; `copies_begun` closes a group, `copies_done` waits until at most N groups are under way.
DEVICE void copy_16(u8* to, const u8* from) {
#if !defined(OXCART_EMULATE) && ARCH >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *(U4*)to = *(const U4*)from;
#endif
}
// The same with a target whose address in shared memory was found before: many copies to neighbours share it.
#if !defined(OXCART_EMULATE) && ARCH >= 800
typedef u32 SharedPlace;
DEVICE SharedPlace shared_place(u8* to) { return shared_address(to); }
DEVICE void copy_16(SharedPlace to, const u8* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
#else
typedef u8* SharedPlace;
DEVICE SharedPlace shared_place(u8* to) { return to; }
#endif
// As above, but zeros where there is nothing to copy.
DEVICE void copy_16_or_zero(u8* to, const u8* from, bool real) {
#if !defined(OXCART_EMULATE) && ARCH >= 800
    u32 size = real ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(size) : "memory");
#else
    U4 zero = {0, 0, 0, 0};
    *(U4*)to = real ? *(const U4*)from : zero;
#endif
}
DEVICE void copies_begun() {
#if !defined(OXCART_EMULATE) && ARCH >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> DEVICE void copies_done() {
#if !defined(OXCART_EMULATE) && ARCH >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#if !defined(OXCART_EMULATE) && ARCH >= 900
// Barriers in shared memory that count who has arrived, and bytes.
DEVICE void init_barrier(u64* barrier, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)); }
DEVICE void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void expect_bytes(u64* barrier, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory"); }
DEVICE void arrive(u64* barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory"); }
DEVICE void wait_for(u64* barrier, u32 phase) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(shared_address(barrier)), "r"(phase) : "memory");
    } while (!done);
}
// Copies bytes by the engine, which tells a barrier; all are multiples of 16. What it copies is not read again soon: in the card's
// cache it is the first to go, and what is read again stays.
DEVICE void fetch_bytes(u8* to, const u8* from, u32 bytes, u64* barrier) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}
#endif
