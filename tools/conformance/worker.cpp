// Makes ggml's conformance suite test a worker: linked beside the suite, this registers the worker's devices before `main`
// looks for devices. The suite skips the processor by itself, so that what is tested is the worker alone.
//
// OXCART_WORKER is its host:port. ONE_DEVICE is defined for protocol 2.0.0, where an endpoint is a device and not a server.
//
// The suite's client believes that a worker computes everything. SUPPORTS_AS is defined where the worker lends something else
// than a processor: OXCART_SUPPORTS_AS then names a device of this machine, of ggml's own, and what that one supports is what the
// worker is asked to compute.
#include <cstdio>
#include <cstdlib>

#include "ggml-backend.h"
#include "ggml-rpc.h"

#ifdef SUPPORTS_AS
#include "ggml-backend-impl.h"

static ggml_backend_dev_t model = nullptr;

static bool supports_as_model(ggml_backend_dev_t, const ggml_tensor * op) { return model->iface.supports_op(model, op); }

static void support_what_a_model_does(ggml_backend_reg_t registry) {
    const char * name = std::getenv("OXCART_SUPPORTS_AS");
    if (name == nullptr) return;
    model = ggml_backend_dev_by_name(name);
    if (model == nullptr) {
        std::fprintf(stderr, "there is no device %s\n", name);
        std::exit(2);
    }
    for (size_t i = 0; i < ggml_backend_reg_dev_count(registry); i++) ggml_backend_reg_dev_get(registry, i)->iface.supports_op = supports_as_model;
}
#endif

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
#ifdef SUPPORTS_AS
        support_what_a_model_does(registry);
#endif
        return;
    }
#endif
    std::fprintf(stderr, "no worker at %s\n", endpoint);
    std::exit(2);
}
