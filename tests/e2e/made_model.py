"""A model of any shape with drawn weights and the words of the test model: sequences of many bytes that
cost little to compute. It says nothing that makes sense, and always the same."""
import functools

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from programs import MODEL

SEED = 20


def draw(random, *shape):
    return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


@functools.cache
def words():
    """Key, type and value of all that the test model says of its words."""
    return [(key, field.types[0], field.contents()) for key, field in GGUFReader(MODEL).fields.items()
            if key.startswith("tokenizer.")]


def make(path, layers, kv_heads, q_heads=None, head_dim=128, hidden=128, context=8192):
    """Writes it, and returns the bytes of a token's K and V in f32."""
    random, count = np.random.default_rng(SEED), 0
    q_heads = q_heads or kv_heads
    writer = GGUFWriter(path, "llama")
    writer.add_name("made")
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(q_heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, kind, value in words():
        if kind == GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
        count = len(value) if key == "tokenizer.ggml.tokens" else count
    writer.add_tensor("token_embd.weight", draw(random, count, hidden).astype(np.float16))
    writer.add_tensor("output_norm.weight", np.full(hidden, 4, np.float32))
    for i in range(layers):
        block = f"blk.{i}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{name}.weight", np.ones(hidden, np.float32))
        for name, rows, columns in (("attn_q", q_heads * head_dim, hidden),
                                    ("attn_k", kv_heads * head_dim, hidden),
                                    ("attn_v", kv_heads * head_dim, hidden),
                                    ("attn_output", hidden, q_heads * head_dim),
                                    ("ffn_gate", 2 * hidden, hidden), ("ffn_up", 2 * hidden, hidden),
                                    ("ffn_down", hidden, 2 * hidden)):
            writer.add_tensor(f"{block}{name}.weight", draw(random, rows, columns))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return layers * kv_heads * 2 * head_dim * 4
