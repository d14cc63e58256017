// The graph of benches/prepare.rs, scheduled by ggml's own scheduler over four devices that compute nothing.
// Usage: ggml_sched LAYERS REPEATS. Prints nodes, splits, and the best seconds of:
//   plan    reset + reserve: assign, split and plan memory from scratch
//   steady  reset + alloc_graph: the same graph again, memory plan kept
// benches/prepare.rs compiles it against the headers of a ggml source tree and runs it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-backend-impl.h"

enum { DEVICES = 4, EMBD = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, FF = 128, TOKENS = 2, CONTEXT = 32 };

static struct ggml_backend_device devices[DEVICES];
static struct ggml_backend_buffer_type memories[DEVICES];
static struct ggml_backend backends[DEVICES];
static const char * names[DEVICES] = { "D0", "D1", "D2", "CPU" };

// Memory: plain malloc, told apart by type.
static const char * memory_name(ggml_backend_buffer_type_t t) { return names[t - memories]; }
static size_t memory_alignment(ggml_backend_buffer_type_t t) { (void) t; return 64; }
static bool memory_is_host(ggml_backend_buffer_type_t t) { return t == &memories[DEVICES - 1]; }
static void buffer_free(ggml_backend_buffer_t b) { free(b->context); }
static void * buffer_base(ggml_backend_buffer_t b) { return b->context; }
static void buffer_clear(ggml_backend_buffer_t b, uint8_t value) { memset(b->context, value, b->size); }
static ggml_backend_buffer_t memory_alloc(ggml_backend_buffer_type_t t, size_t size) {
    struct ggml_backend_buffer_i calls = { 0 };
    calls.free_buffer = buffer_free;
    calls.get_base = buffer_base;
    calls.clear = buffer_clear;
    return ggml_backend_buffer_init(t, calls, aligned_alloc(64, (size + 63) & ~(size_t) 63), size);
}

// Devices: can do everything, see only their own memory.
static const char * device_name(ggml_backend_dev_t d) { return names[d - devices]; }
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t d) {
    return d == &devices[DEVICES - 1] ? GGML_BACKEND_DEVICE_TYPE_CPU : GGML_BACKEND_DEVICE_TYPE_GPU;
}
static void device_props(ggml_backend_dev_t d, struct ggml_backend_dev_props * p) { (void) d; memset(p, 0, sizeof *p); }
static ggml_backend_buffer_type_t device_memory(ggml_backend_dev_t d) { return &memories[d - devices]; }
static bool device_supports_op(ggml_backend_dev_t d, const struct ggml_tensor * t) { (void) d; (void) t; return true; }
static bool device_supports_memory(ggml_backend_dev_t d, ggml_backend_buffer_type_t t) { return t == &memories[d - devices]; }
static const char * backend_name(ggml_backend_t b) { return names[b - backends]; }
static enum ggml_status backend_compute(ggml_backend_t b, struct ggml_cgraph * g) { (void) b; (void) g; return GGML_STATUS_SUCCESS; }

static void make_devices(void) {
    for (int i = 0; i < DEVICES; i++) {
        memories[i].iface.get_name = memory_name;
        memories[i].iface.alloc_buffer = memory_alloc;
        memories[i].iface.get_alignment = memory_alignment;
        memories[i].iface.is_host = memory_is_host;
        memories[i].device = &devices[i];
        devices[i].iface.get_name = device_name;
        devices[i].iface.get_description = device_name;
        devices[i].iface.get_type = device_type;
        devices[i].iface.get_props = device_props;
        devices[i].iface.get_buffer_type = device_memory;
        devices[i].iface.supports_op = device_supports_op;
        devices[i].iface.supports_buft = device_supports_memory;
        backends[i].iface.get_name = backend_name;
        backends[i].iface.graph_compute = backend_compute;
        backends[i].device = &devices[i];
    }
}

struct layer { struct ggml_tensor * norm, * q, * k, * v, * o, * norm2, * gate, * up, * down, * ck, * cv; };

static struct ggml_tensor * heads(struct ggml_context * c, struct ggml_tensor * w, struct ggml_tensor * x, int count) {
    return ggml_reshape_3d(c, ggml_mul_mat(c, w, x), HEAD, count, TOKENS);
}

static struct ggml_tensor * cached(struct ggml_context * c, struct ggml_tensor * cache, struct ggml_tensor * x, struct ggml_tensor * rows) {
    cache = ggml_set_rows(c, cache, ggml_reshape_2d(c, x, HEAD * KV_HEADS, TOKENS), rows);
    return ggml_permute(c, ggml_reshape_3d(c, cache, HEAD, KV_HEADS, CONTEXT), 0, 2, 1, 3);
}

