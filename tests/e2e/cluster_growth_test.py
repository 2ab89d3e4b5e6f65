"""Sequences that are larger than their nodes: cut over four of them, saved and loaded into a fresh
cluster; and one that grows on another node where its own is full. On models of drawn weights, whose
tokens have many bytes and take little to compute. PIGPEN_BUILD names the build folder."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import made_model
from programs import ENVIRONMENT, NODE, TEXT, WORKER, node_process

MIB = 1 << 20
LIMIT_MIB, LARGER_MIB = 144, 242  # of which 33 and 131 are left for rows


class ClusterGrowthTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def nodes(self, count, limit_mib=LIMIT_MIB):
        """--nodes of so many fresh ones."""
        started = []
        for _ in range(count):
            node = node_process.Node(NODE, f"--memory-limit={limit_mib}MiB", "--drain-timeout=5s")
            self.addCleanup(node.kill)
            started.append(node)
        return "--nodes=" + ",".join(f"n{i}={node.address}" for i, node in enumerate(started))

    def make_model(self, layers, kv_heads):
        self.model = self.path / "made.gguf"
        return made_model.make(self.model, layers, kv_heads)

    def start(self, program, *options):
        return subprocess.run(
            [str(WORKER), program, "--model", str(self.model), "--quiet", "--log-level=info", "--json",
             str(self.path / "run.json"), *options], timeout=900, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, env=ENVIRONMENT)

    def run_worker(self, program, *options):
        """What was measured, an object a line, and what was said."""
        (self.path / "run.json").unlink(missing_ok=True)
        done = self.start(program, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = (self.path / "run.json").read_text().splitlines()
        return [json.loads(line) for line in lines], done.stderr

    def text(self, characters):
        path = self.path / "text.txt"
        path.write_text(TEXT.read_text()[:characters])
        return str(path)

    def test_a_sequence_larger_than_two_nodes_runs_on_four_and_is_loaded_into_others(self):
        token_bytes = self.make_model(layers=4, kv_heads=32)
        ask = ("--prompt-file", self.text(18980), "--raw", "--max-tokens=24", "--kv-dtype=f32",
               "--estimator=exact")
        saved = str(self.path / "saved")
        for count in 1, 2:
            refused = self.start("generate", *ask, self.nodes(count, LARGER_MIB))
            self.assertEqual((refused.returncode, refused.stdout), (1, ""), refused.stderr)
            self.assertIn("MEMORY", refused.stderr)
        (first,), _ = self.run_worker("generate", *ask, "--save-kv", saved,
                                      self.nodes(4, LARGER_MIB))
        (again,), _ = self.run_worker("generate", *ask, "--load-kv", saved,
                                      self.nodes(4, LARGER_MIB))
        bytes_held = first["tokens_left"] * token_bytes
        print(f"{first['tokens_left']} tokens of {token_bytes / 1024:.0f} KiB, {bytes_held / MIB:.0f} "
              f"MiB on four nodes of {LARGER_MIB} MiB, {bytes_held / MIB / LARGER_MIB:.2f} limits: "
              f"{first['tokens_held']}; prefill {first['prefill_s']:.1f} s, loaded in "
              f"{again['prefill_s']:.1f} s")
        self.assertGreater(bytes_held, 2 * LARGER_MIB * MIB)
        self.assertEqual(again["answer"], first["answer"])
        for run in first, again:
            self.assertTrue(all(held > 0 for held in run["tokens_held"].values()))
            self.assertTrue(all(held * token_bytes < LARGER_MIB * MIB
                                for held in run["tokens_held"].values()))

    def test_what_has_no_room_on_its_node_grows_on_another_and_is_attended_exactly(self):
        self.make_model(layers=4, kv_heads=12)
        entries, _ = self.run_worker(
            "eval", "--text", self.text(5200), "--tokens=800", "--kv-dtype=f32", "--reserve-tokens=0",
            "--estimators=exact,exact", self.nodes(2))
        for entry in entries:
            print(f"{entry['tokens_held']} in {entry['parts']} parts, logit error "
                  f"{entry['logit_error_max']:.1e}")
            self.assertGreater(entry["parts"], 2)
            self.assertEqual(entry["tokens_recomputed"], 0)
            self.assertLess(entry["logit_error_max"], 1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
