"""The bench programs from the outside: each explains itself, and quality_bench reports every field
of an estimator on a short text. PIGPEN_BUILD names the build folder."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCHES = pathlib.Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release")) / "bench"
MODEL = os.environ.get("PIGPEN_MODEL",
                       str(ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}
COMMON = {"machine", "isa", "threads", "commit"}
FIELDS = {"bench", "estimator", "rows_share", "error_mean", "kl_mean", "top1_agreement", "ppl",
          "needle_correct", "needle_total", "index_bytes_per_token_kv_head"}


def bench(name, *arguments):
    return subprocess.run([str(BENCHES / name), *arguments], timeout=500, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, env=ENVIRONMENT)


class QualityBenchTest(unittest.TestCase):
    def test_every_bench_explains_itself(self):
        names = sorted(path.stem for path in (ROOT / "bench").glob("*_bench.c"))
        self.assertIn("quality_bench", names)
        for name in names:
            done = bench(name, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("--json", done.stdout, name)

    def test_an_estimator_is_reported_with_every_field(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "quality.json"
            done = bench("quality_bench", "--model", MODEL, "--context=256", "--estimators=lsh",
                         "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(out.read_text())
        self.assertLessEqual(FIELDS | COMMON, set(report))
        self.assertEqual(report["estimator"], "lsh")
        self.assertTrue(0 < report["rows_share"] < 1, report)
        self.assertTrue(0 < report["error_mean"] < 5, report)
        self.assertGreater(report["index_bytes_per_token_kv_head"], 300)
        self.assertGreater(report["threads"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
