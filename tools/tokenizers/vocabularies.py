"""Vocabularies to compare: those of the reference's archive, each pre-tokenizer that its source names, and small ones for
tokenizers that no file of the archive has."""

import random
import re

from metadata import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, Array, read, write

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PRE = "tokenizer.ggml.pre"

# Text as it is rather than bytes as characters: another vocabulary has to carry them.
PLAIN = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}
WORDS = """the of and to in is was for that it with as on be at by this had not are but from or have an they which one you were
her all she there would their we him been has when who will no more if out so said what up its about into than them can only
other time new some could these two may first then do any like my now over such our man me even most made after also did many
off before must well back through years where much your way down should because long each just those people how too good
ing ed er est ly tion ness able 日本 語 東京 中 国 人 한국 어 при вет мир élan naïve über straße 12 34 2024 0.5""".split()


def pre_tokenizers(source):
    """All names that the reference compares with."""
    text = (source / "src/llama-vocab.cpp").read_text()
    return sorted(set(re.findall(r'tokenizer_pre == "([^"]+)"', text)))


def special_tokens(**roles):
    return {f"tokenizer.ggml.{role}_token_id": (UINT32, token) for role, token in roles.items()}


def made(model, tokens, **more):
    """`tokens`: text, score, type."""
    texts, scores, types = zip(*tokens)
    return {
        "general.architecture": (STRING, b"llama"),
        "tokenizer.ggml.model": (STRING, model.encode()),
        "tokenizer.ggml.tokens": (ARRAY, Array(STRING, [text if isinstance(text, bytes) else text.encode() for text in texts])),
        "tokenizer.ggml.scores": (ARRAY, Array(FLOAT32, scores)),
        "tokenizer.ggml.token_type": (ARRAY, Array(INT32, types)),
        **more,
    }


def unique(tokens):
    seen = set()
    return [token for token in tokens if not (token[0] in seen or seen.add(token[0]))]


def pieces(rng):
    """Letters, words, parts of words and pairs of words, in any order."""
    letters = [chr(code) for code in range(0x21, 0x7F)] + list("éüñßçøабвгдежяüあいうアイウ日本語中国人東京한국어안녕😀…“”’、。")
    words = WORDS + [word.capitalize() for word in WORDS] + ["Ｆｕｌｌ", "ﬁ", "½", "㍿"]
    parts = [word[: rng.randint(1, len(word))] for word in words] + [word[rng.randint(0, len(word) - 1) :] for word in words]
    found = unique((piece,) for piece in letters + words + parts + [rng.choice(words) + rng.choice(words) for _ in range(100)])
    found = [piece for (piece,) in found]
    rng.shuffle(found)
    return found


