"""Strings at random that make tokenizers do what they seldom do."""

from metadata import read

RANGES = [(0x20, 0x7E)] * 6 + [
    (0x21, 0x2F), (0x30, 0x39), (0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0x00, 0x1F), (0x80, 0xFF), (0xA0, 0x17F), (0x180, 0x24F),
    (0x250, 0x2AF), (0x2B0, 0x36F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x5FF), (0x600, 0x6FF), (0x660, 0x669),
    (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xEFF), (0x1000, 0x11FF), (0x13A0, 0x13FF), (0x1780, 0x17FF),
    (0x1C80, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x23FF), (0x2460, 0x27BF), (0x2C00, 0x2DFF),
    (0x2F00, 0x2FDF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x318F), (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA640, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFE4F), (0xFE50, 0xFEFF), (0xFF00, 0xFFEF),
    (0xFFF0, 0xFFFD), (0x10000, 0x105FF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1FAFF),
    (0x20000, 0x2FA1F), (0xE0000, 0xE01EF),
]  # fmt: skip
PARTS = [
    " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\v", "'s", "'S", "'ll", "'LL", "'re",
    " 's", "'", " ' ", "’s", "it's", "I'M", "don't", "...", " .", " ,", "!!", "?!", "://", "/*", "<|", "|>", "</", "123", "1234567",
    "12345678901234", "3.14", "1,000,000", "٣٤٥", "½", "²", "IV", "Hello", "hello", "HELLO", "WoRlD", "camelCase", "XMLHttp", "ÉCOLE",
    "élan", "naïve", "ﬁn", "Straße", "İstanbul", "ǅ", "日本語", "東京タワー", "中文字", "한국어", "ไทย", "हिन्दी", "বাংলা", "ພາສາ", "မြန်မာ",
    "العربية", "עברית", "Привет", "Ωmega", "e\u0301", "a\u0300\u0301", "😀", "👨\u200d👩\u200d👧", "🇩🇪", "\ufeff", "\u200b", "\u00ad",
    "<sentinel:12>", "<sentinel:>", "IMGIMGABCZ", "IMGIMGABCDEZ", "<dna>acgtacgtac</dna>", "<dna>ACGTNNNA", "</dna>", "<dna>",
    "the", " the", "The quick brown fox", "return x;", "def f(x):\n    return x", "{\"a\": [1, 2]}", "𝔘𝔫𝔦", "ꙮ", "\u3010注\u3011", "“”", "—",
    "ㄅㄆ", "！", "，", "…",
]  # fmt: skip


def character(rng):
    low, high = rng.choice(RANGES)
    # No zero bytes: some programs in between take them for the end.
    return chr(rng.randint(max(low, 1), high))


def draw(rng, texts, specials):
    """One string: of characters, of parts, of texts of the vocabulary, or of all of them."""
    kind, pieces = rng.random(), []
    for _ in range(rng.randint(0, rng.choice((3, 8, 20)))):
        pick = rng.random()
        if kind < 0.25 or pick < 0.3:
            pieces.append(character(rng) * rng.choice((1, 1, 1, 1, 1, 1, 2, 3, 5)))
        elif pick < 0.35:
            pieces.append(rng.choice((" ", "\n", "0", "a", "\t", "=", "あ")) * rng.randint(1, rng.choice((4, 20, 300))))
        elif pick < 0.8 or kind > 0.7:
            pieces.append(rng.choice(PARTS))
        elif pick < 0.92 or not specials:
            pieces.append(rng.choice(texts))
        else:
            pieces.append(rng.choice(specials))
    return "".join(pieces)


def texts_of(path):
    """Texts of the vocabulary that are text, and those of them that are special."""
    pairs = read(path)
    kinds = pairs.get("tokenizer.ggml.token_type", (0, []))[1]
    texts = [text.decode(errors="replace").replace("▁", " ").replace("Ġ", " ").replace("\0", "") for text in pairs["tokenizer.ggml.tokens"][1]]
    return texts, [text for text, kind in zip(texts, kinds) if kind in (2, 3, 4)][:500]
