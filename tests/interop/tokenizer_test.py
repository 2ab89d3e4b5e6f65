#!/usr/bin/env python3
"""Ids of the worker's tokenizer equal those of the Hugging Face `tokenizers` library.

The reference is built from the same GGUF file: its tokens and merges, with the pre-tokenizer that
the SmolLM2 models name. Needs the Python packages tokenizers and gguf. With --write-golden PATH it
writes the golden ids of the unit test instead.
"""
import json
import os
import random
import subprocess
import sys

import gguf
from tokenizers import AddedToken, Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PIGPEN_BUILD", os.path.join(ROOT, "build", "dev"))
MODEL = os.environ.get(
    "PIGPEN_MODEL", os.path.join(ROOT, ".cache", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
)
TOOL = os.path.join(BUILD, "tests", "interop", "tokenize_tool")
SEED = 20261129

SMOLLM = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_then_bytes(pattern):
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False},
        ],
    }


# pre: (pre-tokenizer, normalizer, ignore_merges)
PRES = {
    "smollm": (SMOLLM, None, False),
    "gpt-2": (SMOLLM["pretokenizers"][1], None, False),
    "llama-bpe": (split_then_bytes(LLAMA3_PATTERN % r"\p{N}{1,3}"), None, True),
    "qwen2": (split_then_bytes(LLAMA3_PATTERN % r"\p{N}"), {"type": "NFC"}, False),
}


def read_strings(reader, key):
    field = reader.fields[key]
    return [bytes(field.parts[index]).decode("utf-8") for index in field.data]


def reference(tokens, types, merges, pre):
    pre_tokenizer, normalizer, ignore_merges = PRES[pre]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [merge.split(" ", 1) for merge in merges],
    }
    tokenizer = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": model,
    }))
    specials = [token for token, kind in zip(tokens, types) if kind == 3]
    with_specials = Tokenizer.from_str(tokenizer.to_str())
    with_specials.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    return tokenizer, with_specials


def mixed_text():
    """About 20 KB of everything, the same each time."""
    draw = random.Random(SEED)
    samples = [
        "The quick brown fox jumps over the lazy dog; it's 1997, they're late & I'd've known. ",
        "for (size_t i = 0; i < n; i++) {\n\tif (x[i] >= 0x7fULL) { return -1; }\n}\n\n",
        "def f(a: list[int], *, b=None) -> dict:\n    return {k: v**2 for k, v in a.items()}\n",
        "人工智能正在改变世界，今天天气很好。我们去北京吧！",
        "안녕하세요, 세계! 오늘은 날씨가 참 좋네요. 한국어 토큰화 시험입니다.",
        "こんにちは世界。カタカナとひらがなと漢字。",
        "Привет, мир! Ёжик в тумане. Ελληνικά: καλημέρα κόσμε. עברית: שלום. العربية: مرحبا",
        "😀👍🏽👨‍👩‍👧‍👦🇩🇪🏴‍☠️❤️ ✨",
        "3.14159 1,000,000 12345678901234567890 ٣٤٥ ½ ⅷ ²³ 0x1F 1e-9 2026-11-29T18:58:00Z",
        " \t \n\r\n   \u00a0\u2003\u3000 \u2028\u2029\u0085 \n\n\n\n",
        "cafe\u0301 \u1112\u1161\u11ab e\u0323\u0302 A\u030a \ufb01 \u2126 'S 'LL 'Ve 's'll'\u017f",
        "\x01\x02\x07\x1b[0m\x7f\u200b\u200d\ufeff\ufffd\U000e0001\U0010ffff",
        "<|im_start|>user\nhello<|im_end|><|endoftext|> <| im_start |>",
        "snake_case camelCase SCREAMING kebab-case a.b.c::d->e[f]{g}(h) \"quoted\" `tick` $1 €5 %d",
    ]
    text = "".join(samples)
    while len(text.encode()) < 20600:
        kind = draw.randrange(5)
        if kind == 0:
            text += draw.choice(samples)
        elif kind == 1:
            text += " " * draw.randrange(1, 200) + draw.choice(["", "x", "1", "\n", "."])
        elif kind == 2:
            text += "".join(chr(draw.choice([draw.randrange(1, 0x250), draw.randrange(0x370, 0xd7ff)]))
                            for _ in range(40))
        elif kind == 3:
            text += "".join(draw.choice("0123456789 abcXYZ'\n\t_-") for _ in range(60))
        else:
            text += draw.choice("\n \taZ9é字") * draw.randrange(1, 120)
    return known(text)


def known(text):
    """Without letters and numbers added to Unicode after 14: PCRE2 10.42 does not know them."""
    import unicodedata
    assert unicodedata.unidata_version >= "14"
    return "".join(c for c in text
                   if unicodedata.category(c) != "Cn" or ord(c) in (0x10ffff, 0xe0001))


