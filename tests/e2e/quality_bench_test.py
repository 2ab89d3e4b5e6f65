"""The bench programs from the outside: each explains itself, and quality_bench measures every
estimator on a short text, and goes on where a run was ended. PIGPEN_BUILD names the build folder."""
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
FIELDS = {"bench", "text", "prompt", "estimator", "rows_share", "rows_share_q_head", "error_mean",
          "error_by_layer", "error_by_head", "coverage", "kl_mean", "top1_agreement", "ppl",
          "needle_correct", "needle_total", "bytes_per_token_kv_head",
          "index_bytes_per_token_kv_head"}


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

    def quality(self, out, *arguments):
        done = bench("quality_bench", "--model", MODEL, "--context=256", "--tokens=16",
                     "--rows-shares=0.2", "--json", str(out), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()]

    def test_every_estimator_is_reported_with_every_field(self):
        estimators = ["exact", "topk", "weight", "uniform", "quest", "loki", "lsh:k=10,l=150",
                      "lsh:k=6,centre=no", "sketch", "sketch:bits=1,balance=no",
                      "sketch:segments=2", "topk:sample=head"]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "quality.json"
            reports = self.quality(out, "--needles=0", "--estimators", ",".join(estimators))
        self.assertEqual([report["estimator"] for report in reports], estimators)
        for report in reports:
            self.assertLessEqual(FIELDS | COMMON, set(report))
            self.assertGreater(report["threads"], 0)
            if report["estimator"] == "exact":
                self.assertEqual(report["error_mean"], 0)
                self.assertEqual(report["rows_share"], 1)
            else:
                self.assertTrue(0 < report["rows_share"] < 1, report)
                self.assertTrue(0 < report["error_mean"] < 5, report)
        by_name = {report["estimator"]: report for report in reports}
        self.assertGreater(by_name["lsh:k=10,l=150"]["index_bytes_per_token_kv_head"], 300)
        # What is drawn by the exact weights errs little, what is drawn blindly much.
        self.assertLess(by_name["weight"]["error_mean"], by_name["quest"]["error_mean"])
        for name in ("sketch", "weight", "loki"):
            self.assertLess(by_name[name]["error_mean"], by_name["uniform"]["error_mean"])

    def test_a_second_run_measures_only_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "quality.json"
            self.quality(out, "--needles=1", "--estimators=sketch")
            reports = self.quality(out, "--needles=1", "--estimators=sketch,topk")
        self.assertEqual([(report["prompt"], report["estimator"]) for report in reports],
                         [("text", "sketch"), ("needle-0", "sketch"),
                          ("text", "topk"), ("needle-0", "topk")])
        self.assertEqual(reports[1]["needle_total"], 5)

    def test_layers_are_also_measured_one_by_one(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "quality.json"
            report, = self.quality(out, "--needles=0", "--by-layer", "--tokens=2",
                                   "--estimators=uniform")
        self.assertEqual(len(report["kl_by_layer"]), len(report["error_by_layer"]))
        self.assertGreater(max(report["kl_by_layer"]), 1e-4)
        # What errs in all layers errs more than in the median one.
        self.assertGreater(report["kl_mean"], sorted(report["kl_by_layer"])[15])

    def test_what_is_no_estimator_is_refused(self):
        for wrong in ("sketch:bits=3", "lsh:balance=no", "exact:sample=head", "magic", "lsh:k=",
                      "sketch:bits=2,"):
            done = bench("quality_bench", "--model", MODEL, "--estimators", wrong)
            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertIn("--estimators", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
