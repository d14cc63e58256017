// Bytes on their way from a card's memory to shared memory while a warp does something else.
//
// A warp has a few slots and fills them in turn. Newer cards have an engine that copies by itself and tells a barrier (9.0),
// or instructions that copy without registers (8.0); older ones load and store.
//
// Invariant: source and target are multiples of 16 bytes, so are sizes; a slot is filled again only after `__syncwarp`.
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

// The slots of one warp.
struct Slots {
    u8* start;     // in shared memory
    u64* barrier;  // one per slot, where the card has them
    u32 size;      // bytes of a slot
    int count;     // of slots: 2 to 4

    // To be called by all lanes, before anything else.
    DEVICE_METHOD void begin() {
#if !defined(OXCART_EMULATE) && ARCH >= 900
        if (lane_number() == 0) {
            for (int i = 0; i < count; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier + i)));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
#endif
    }

    // Fills the slot of step `step` with up to two runs of bytes, the second at `second_at`. Every step is filled once, in
    // order, empty ones too.
    DEVICE_METHOD void fill(int step, const u8* first, const u8* second, u32 bytes, u32 second_at) {
        u8* slot = start + (step % count) * size;
#if !defined(OXCART_EMULATE) && ARCH >= 900
        if (lane_number() == 0 && bytes) {
            u32 tell = shared_address(barrier + step % count);
            u32 all = second ? 2 * bytes : bytes;
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(tell), "r"(all) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(slot)), "l"(first), "r"(bytes), "r"(tell) : "memory");
            if (second) {
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(slot + second_at)), "l"(second), "r"(bytes), "r"(tell) : "memory");
            }
        }
#else
        for (u32 i = 16 * lane_number(); i < bytes; i += 16 * 32) {
            copy_16(slot + i, first + i);
            if (second) copy_16(slot + second_at + i, second + i);
        }
        copies_begun();
#endif
    }

    // Waits for a step that was filled, and gives its slot.
    DEVICE_METHOD const u8* wait(int step) {
#if !defined(OXCART_EMULATE) && ARCH >= 900
        u32 tell = shared_address(barrier + step % count), phase = step / count & 1, done;
        do {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(tell), "r"(phase) : "memory");
        } while (!done);
#else
        // Steps are begun `count` ahead, so all but the newest `count - 1` must be there.
        if (count == 2) copies_done<1>();
        else if (count == 3) copies_done<2>();
        else copies_done<3>();
        __syncwarp();
#endif
        return start + (step % count) * size;
    }
};
