// The first token of an answer by llama.cpp's library: what `oxcart run --raw -n 1 --temp 0` does, with the library's own
// defaults. Arguments: model, prompt, threads, tokens of the context.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

static void quiet(ggml_log_level, const char *, void *) {}

[[noreturn]] static void fail(const char * what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

int main(int count, char ** arguments) {
    if (count != 5) fail("model prompt threads context");
    const char * prompt = arguments[2];
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (model == nullptr) fail("no model");
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::vector<llama_token> tokens(std::strlen(prompt) + 8);
    int used = llama_tokenize(vocab, prompt, std::strlen(prompt), tokens.data(), tokens.size(), true, false);
    if (used <= 0) fail("no tokens");
    llama_context_params settings = llama_context_default_params();
    settings.n_ctx = std::atoi(arguments[4]);
    settings.n_threads = settings.n_threads_batch = std::atoi(arguments[3]);
    llama_context * context = llama_init_from_model(model, settings);
    if (context == nullptr) fail("no context");
    if (llama_decode(context, llama_batch_get_one(tokens.data(), used)) != 0) fail("not computed");
    const float * logits = llama_get_logits_ith(context, -1);
    llama_token best = std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits;
    char piece[256];
    int len = llama_token_to_piece(vocab, best, piece, sizeof piece, 0, true);
    std::fwrite(piece, 1, std::max(len, 0), stdout);
    std::fflush(stdout);
    return 0;
}