static struct ggml_cgraph * build(struct ggml_context * c, const struct layer * layers, int n, size_t size) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(c, size, false);
    struct ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, EMBD, TOKENS);
    struct ggml_tensor * positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, TOKENS);
    struct ggml_tensor * rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, TOKENS);
    struct ggml_tensor * mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, CONTEXT, TOKENS);
    struct ggml_tensor * inputs[] = { x, positions, rows, mask };
    for (int i = 0; i < 4; i++) ggml_set_input(inputs[i]);
    for (int i = 0; i < n; i++) {
        const struct layer * l = &layers[i];
        struct ggml_tensor * y = ggml_mul(c, ggml_rms_norm(c, x, 1e-5f), l->norm);
        struct ggml_tensor * q = ggml_rope(c, heads(c, l->q, y, HEADS), positions, HEAD, 0);
        struct ggml_tensor * k = ggml_rope(c, heads(c, l->k, y, KV_HEADS), positions, HEAD, 0);
        struct ggml_tensor * v = heads(c, l->v, y, KV_HEADS);
        q = ggml_permute(c, q, 0, 2, 1, 3);
        k = cached(c, l->ck, k, rows);
        v = cached(c, l->cv, v, rows);
        y = ggml_flash_attn_ext(c, q, k, v, mask, 0.25f, 0, 0);
        y = ggml_mul_mat(c, l->o, ggml_reshape_2d(c, y, EMBD, TOKENS));
        x = ggml_add(c, x, y);
        y = ggml_mul(c, ggml_rms_norm(c, x, 1e-5f), l->norm2);
        y = ggml_swiglu_split(c, ggml_mul_mat(c, l->gate, y), ggml_mul_mat(c, l->up, y));
        x = ggml_add(c, x, ggml_mul_mat(c, l->down, y));
    }
    ggml_set_output(x);
    ggml_build_forward_expand(graph, x);
    return graph;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char ** argv) {
    int n = argc > 1 ? atoi(argv[1]) : 180, repeats = argc > 2 ? atoi(argv[2]) : 20;
    make_devices();
    struct layer * layers = calloc(n, sizeof *layers);
    for (int d = 0; d < DEVICES; d++) {
        struct ggml_init_params p = { (size_t) n * 16 * ggml_tensor_overhead() + 4096, NULL, true };
        struct ggml_context * c = ggml_init(p);
        for (int i = n * d / DEVICES; i < n * (d + 1) / DEVICES; i++) {
            struct layer * l = &layers[i];
            l->norm = ggml_new_tensor_1d(c, GGML_TYPE_F32, EMBD);
            l->norm2 = ggml_new_tensor_1d(c, GGML_TYPE_F32, EMBD);
            l->q = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, EMBD);
            l->k = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, HEAD * KV_HEADS);
            l->v = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, HEAD * KV_HEADS);
            l->o = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, EMBD);
            l->gate = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, FF);
            l->up = ggml_new_tensor_2d(c, GGML_TYPE_F16, EMBD, FF);
            l->down = ggml_new_tensor_2d(c, GGML_TYPE_F16, FF, EMBD);
        }
        ggml_backend_buffer_t weights = ggml_backend_alloc_ctx_tensors_from_buft(c, &memories[d]);
        if (weights) ggml_backend_buffer_set_usage(weights, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        struct ggml_init_params p2 = { (size_t) n * 2 * ggml_tensor_overhead() + 4096, NULL, true };
        struct ggml_context * caches = ggml_init(p2);
        for (int i = n * d / DEVICES; i < n * (d + 1) / DEVICES; i++) {
            layers[i].ck = ggml_new_tensor_2d(caches, GGML_TYPE_F16, HEAD * KV_HEADS, CONTEXT);
            layers[i].cv = ggml_new_tensor_2d(caches, GGML_TYPE_F16, HEAD * KV_HEADS, CONTEXT);
        }
        ggml_backend_alloc_ctx_tensors_from_buft(caches, &memories[d]);
    }
    size_t size = (size_t) n * 40 + 100;
    ggml_backend_t list[DEVICES];
    for (int d = 0; d < DEVICES; d++) list[d] = &backends[d];
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, DEVICES, size, false, true);
    double plan = 1e9, steady = 1e9;
    int nodes = 0, splits = 0;
    struct ggml_init_params p = { size * ggml_tensor_overhead() + ggml_graph_overhead_custom(size, false), NULL, true };
    for (int r = 0; r < repeats; r++) {
        for (int pass = 0; pass < 2; pass++) {
            struct ggml_context * c = ggml_init(p);
            struct ggml_cgraph * graph = build(c, layers, n, size);
            double start = now();
            ggml_backend_sched_reset(sched);
            bool ok = pass == 0 ? ggml_backend_sched_reserve(sched, graph) : ggml_backend_sched_alloc_graph(sched, graph);
            double took = now() - start;
            if (!ok) return 1;
            if (pass == 0 && took < plan) plan = took;
            if (pass == 1 && took < steady) steady = took;
            nodes = ggml_graph_n_nodes(graph);
            splits = ggml_backend_sched_get_n_splits(sched);
            ggml_free(c);
        }
    }
    printf("%d %d %.9f %.9f\n", nodes, splits, plan, steady);
    return 0;
}
