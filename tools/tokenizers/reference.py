"""The reference's tokenizer of one vocabulary."""

import ctypes


class Vocabulary:
    def __init__(self, api, path):
        self.api = api
        parameters = api.llama_model_default_params()
        parameters.vocab_only = True
        self.model = api.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise ValueError(f"the reference does not load {path}")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.tokens = (api.llama_token * (1 << 16))()
        self.text = ctypes.create_string_buffer(1 << 20)

    def close(self):
        self.api.llama_model_free(self.model)

    def encode(self, text, special):
        data = text.encode()
        count = self.api.llama_tokenize(self.vocab, data, len(data), self.tokens, len(self.tokens), special, special)
        assert count >= 0
        return self.tokens[:count]

    def decode(self, tokens, shown):
        tokens = (self.api.llama_token * len(tokens))(*tokens)
        length = self.api.llama_detokenize(self.vocab, tokens, len(tokens), self.text, len(self.text), False, shown)
        assert length >= 0
        return self.text.raw[:length]

    def facts(self):
        api, vocab = self.api, self.vocab
        count = api.llama_vocab_n_tokens(vocab)
        roles = {role: getattr(api, f"llama_vocab_{role}")(vocab) for role in ("bos", "eos", "eot", "sep", "pad")}
        return {
            **roles,
            "tokens": count,
            "adds_bos": api.llama_vocab_get_add_bos(vocab),
            "adds_eos": api.llama_vocab_get_add_eos(vocab),
            "ends": [token for token in range(count) if api.llama_vocab_is_eog(vocab, token)],
        }
