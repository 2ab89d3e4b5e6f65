"""The whole worker on a GPU, over two nodes: `generate` gives the text of the host device, and `eval` its
figures. PIGPEN_TEST_DEVICE names another device than the first GPU."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import gpu_here

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from answer import Answer  # noqa: E402
from programs import ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process  # noqa: E402

DEVICE = os.environ.get("PIGPEN_TEST_DEVICE", "cuda")
TOKENS = 40


class GpuWorkerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = Path(folder.name)
        cls.nodes = []
        for _ in range(2):
            node = node_process.Node(NODE, "--memory-limit=2GiB", "--drain-timeout=5s")
            cls.addClassCleanup(node.kill)
            cls.nodes.append(node)

    def text(self, device, *options):
        with Answer(self.path, self.nodes, f"--device={device}", *options, tokens=TOKENS) as run:
            status, figures = run.finish()
        self.assertEqual(status, 0, run.errors())
        self.assertGreater(figures["keys_held"], 0)
        return run.text

    def test_the_likeliest_tokens_are_the_hosts(self):
        self.assertEqual(self.text(DEVICE, "--estimator=exact"),
                         self.text("host", "--estimator=exact"))

    def test_penalties_and_the_same_seed_give_the_same_answer_twice(self):
        options = ("--estimator=exact", "--temperature=0.8", "--top-p=0.9", "--repeat-penalty=1.1")
        self.assertEqual(self.text(DEVICE, *options), self.text(DEVICE, *options))

    def test_what_eval_measures_is_the_hosts(self):
        measured = []
        for device in (DEVICE, "host"):
            path = self.path / f"eval-{len(measured)}.json"
            nodes = ",".join(f"n{i}={node.address}" for i, node in enumerate(self.nodes))
            done = subprocess.run(
                [str(WORKER), "eval", "--model", MODEL, "--text", str(TEXT), "--context=1500",
                 "--tokens=24", "--estimators=exact", "--kv-dtype=f32", f"--device={device}",
                 f"--nodes={nodes}", "--json", str(path)], capture_output=True, text=True,
                env=ENVIRONMENT, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            measured.append([json.loads(line) for line in path.read_text().splitlines()])
        self.assertEqual(len(measured[0]), len(measured[1]))
        for own, host in zip(*measured):
            self.assertAlmostEqual(own["ppl"] / host["ppl"], 1.0, delta=1e-3)
            self.assertEqual(own["top1_agreement"], host["top1_agreement"])


if __name__ == "__main__":
    if DEVICE == "cuda":
        gpu_here.want_gpu()
    unittest.main(verbosity=2)
