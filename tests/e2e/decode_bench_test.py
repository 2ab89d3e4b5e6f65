"""decode_bench from the outside: a worker with its model over two nodes, also past the model's
context, and the remote side alone; every figure is a number. PIGPEN_BUILD names the build folder."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = pathlib.Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release")) / "bench/decode_bench"
MODEL = os.environ.get("PIGPEN_MODEL",
                       str(ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}
TIMES = ("tokens_per_s", "ms_per_token", "device_ms", "node_ms", "network_ms", "wait_ms",
         "prefill_tokens_per_s", "exact_tokens_per_s")


def bench(*arguments):
    return subprocess.run([str(BENCH), *arguments], timeout=500, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env=ENVIRONMENT)


class DecodeBenchTest(unittest.TestCase):
    def report(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "decode.json"
            done = bench("--json", str(out), *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(out.read_text())
        for name in TIMES:
            self.assertIsInstance(report[name], (int, float), name)
        self.assertTrue(0 < report["rows_share"] < 1, report)
        return report

    def test_a_model_over_two_nodes_gives_every_figure(self):
        report = self.report("--model", MODEL, "--context=256", "--steps=2", "--sequences=2")
        for name in TIMES:
            self.assertGreater(report[name], 0, name)
        self.assertEqual(report["tokens_held"], 256 - 68)
        self.assertEqual(report["sequences"], 2)
        self.assertEqual(report["layers"], 30)

    def test_made_up_tokens_go_past_the_models_context(self):
        report = self.report("--model", MODEL, "--context=256", "--steps=1", "--synthetic-kv=9000")
        self.assertEqual(report["tokens_held"], 9000)
        self.assertGreater(report["device_ms"], 0)

    def test_the_remote_side_is_measured_without_a_model(self):
        report = self.report("--model=", "--context=1000", "--steps=2", "--layers=2", "--q-heads=8",
                             "--kv-heads=2", "--dim=64", "--nodes=1")
        self.assertEqual((report["layers"], report["tokens_held"]), (2, 1000))
        self.assertEqual(report["device_ms"], 0)

    def test_what_cannot_be_measured_is_refused_with_a_line(self):
        for option, value in (("--estimator", "foo"), ("--context", "8193"), ("--nodes", "0")):
            done = bench("--model", MODEL, option, value)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(option, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
