// Makes ggml's conformance suite test a worker: linked beside the suite, this registers the worker's devices before `main`
// looks for devices. The suite skips the processor by itself, so that what is tested is the worker alone.
//
// OXCART_WORKER is its host:port. ONE_DEVICE is defined for protocol 2.0.0, where an endpoint is a device and not a server.
#include <cstdio>
#include <cstdlib>

#include "ggml-backend.h"
#include "ggml-rpc.h"

__attribute__((constructor)) static void register_worker() {
    const char * endpoint = std::getenv("OXCART_WORKER");
    if (endpoint == nullptr) {
        std::fprintf(stderr, "OXCART_WORKER is not set\n");
        std::exit(2);
    }
#ifdef ONE_DEVICE
    ggml_backend_dev_t device = ggml_backend_rpc_add_device(endpoint);
    if (device != nullptr) {
        ggml_backend_device_register(device);
        return;
    }
#else
    ggml_backend_reg_t registry = ggml_backend_rpc_add_server(endpoint);
    if (registry != nullptr) {
        ggml_backend_register(registry);
        return;
    }
#endif
    std::fprintf(stderr, "no worker at %s\n", endpoint);
    std::exit(2);
}
