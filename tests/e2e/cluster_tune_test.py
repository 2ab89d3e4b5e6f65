"""Layers tuned at the seal of a prompt over real nodes: what is chosen is reported and used, answers
keep to the error that was asked for, and options that contradict it are refused.
PIGPEN_BUILD names the build folder."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from programs import ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process

OPTIONS = ("--memory-limit=1GiB", "--drain-timeout=5s")
LAYERS = 30


def worker(program, *arguments):
    return subprocess.run([str(WORKER), program, "--model", MODEL, *arguments], timeout=300,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=ENVIRONMENT)


class ClusterTuneTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def reports(self, program, *arguments):
        """The JSON objects of a run over two nodes that ends well, and what it said."""
        out = self.path / "report"
        out.unlink(missing_ok=True)
        with node_process.Node(NODE, *OPTIONS) as a, node_process.Node(NODE, *OPTIONS) as b:
            done = worker(program, f"--json={out}", f"--nodes=a={a.address},b={b.address}",
                          *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()], done

    def test_two_nodes_are_tuned_and_answers_are_within_the_error(self):
        error = 0.08
        (tuned, fixed), done = self.reports(
            "eval", "--quiet", "--text", str(TEXT), "--context=2600", "--tokens=8", "--compare",
            "--estimators=sketch,sketch:share=0.04", f"--tune-at-seal={error}")
        layers = tuned["tuning"]["layers"]
        self.assertEqual([layer["layer"] for layer in layers], list(range(LAYERS)))
        for layer in layers:
            self.assertEqual(layer["queries"], 8)
            self.assertRegex(layer["estimator"], r"^(exact|sketch:bits=2,share=[0-9.]+)$")
            self.assertLessEqual(layer["error"], error)
        self.assertGreater(len({layer["estimator"] for layer in layers}), 3)
        self.assertLess(tuned["error_mean"], error)
        self.assertGreater(tuned["error_mean"], 0.1 * error)
        self.assertIn("tuned for an error of 0.08:", done.stdout)
        # Another estimator of the same list keeps its own budget.
        self.assertNotIn("tuning", fixed)
        self.assertAlmostEqual(fixed["rows_share"], 0.04, delta=0.01)

    def test_replicas_of_kv_heads_are_tuned_for_an_answer(self):
        text = self.path / "text"
        text.write_text(TEXT.read_text()[:9000])
        (report,), done = self.reports(
            "generate", "--raw", f"--prompt-file={text}", "--max-tokens=4", "--tune-at-seal=0.2",
            "--shard=kv-heads", "--replicas=2")
        # A replica that is slow is passed over: it sees the other queries.
        queries = [layer["queries"] for layer in report["tuning"]["layers"]]
        self.assertEqual(len(queries), LAYERS)
        self.assertTrue(all(0 < count <= 8 for count in queries), queries)
        self.assertEqual(report["recoveries"], 0)
        # The line that opens a sequence with the same is one that the worker takes.
        line = report["tuning"]["estimator"]
        self.assertIn(f"--estimator {line}\n", done.stderr)
        (again,), done = self.reports("generate", "--raw", f"--prompt-file={text}",
                                      "--max-tokens=4", "--shard=kv-heads", f"--estimator={line}")
        self.assertAlmostEqual(again["rows_share"], report["rows_share"], delta=0.03)

    def test_what_contradicts_it_is_refused_with_what_to_do(self):
        for options, said in ((("--tune-at-seal=0",), "--tune-at-seal: '0' is no error"),
                              (("--tune-at-seal=.1", "--target-error=.1"), "give one of them"),
                              (("--tune-at-seal=.1", "--estimator=sketch:share=0.04"),
                               "without share=, rows= and error="),
                              (("--tune-at-seal=.1", "--estimator=exact"), "name sketch or lsh")):
            done = worker("generate", "--prompt=x", *options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
