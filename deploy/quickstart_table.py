#!/usr/bin/env python3
"""The table that ends deploy/quickstart, from what the worker measured. Exits with 1 when a figure
says that the run did not do what it should: a node that holds nothing, an estimator not used.

usage: quickstart_table.py WORK_FOLDER [JSON_PATH]
       quickstart_table.py --short WORK_FOLDER   exits with 0 when the text was too short for an
                                                 index on any node, the only reason why eval may fail
"""
import json
import sys
from pathlib import Path


INDEX_TOKENS_MIN = 1024  # attn-node --index-tokens-min


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def row(name, value, note=""):
    print(f"  {name:<34} {value:>14}  {note}".rstrip())


def too_short(entry):
    """No node held enough for an index: nothing could be sampled."""
    return max(entry["tokens_held"].values(), default=INDEX_TOKENS_MIN) < INDEX_TOKENS_MIN


def short():
    entries = lines_of(Path(sys.argv[2]) / "eval.json")
    unused = [entry for entry in entries
              if entry["estimator"] != "exact" and not entry["estimator_used"]]
    sys.exit(0 if unused and all(map(too_short, unused)) else 1)


def main():
    work = Path(sys.argv[1])
    run = lines_of(work / "generate.json")[-1]
    evals = {entry["estimator"].split(":")[0]: entry for entry in lines_of(work / "eval.json")}
    held = run["tokens_held"]

    row("prompt", f"{run['prompt_tokens']:,}", "tokens")
    for node, tokens in sorted(held.items()):
        row(f"held by {node}", f"{tokens:,}", "tokens")
    row("share of held keys read", f"{100 * run['rows_share_q_head']:.1f} %",
        f"{run['estimator']}, a query head")
    row("  distinct, a kv head", f"{100 * run['rows_share']:.1f} %", "what its group reads together")
    row("reading the prompt", f"{run['prefill_s']:.1f} s", f"{run['prefill_tokens_per_s']:.0f} tokens/s")
    row("a token of the answer", f"{run['ms_per_token']:.1f} ms", "of it:")
    row("  device", f"{run['device_ms']:.1f} ms", "this worker's computing")
    row("  node", f"{run['node_ms']:.1f} ms", "the slowest node's own time, all layers")
    row("  network", f"{run['network_ms']:.1f} ms", "dispatch to answer, less the node's time")
    print()
    print("  against exact attention, last 64 tokens of the text:")
    print("  keys read: by a query head, and distinct ones by its group")
    print(f"  {'estimator':<14} {'q head':>8} {'group':>8} {'KL, nats':>10} {'top-1 agrees':>13} {'perplexity':>11}")
    for name in ("exact", "sketch", "lsh"):
        entry = evals.get(name)
        if entry is None or (name != "exact" and too_short(entry)):
            print(f"  {name:<14} left out: no node held {INDEX_TOKENS_MIN:,} tokens of this text, "
                  "so that it was read exactly")
            continue
        print(f"  {name:<14} {100 * entry['rows_share_q_head']:>6.1f} % {100 * entry['rows_share']:>6.1f} % "
              f"{entry['kl_mean']:>10.4f} "
              f"{100 * entry['top1_agreement']:>11.1f} % {entry['ppl']:>11.3f}")
    print()
    print("  Try next:")
    print("    deploy/quickstart --estimator exact               the same without sampling")
    print("    deploy/quickstart --estimator sketch:share=0.02   half the keys read")
    print("    deploy/quickstart --nodes 4 --keep                four nodes that go on running")
    print("    build/release/gpu-worker/gpu-worker generate --help")

    if len(sys.argv) > 2:
        measured = evals.get(run["estimator"].split(":")[0], {})
        summary = {
            "bench": "quickstart",
            "estimator": run["estimator"],
            "estimator_used": run["estimator_used"],
            "prompt_tokens": run["prompt_tokens"],
            "tokens_held": held,
            "rows_share": run["rows_share"],
            "rows_share_q_head": run["rows_share_q_head"],
            "kl_mean": measured.get("kl_mean"),
            "top1_agreement": measured.get("top1_agreement"),
            "ms_per_token": run["ms_per_token"],
            "answer": run["answer"],
        }
        with open(sys.argv[2], "a", encoding="utf-8") as out:
            out.write(json.dumps(summary) + "\n")

    faults = [f"{node} holds no tokens" for node, tokens in held.items() if tokens == 0]
    if not held:
        faults.append("no node holds tokens")
    if not run["estimator_used"] and not too_short(run):
        faults.append(f"the estimator {run['estimator']} was not used")
    if not run["answer"].strip():
        faults.append("the answer is empty")
    for fault in faults:
        print(f"quickstart: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if sys.argv[1] == "--short":
    short()
main()