def ours(text, mode="", model=MODEL):
    done = subprocess.run([TOOL, model, mode], input=text.encode("utf-8"), capture_output=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"tokenize_tool failed: {done.stderr.decode()}")
    return [[int(word) for word in line.split()] for line in done.stdout.decode().split("\n")[:-1]]


def compare(name, text, mine, theirs):
    if mine == theirs:
        print(f"ok: {name}: {len(theirs)} ids")
        return True
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b),
              min(len(mine), len(theirs)))
    print(f"FAILED: {name}: {len(mine)} ids against {len(theirs)}, first difference at {at}: "
          f"{mine[at:at + 8]} against {theirs[at:at + 8]}; text begins {text[:80]!r}")
    return False


def code_points():
    """Every code point of the first plane and some others, each in three surroundings."""
    points = [c for c in range(1, 0x10000) if not 0xd800 <= c <= 0xdfff]
    points += [c for c in range(0x1f300, 0x1f700)] + [0x20000, 0x2a6d0, 0x10330, 0x1d400, 0xe0001]
    characters = [c for c in known("".join(map(chr, points)))]
    return [f"a {c}b" for c in characters] + [c * 3 for c in characters]


def rewritten(pre, directory):
    """The model's tokenizer alone under another pre-tokenizer's name."""
    path = os.path.join(directory, pre + ".gguf")
    reader = gguf.GGUFReader(MODEL)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(read_strings(reader, "tokenizer.ggml.tokens"))
    types = reader.fields["tokenizer.ggml.token_type"]
    writer.add_token_types([int(types.parts[index][0]) for index in types.data])
    writer.add_token_merges(read_strings(reader, "tokenizer.ggml.merges"))
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_golden(path, tokenizer):
    """Words with their ids, without and with a space before: `word|ids|ids` a line."""
    with open("/usr/share/common-licenses/GPL-3", encoding="utf-8") as file:
        words = sorted(set(file.read().split()))
    draw = random.Random(SEED)
    tokens = [t for t in tokenizer.get_vocab() if t.isascii() and t.isprintable() and "|" not in t]
    tokens.sort()
    samples = known(mixed_text()).split()
    words += [w for w in sorted(set(samples)) if "|" not in w and w.isprintable() and len(w) < 40]
    seen = set()
    words = [w for w in words if "|" not in w and not (w in seen or seen.add(w))]
    while len(words) < 5000:
        word = "".join(draw.choice(tokens) for _ in range(draw.randrange(1, 4)))
        if word not in seen and len(word) < 40:
            seen.add(word)
            words.append(word)
    with open(path, "w", encoding="utf-8") as file:
        for word in words[:5000]:
            pairs = [tokenizer.encode(prefix + word).ids for prefix in ("", " ")]
            file.write("|".join([word] + [" ".join(map(str, ids)) for ids in pairs]) + "\n")


def main():
    if not os.path.exists(MODEL):
        sys.exit(f"the model {MODEL} is missing: tests/run fetches it, or set PIGPEN_MODEL")
    reader = gguf.GGUFReader(MODEL)
    tokens = read_strings(reader, "tokenizer.ggml.tokens")
    merges = read_strings(reader, "tokenizer.ggml.merges")
    types_field = reader.fields["tokenizer.ggml.token_type"]
    types = [int(types_field.parts[index][0]) for index in types_field.data]
    if len(sys.argv) == 3 and sys.argv[1] == "--write-golden":
        write_golden(sys.argv[2], reference(tokens, types, merges, "smollm")[0])
        return

    import tempfile
    good = True
    with tempfile.TemporaryDirectory() as directory:
        for pre in PRES:
            plain, special = reference(tokens, types, merges, pre)
            model = MODEL if pre == "smollm" else rewritten(pre, directory)
            text = mixed_text()
            good &= compare(f"{pre}: mixed text of {len(text.encode())} bytes", text,
                            ours(text, model=model)[0], plain.encode(text).ids)
            good &= compare(f"{pre}: mixed text with control tokens parsed", text,
                            ours(text, "special", model)[0], special.encode(text).ids)
            texts = code_points()
            mine = ours("\0".join(texts), "records", model)
            theirs = [encoding.ids for encoding in plain.encode_batch(texts)]
            wrong = [index for index in range(len(texts)) if mine[index] != theirs[index]]
            for index in wrong[:10]:
                compare(f"{pre}: code point {texts[index]!r}", texts[index], mine[index],
                        theirs[index])
            good &= compare(f"{pre}: {len(texts)} texts of single code points", "", wrong, [])
    for character, count in (("Z", 131072), (" ", 1000000), ("\n", 200000), ("7", 100000),
                             ("字", 30000)):
        text = character * count
        plain, _ = reference(tokens, types, merges, "smollm")
        good &= compare(f"{count} times {character!r}", text, ours(text)[0],
                        plain.encode(text).ids)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
