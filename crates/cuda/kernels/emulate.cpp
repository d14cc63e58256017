// The part of the emulated card that exists once: its state, its fibers, and the one function that tests call.
#define OXCART_EMULATE
#include "emulate.h"

namespace emulate {

Block block;
Fiber* current;
Dim block_number, block_count, block_size;
alignas(128) unsigned char shared_memory[256 << 10];
static Kernel* kernels;

Kernel::Kernel(const char* name, void (*body)(const void*), size_t params, int threads)
    : name(name), body(body), params(params), threads(threads), next(kernels) {
    kernels = this;
}

#if defined(__x86_64__)
asm(R"(
.text
.globl emulate_switch
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
#else
#error "the emulated card needs fibers, which are written for x86-64 only"
#endif

static void start() {
    block.body(block.params);
    Fiber* self = current;
    self->done = true;
    // A thread that has left is not waited for any more.
    Warp& warp = block.warps[self->warp];
    block.alive--, warp.alive--;
    if (block.alive && block.arrived == block.alive) block.arrived = 0, block.turn++;
    if (warp.alive && warp.arrived == warp.alive) warp.arrived = 0, warp.turn++;
    yield();
    abort();
}

static void run_block() {
    int count = block_size.x * block_size.y * block_size.z;
    block.count = block.alive = count;
    block.arrived = 0;
    for (int w = 0; w < MOST / 32; w++) block.warps[w].alive = block.warps[w].arrived = 0;
    for (int i = 0; i < count; i++) {
        Fiber& fiber = block.fibers[i];
        if (!fiber.stack) {
            void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) abort();
            fiber.stack = (char*)stack;
        }
        void** top = (void**)(fiber.stack + STACK - 64);
        // What `emulate_switch` takes off: six registers, then where to go; and an aligned stack there.
        *--top = nullptr;
        *--top = (void*)start;
        for (int r = 0; r < 6; r++) *--top = nullptr;
        fiber.stack_pointer = top;
        fiber.thread = {(unsigned)i % block_size.x, (unsigned)i / block_size.x % block_size.y, (unsigned)i / (block_size.x * block_size.y)};
        fiber.lane = i % 32, fiber.warp = i / 32, fiber.done = false;
        block.warps[fiber.warp].alive++;
    }
    while (block.alive) {
        for (int i = 0; i < count; i++) {
            Fiber& fiber = block.fibers[block.backwards ? count - 1 - i : i];
            if (fiber.done) continue;
            current = &fiber;
            emulate_switch(&block.scheduler, fiber.stack_pointer);
        }
    }
}

}  // namespace emulate

using namespace emulate;

// Size of a kernel's parameters, 0 where there is no such kernel, and the most threads its blocks may have.
extern "C" size_t oxcart_emulate_find(const char* name, int* threads) {
    for (Kernel* kernel = kernels; kernel; kernel = kernel->next) {
        if (!strcmp(kernel->name, name)) {
            *threads = kernel->threads;
            return kernel->params;
        }
    }
    return 0;
}

extern "C" void oxcart_emulate_backwards(int backwards) { block.backwards = backwards; }

// Runs a kernel. 0 if it ran.
extern "C" int oxcart_emulate(const char* name, const unsigned grid[3], const unsigned threads[3], size_t shared, const void* params) {
    Kernel* kernel = kernels;
    while (kernel && strcmp(kernel->name, name)) kernel = kernel->next;
    if (!kernel) return 1;
    size_t count = (size_t)threads[0] * threads[1] * threads[2];
    if (count == 0 || count > (size_t)kernel->threads || count % 32 || shared > 227 << 10) return 2;
    block_count = {grid[0], grid[1], grid[2]};
    block_size = {threads[0], threads[1], threads[2]};
    block.body = kernel->body, block.params = params;
    for (unsigned z = 0; z < grid[2]; z++) {
        for (unsigned y = 0; y < grid[1]; y++) {
            for (unsigned x = 0; x < grid[0]; x++) {
                block_number = {x, y, z};
                // Nothing is left from the block before.
                memset(shared_memory, 0xA5, shared);
                run_block();
            }
        }
    }
    return 0;
}