def unigram(rng, charsmap, prefix, merge):
    tokens = [("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), ("<extra_id_0>", 0.0, USER_DEFINED)]
    tokens += [("▁", -2.5, NORMAL), ("▁▁", -6.0, NORMAL), ("unused0", -1.0, UNUSED)]
    for piece in pieces(rng):
        tokens.append((piece, -rng.uniform(3, 14), NORMAL))
        if rng.random() < 0.6:
            tokens.append(("▁" + piece, -rng.uniform(2, 13), NORMAL))
    more = {"tokenizer.ggml.add_space_prefix": (BOOL, prefix), "tokenizer.ggml.remove_extra_whitespaces": (BOOL, merge)}
    if charsmap:
        more["tokenizer.ggml.precompiled_charsmap"] = charsmap
    return made("t5", unique(tokens), **more)


def escaped(data):
    """As Python writes bytes: the text of a token of RWKV."""
    return repr(data)[2:-1].encode()


def rwkv(rng):
    tokens = [(b"<s>", 0.0, CONTROL)] + [(escaped(bytes([byte])), 0.0, NORMAL) for byte in range(256)]
    for piece in pieces(rng):
        data = piece.encode()
        tokens += [(escaped(part), 0.0, NORMAL) for part in (data, b" " + data, data[:-1], data + b"\n") if len(part) > 1]
    tokens += [(escaped(part), 0.0, NORMAL) for part in (b"\n\n", b"\r\n", b"\t\t", b"  ", b"\\n", b"'s")]
    tokens.append((b"\\n\\nUser:", 0.0, USER_DEFINED))
    return made("rwkv", unique(tokens))


def plamo2(rng):
    tokens = [("<|plamo:unk|>", 0.0, UNKNOWN), ("<|plamo:bos|>", 0.0, CONTROL), ("<|plamo:eos|>", 0.0, CONTROL)]
    tokens += [("<|plamo:pad|>", 0.0, CONTROL), ("</s>", 0.0, NORMAL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    for piece in [" ", "  ", "\n", "\t", *pieces(rng)]:
        tokens.append((piece, -rng.uniform(1, 12), NORMAL))
        # Equal scores, so that ties are drawn, too.
        tokens.append((" " + piece, float(-rng.randint(2, 9)), NORMAL))
    return made("plamo2", unique(tokens))


def merges_of(texts):
    """Ways to put every text together from two others."""
    known, merges = set(texts), []
    for text in sorted(known, key=len):
        merges += [f"{text[:cut]} {text[cut:]}" for cut in range(1, len(text)) if text[:cut] in known and text[cut:] in known]
    return Array(STRING, [merge.encode() for merge in merges])


def plain_pairs(rng, model, extra=(), **more):
    """A byte-pair vocabulary whose texts are spelled as they are."""
    texts = [piece for piece in pieces(rng) if " " not in piece] + [f"<0x{byte:02X}>" for byte in range(256)]
    for word in WORDS:
        texts += [word[:cut] for cut in range(1, len(word))]
    types = [(text, 0.0, BYTE if text.startswith("<0x") else NORMAL) for text in texts]
    tokens = unique([("<unk>", 0.0, UNKNOWN), ("</s>", 0.0, CONTROL), *types, *extra])
    merges = merges_of([text for text, _, kind in tokens if kind == NORMAL])
    roles = special_tokens(bos=1, eos=1, unknown=0)
    return made(model, tokens, **{"tokenizer.ggml.merges": (ARRAY, merges)}, **roles, **more)


def hybrid_dna(rng, base):
    """GPT-2's vocabulary and groups of six letters, of which some are missing."""
    tokens = [*base["tokenizer.ggml.tokens"][1], b"<dna>", b"</dna>", b"<oov>"]
    groups = ["".join(rng.choice("ACGT") for _ in range(6)) for _ in range(1500)]
    groups += [group[:cut] + "A" * (6 - cut) for group in groups[:300] for cut in (1, 2, 3, 4, 5)]
    tokens += [group.encode() + "\ue000".encode() for group in dict.fromkeys(groups)]
    types = [*base["tokenizer.ggml.token_type"][1]]
    return {
        **base,
        "tokenizer.ggml.model": (STRING, b"hybriddna"),
        "tokenizer.ggml.tokens": (ARRAY, Array(STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, Array(INT32, types + [NORMAL] * (len(tokens) - len(types)))),
    }


def all_vocabularies(source, folder, seed):
    """Writes what is not in the archive into the folder; name and path of each."""
    models = source / "models"
    archive = sorted(models.glob("ggml-vocab-*.gguf"))
    yield from ((path.stem.removeprefix("ggml-vocab-"), path) for path in archive)

    def write_made(name, pairs):
        path = folder / f"{name}.gguf"
        write(path, pairs)
        return name, path

    gpt2, gemma = (read(models / f"ggml-vocab-{name}.gguf") for name in ("gpt-2", "gemma-4"))
    # The model of that file names its pre-tokenizer by itself.
    gemma = {**gemma, "tokenizer.ggml.model": (STRING, b"gpt2")}
    for name in pre_tokenizers(source):
        # The reference ends itself at a space with this one, unless the model takes spaces away: see below.
        if name != "whitespace":
            base = gemma if name in PLAIN else gpt2
            yield write_made(f"pre-{name}", {**base, PRE: (STRING, name.encode())})
    charsmap = read(models / "ggml-vocab-nomic-bert-moe.gguf").get("tokenizer.ggml.precompiled_charsmap")
    rng = random.Random(seed)
    for prefix in (False, True):
        for merge in (False, True):
            name = f"made-unigram{'-prefix' * prefix}{'-merge' * merge}"
            yield write_made(name, unigram(rng, charsmap if prefix else None, prefix, merge))
    yield write_made("made-rwkv", rwkv(rng))
    yield write_made("made-plamo2", plamo2(rng))
    yield write_made("made-whitespace", plain_pairs(rng, "whitespace", **{PRE: (STRING, b"whitespace")}))
    lower = {"tokenizer.ggml.normalizer.lowercase": (BOOL, True), PRE: (STRING, b"whitespace")}
    yield write_made("made-whitespace-lower", plain_pairs(rng, "whitespace", **lower))
    yield write_made("made-dna", hybrid_dna(rng, gpt2))
