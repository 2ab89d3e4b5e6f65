#!/usr/bin/env python3
"""The worker's logits against an independent forward pass in numpy.

The weights are dequantised by the gguf package and multiplied in f64. The worker's f32 path must
agree to 1e-2 on 256 tokens, its default path (bf16 K/V) to a KL below 1e-3, and decoding token by
token must agree with prefill.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PIGPEN_BUILD", os.path.join(ROOT, "build", "release"))
MODEL = os.environ.get(
    "PIGPEN_MODEL", os.path.join(ROOT, ".cache", "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
TEXT = "/usr/share/common-licenses/GPL-3"
TOKENS = 256
LOGIT_ERROR_MAX = 1e-2
KL_MAX = 1e-3


def field(reader, key):
    return reader.fields[key].contents()


class Model:
    """A Llama-family GGUF file, one matrix dequantised at a time."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.layers = field(reader, "llama.block_count")
        self.q_heads = field(reader, "llama.attention.head_count")
        self.kv_heads = field(reader, "llama.attention.head_count_kv")
        self.hidden = field(reader, "llama.embedding_length")
        self.head_dim = self.hidden // self.q_heads
        self.theta = field(reader, "llama.rope.freq_base")
        self.epsilon = field(reader, "llama.attention.layer_norm_rms_epsilon")

    def weight(self, name):
        tensor = self.tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rope(x, theta):
    """Interleaved pairs of [tokens, heads, dim]."""
    tokens, _, dim = x.shape
    frequency = theta ** (-np.arange(0, dim, 2) / dim)
    angle = np.arange(tokens)[:, None] * frequency[None, :]
    cosine, sine = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cosine - x[..., 1::2] * sine
    out[..., 1::2] = x[..., 0::2] * sine + x[..., 1::2] * cosine
    return out


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def forward(model, ids):
    """Logits [tokens, vocabulary] in f64."""
    embedding = model.weight("token_embd.weight")
    h = embedding[ids]
    tokens = len(ids)
    mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
    for i in range(model.layers):
        block = f"blk.{i}."
        x = norm(h, model.weight(block + "attn_norm.weight"), model.epsilon)
        shape = (tokens, -1, model.head_dim)
        q = rope((x @ model.weight(block + "attn_q.weight").T).reshape(shape), model.theta)
        k = rope((x @ model.weight(block + "attn_k.weight").T).reshape(shape), model.theta)
        v = (x @ model.weight(block + "attn_v.weight").T).reshape(shape)
        group = model.q_heads // model.kv_heads
        o = np.empty_like(q)
        for head in range(model.q_heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(model.head_dim) + mask
            o[:, head] = softmax(scores) @ v[:, head // group]
        h = h + o.reshape(tokens, -1) @ model.weight(block + "attn_output.weight").T
        x = norm(h, model.weight(block + "ffn_norm.weight"), model.epsilon)
        gate = x @ model.weight(block + "ffn_gate.weight").T
        up = x @ model.weight(block + "ffn_up.weight").T
        h = h + (gate / (1.0 + np.exp(-gate)) * up) @ model.weight(block + "ffn_down.weight").T
    output = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
    return norm(h, model.weight("output_norm.weight"), model.epsilon) @ model.weight(output).T


def worker(work, kv_dtype):
    """Logits of the worker's exact pass, the text's ids and its own figures."""
    dump = os.path.join(work, f"logits.{kv_dtype}")
    report = os.path.join(work, f"report.{kv_dtype}")
    subprocess.run(
        [os.path.join(BUILD, "gpu-worker", "gpu-worker"), "eval", "--quiet", "--model", MODEL,
         "--text", TEXT, "--context", str(TOKENS + 1), "--tokens", str(TOKENS), "--kv-dtype",
         kv_dtype, "--dump-logits", dump, "--json", report], check=True, stdout=sys.stderr)
    with open(report, encoding="utf-8") as lines:
        figures = json.loads(lines.readline())
    logits = np.fromfile(dump, dtype="<f4").reshape(TOKENS, -1).astype(np.float64)
    return logits, figures


def kl_of(reference, logits):
    p = softmax(reference)
    log_p = reference - np.log(np.sum(np.exp(reference), axis=-1, keepdims=True))
    log_q = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return np.sum(p * (log_p - log_q), axis=-1)


def main():
    if not os.path.exists(MODEL):
        sys.exit(f"no model at {MODEL}: fetch it with deploy/fetch-model")
    with tempfile.TemporaryDirectory() as work:
        f32_logits, f32_figures = worker(work, "f32")
        bf16_logits, bf16_figures = worker(work, "bf16")
    ids = f32_figures["token_ids"][:TOKENS]
    reference = forward(Model(MODEL), np.array(ids))
    error = float(np.max(np.abs(reference - f32_logits)))
    kl = float(np.mean(kl_of(reference, bf16_logits)))
    failures = []
    print(f"f32 path: largest error of a logit {error:.2e} (at most {LOGIT_ERROR_MAX})")
    if not error < LOGIT_ERROR_MAX:
        failures.append("the f32 path differs from numpy")
    print(f"default path: mean KL {kl:.2e} (below {KL_MAX})")
    if not kl < KL_MAX:
        failures.append("the default path differs from numpy")
    for name, figures in (("f32", f32_figures), ("bf16", bf16_figures)):
        print(f"{name}: decode against prefill KL {figures['kl_mean']:.2e}, "
              f"top-1 {figures['top1_agreement']:.4f}, perplexity {figures['ppl']:.3f}")
        if not figures["kl_mean"] < KL_MAX:
            failures.append(f"decoding differs from prefill with {name}")
    if failures:
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
