#!/usr/bin/env python3
"""Our exact attend beside ONNX Runtime's CPU GroupQueryAttention: one decode step over the same
number of past tokens, rounds of the two alternating in one run.

What is measured of the peer: InferenceSession.run_with_iobinding of a model with one
com.microsoft.GroupQueryAttention node, past and present bound to the same memory (its shared-buffer
mode), so that one step appends one row a kv head and copies no past. Rotary embedding is off. What is
measured of ours: attend_bench's exact attend of one layer, without network. Both read all past keys
and values once a step."""
import argparse
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import common

ELEMENT = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}


def make_model(args, dtype):
    element = ELEMENT[dtype][0]
    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"],
        ["output", "present_key", "present_value"], domain="com.microsoft",
        num_heads=args.q_heads, kv_num_heads=args.kv_heads)
    capacity = args.tokens + 1
    cache = [1, args.kv_heads, capacity, args.dim]
    width = args.kv_heads * args.dim

    def tensor(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)
    graph = helper.make_graph(
        [node], "decode_step",
        [tensor("query", element, [1, 1, args.q_heads * args.dim]),
         tensor("key", element, [1, 1, width]), tensor("value", element, [1, 1, width]),
         tensor("past_key", element, cache), tensor("past_value", element, cache),
         tensor("seqlens_k", TensorProto.INT32, [1]),
         tensor("total_sequence_length", TensorProto.INT32, [1])],
        [tensor("output", element, [1, 1, args.q_heads * args.dim]),
         tensor("present_key", element, cache), tensor("present_value", element, cache)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                    helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 9
    return model.SerializeToString()


class Peer:
    """One session with its cache filled; step() is one decode step."""

    def __init__(self, args, dtype):
        kind = ELEMENT[dtype][1]
        random = np.random.default_rng(1)
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = args.threads
        settings.inter_op_num_threads = 1
        self.session = ort.InferenceSession(make_model(args, dtype), settings,
                                            providers=["CPUExecutionProvider"])
        shape = (1, args.kv_heads, args.tokens + 1, args.dim)
        filled = [random.standard_normal(shape, dtype=np.float32).astype(kind)
                  for _ in range(2)]
        self.inputs = {
            "query": random.standard_normal((1, 1, args.q_heads * args.dim), dtype=np.float32),
            "key": random.standard_normal((1, 1, args.kv_heads * args.dim), dtype=np.float32),
            "value": random.standard_normal((1, 1, args.kv_heads * args.dim), dtype=np.float32)}
        self.inputs = {name: value.astype(kind) for name, value in self.inputs.items()}
        self.output = ort.OrtValue.ortvalue_from_numpy(
            np.zeros((1, 1, args.q_heads * args.dim), dtype=kind))
        self.cache = [ort.OrtValue.ortvalue_from_numpy(cache) for cache in filled]
        self.binding = self.session.io_binding()
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        for name, number in (("seqlens_k", args.tokens), ("total_sequence_length", args.tokens + 1)):
            self.binding.bind_ortvalue_input(
                name, ort.OrtValue.ortvalue_from_numpy(np.array([number], dtype=np.int32)))
        for name, cache in zip(("key", "value"), self.cache):
            self.binding.bind_ortvalue_input(f"past_{name}", cache)
            self.binding.bind_ortvalue_output(f"present_{name}", cache)
        self.binding.bind_ortvalue_output("output", self.output)

    def step(self):
        self.session.run_with_iobinding(self.binding)

    def check(self, args):
        """The step's answer equals numpy's, so that what is timed is the attention asked for."""
        self.step()
        group = args.q_heads // args.kv_heads
        got = self.output.numpy().reshape(args.q_heads, args.dim).astype(np.float64)
        for head in (0, args.q_heads - 1):
            kv = head // group
            keys, values = (cache.numpy()[0, kv].astype(np.float32) for cache in self.cache)
            query = self.inputs["query"].reshape(args.q_heads, args.dim)[head].astype(np.float32)
            scores = (keys @ query).astype(np.float64) / np.sqrt(args.dim)
            weights = np.exp(scores - scores.max())
            want = (weights / weights.sum()) @ values
            error = np.linalg.norm(got[head] - want) / np.linalg.norm(want)
            if error > 0.02:
                sys.exit(f"ort_attend: the peer's head {head} is {error:.3g} away from numpy's")

    def measure(self, seconds):
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            begin = time.perf_counter()
            self.step()
            times.append((time.perf_counter() - begin) * 1e3)
        return times


def run(args, dtype):
    peer = Peer(args, dtype)
    peer.check(args)
    peer_ms, ours = [], {name: [] for name in args.ours.split(",")}
    isa = ""
    for _ in range(args.rounds):
        peer_ms += peer.measure(args.seconds)
        for name, medians in ours.items():
            said = common.attend_bench(args.build, [
                "--estimator=exact", f"--dtype={name}", f"--threads={args.threads}",
                f"--tokens={args.tokens}", f"--q-heads={args.q_heads}",
                f"--kv-heads={args.kv_heads}", f"--dim={args.dim}", f"--seconds={args.seconds}"])
            medians.append(said["ms_median"])
            isa = said["isa"]
    theirs = common.median(peer_ms)
    for name, medians in ours.items():
        mine = common.median(medians)
        common.report({"bench": "ort_attend", "peer": f"onnxruntime {ort.__version__}",
                       "peer_dtype": dtype, "dtype": name, "tokens": args.tokens,
                       "q_heads": args.q_heads, "kv_heads": args.kv_heads, "dim": args.dim,
                       "rounds": args.rounds, "peer_ms_median": round(theirs, 3),
                       "peer_ms_min": round(min(peer_ms), 3), "ms_median": round(mine, 3),
                       "ratio": round(theirs / mine, 2)}, args.threads, isa, args.json)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=98304, help="past tokens (98304)")
    parser.add_argument("--q-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="alternations (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="a round and side (1)")
    parser.add_argument("--peer-dtypes", default="f32,f16", help="the peer's caches (f32,f16)")
    parser.add_argument("--ours", default="bf16,f32,f16", help="our dtypes (bf16,f32,f16)")
    parser.add_argument("--build", default=str(common.RELEASE), help="our release build folder")
    parser.add_argument("--json", default="", metavar="PATH", help="append the reports here")
    args = parser.parse_args()
    print(f"onnx {onnx.__version__}, onnxruntime {ort.__version__}", file=sys.stderr)
    for dtype in args.peer_dtypes.split(","):
        run(args, dtype)


if __name__ == "__main__":
    main()
