#!/usr/bin/env python3
"""Our worker's decode beside llama.cpp's CPU decode: the same GGUF file, the same prompt, the same
threads, rounds alternating in one run.

What is measured of the peer: llama-cpp-python's eval of one token, logits included, with the context
filled by the prompt and its cache in f16; the model stays loaded and the context is cut back after
every round. What is measured of ours: `gpu-worker generate` without nodes (ms_per_token of its own
report), and, with --nodes, decode_bench over that many nodes on this machine (exact over made-up
K/V of as many tokens, since its prompt would be read anew every round)."""
import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import llama_cpp

import common

MODEL = common.ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


class Peer:
    def __init__(self, args, flash):
        self.model = llama_cpp.Llama(args.model, n_ctx=args.context + args.steps + 64,
                                     n_threads=args.threads, n_threads_batch=args.threads,
                                     n_batch=512, flash_attn=flash, verbose=False)
        tokens = self.model.tokenize(Path(args.text).read_bytes(), add_bos=False)
        while len(tokens) < args.context:
            tokens = tokens + tokens
        self.tokens = tokens[:args.context]
        begin = time.perf_counter()
        self.model.eval(self.tokens)
        self.prefill_s = time.perf_counter() - begin

    def text(self):
        return self.model.detokenize(self.tokens)

    def measure(self, steps):
        """Milliseconds of each step; the context is cut back to the prompt before."""
        self.model.n_tokens = len(self.tokens)
        times = []
        for token in self.tokens[:steps]:
            begin = time.perf_counter()
            self.model.eval([token])
            times.append((time.perf_counter() - begin) * 1e3)
        return times


def alone(args, prompt):
    """ms a token of the worker by itself."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([str(Path(args.build) / "gpu-worker" / "gpu-worker"), "generate",
                        f"--model={args.model}", f"--prompt-file={prompt}", "--raw", "--quiet",
                        f"--max-tokens={args.steps}", "--temperature=0", "--kv-dtype=f16",
                        f"--threads={args.threads}", f"--json={out.name}"],
                       check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text(encoding="utf-8").splitlines()[-1])


def over_nodes(args):
    """ms a token over nodes of this machine; its isa."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([str(Path(args.build) / "bench" / "decode_bench"), f"--model={args.model}",
                        f"--synthetic-kv={args.context}", f"--nodes={args.nodes}",
                        "--estimator=exact", f"--steps={args.steps}", f"--threads={args.threads}",
                        f"--node-threads={max(1, args.threads // args.nodes)}",
                        f"--json={out.name}"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text(encoding="utf-8").splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--context", type=int, default=2048, help="tokens of the prompt (2048)")
    parser.add_argument("--steps", type=int, default=32, help="tokens a round (32)")
    parser.add_argument("--rounds", type=int, default=3, help="alternations (3)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2, help="nodes of our second figure; 0: none")
    parser.add_argument("--flash", action="store_true", help="the peer's flash attention")
    parser.add_argument("--build", default=str(common.RELEASE), help="our release build folder")
    parser.add_argument("--json", default="", metavar="PATH", help="append the report here")
    args = parser.parse_args()

    peer = Peer(args, args.flash)
    theirs, mine, nodes, prefill = [], [], [], []
    isa = common.isa(args.build)
    with tempfile.NamedTemporaryFile(suffix=".txt") as prompt:
        prompt.write(peer.text())
        prompt.flush()
        for _ in range(args.rounds):
            theirs += peer.measure(args.steps)
            said = alone(args, prompt.name)
            mine.append(said["ms_per_token"])
            prefill.append(said["prefill_tokens_per_s"])
            if args.nodes > 0:
                nodes.append(over_nodes(args)["ms_per_token"])
    ms, own, spread = common.median(theirs), common.median(mine), common.median(nodes)
    common.report({"bench": "llama_decode", "peer": f"llama-cpp-python {llama_cpp.__version__}",
                   "flash": args.flash, "context": args.context, "rounds": args.rounds,
                   "peer_tokens_per_s": round(1e3 / ms, 1),
                   "peer_prefill_tokens_per_s": round(args.context / peer.prefill_s, 1),
                   "tokens_per_s": round(1e3 / own, 1),
                   "prefill_tokens_per_s": round(common.median(prefill), 1),
                   "nodes": args.nodes,
                   "nodes_tokens_per_s": round(1e3 / spread, 1) if spread else 0,
                   "ratio": round(ms / own, 2), "nodes_ratio": round(ms / spread, 2) if spread else 0},
                  args.threads, isa, args.json)


if __name__ == "__main__":
    main()
