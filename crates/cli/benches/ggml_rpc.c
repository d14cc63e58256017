// What benches/rpc.rs measures, done by ggml's own worker and client.
//   ggml_rpc serve ENDPOINT THREADS
//   ggml_rpc upload ENDPOINT TENSORS MIB        prints bytes per second
//   ggml_rpc trip ENDPOINT REPEATS              prints the median seconds of reading four bytes
//   ggml_rpc again ENDPOINT NODES REPEATS       prints the median seconds of a graph that the worker has, until its result is here
// benches/rpc.rs compiles it against the headers of a ggml source tree and runs it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rpc.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static int by_size(const void * a, const void * b) {
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static double median(double * numbers, int count) {
    qsort(numbers, (size_t) count, sizeof *numbers, by_size);
    return numbers[count / 2];
}

static struct ggml_context * context(int tensors) {
    struct ggml_init_params params = { ggml_tensor_overhead() * (size_t) (tensors + 8) + ggml_graph_overhead_custom(8192, false), NULL, true };
    return ggml_init(params);
}

static void upload(ggml_backend_t backend, int tensors, size_t size) {
    struct ggml_context * ctx = context(tensors);
    for (int i = 0; i < tensors; i++) ggml_new_tensor_1d(ctx, GGML_TYPE_F32, (int64_t) (size / 4));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    uint32_t * data = malloc(size);
    for (size_t i = 0; i < size / 4; i++) data[i] = (uint32_t) (i * 2654435761u);
    float last;
    double best = 1e9;
    for (int round = 0; round < 2; round++) {
        double start = now();
        struct ggml_tensor * t = NULL;
        for (t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
            ggml_backend_tensor_set(t, data, 0, size);
        }
        ggml_backend_tensor_get(ggml_get_first_tensor(ctx), &last, 0, sizeof last);
        double took = now() - start;
        if (took < best) best = took;
    }
    printf("%.9g\n", (double) tensors * (double) size / best);
}

static void trip(ggml_backend_t backend, int repeats) {
    struct ggml_context * ctx = context(1);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16);
    ggml_backend_alloc_ctx_tensors(ctx, backend);
    double * times = malloc(sizeof *times * (size_t) repeats);
    for (int i = 0; i < repeats; i++) {
        float x;
        double start = now();
        ggml_backend_tensor_get(t, &x, 0, sizeof x);
        times[i] = now() - start;
    }
    printf("%.9g\n", median(times, repeats));
}

static void again(ggml_backend_t backend, int nodes, int repeats) {
    struct ggml_context * ctx = context(nodes + 2);
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16), * one = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16);
    struct ggml_tensor * y = x;
    for (int i = 0; i < nodes; i++) y = ggml_add(ctx, y, one);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 8192, false);
    ggml_build_forward_expand(graph, y);
    ggml_backend_alloc_ctx_tensors(ctx, backend);
    float numbers[16];
    for (int i = 0; i < 16; i++) numbers[i] = (float) i;
    ggml_backend_tensor_set(x, numbers, 0, sizeof numbers);
    for (int i = 0; i < 16; i++) numbers[i] = 1.0f;
    ggml_backend_tensor_set(one, numbers, 0, sizeof numbers);
    double * times = malloc(sizeof *times * (size_t) repeats);
    for (int i = 0; i < repeats; i++) {
        double start = now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) exit(1);
        ggml_backend_tensor_get(y, numbers, 0, sizeof numbers);
        times[i] = now() - start;
        if (numbers[3] != 3.0f + (float) nodes) exit(1);
    }
    printf("%.9g\n", median(times, repeats));
}

int main(int argc, char ** argv) {
    if (argc < 4) return 2;
    const char * what = argv[1], * endpoint = argv[2];
    if (!strcmp(what, "serve")) {
        ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        ggml_backend_rpc_start_server(endpoint, NULL, (size_t) atoi(argv[3]), 1, &device);
        return 1;
    }
    ggml_backend_t backend = ggml_backend_rpc_init(endpoint, 0);
    if (!backend) return 1;
    if (!strcmp(what, "upload")) upload(backend, atoi(argv[3]), (size_t) atoi(argv[4]) << 20);
    if (!strcmp(what, "trip")) trip(backend, atoi(argv[3]));
    if (!strcmp(what, "again")) again(backend, atoi(argv[3]), atoi(argv[4]));
    return 0;
}
