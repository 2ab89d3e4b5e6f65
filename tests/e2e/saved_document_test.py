"""A prompt that is saved from one cluster and loaded into another: the same text without a prefill,
other questions about the same text, and clear refusals. PIGPEN_BUILD names the build folder."""
import contextlib
import json
import pathlib
import subprocess
import tempfile
import unittest

from programs import CTL, ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process

OPTIONS = ("--memory-limit=1GiB", "--drain-timeout=5s")


class SavedDocumentTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.text = self.path / "text.txt"
        self.text.write_text(TEXT.read_text()[:2500])
        self.saved = self.path / "saved"
        self.addCleanup(self.folder.cleanup)

    def worker(self, *arguments):
        return subprocess.run(
            [str(WORKER), "generate", "--model", MODEL, "--raw", "--max-tokens=16", "--quiet",
             *arguments], timeout=300, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env=ENVIRONMENT)

    def generate(self, *arguments, count=0):
        """(figures, tokens held) of a run on so many fresh nodes."""
        out = self.path / "run.json"
        out.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(node_process.Node(NODE, *OPTIONS)) for _ in range(count)]
            named = ["--nodes=" + ",".join(f"n{i}={node.address}" for i, node in enumerate(nodes))
                     ] if nodes else []
            done = self.worker("--prompt-file", str(self.text), "--json", str(out), *named,
                               *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text())

    def test_text_saved_from_two_nodes_goes_on_alike_on_three(self):
        first = self.generate("--kv-dtype=f32", f"--save-kv={self.saved}", count=2)
        again = self.generate("--kv-dtype=f32", f"--load-kv={self.saved}", count=3)
        self.assertEqual(again["answer"], first["answer"])
        self.assertEqual(again["loaded_tokens"], first["prompt_tokens"] - 1)
        self.assertEqual(len(again["tokens_held"]), 3)
        for name, tokens in again["tokens_held"].items():
            self.assertGreater(tokens, 0, f"{name} holds nothing")
        print(f"{first['prompt_tokens']} tokens: prefill {first['prefill_s']:.2f} s, "
              f"save {first['save_s']:.2f} s, load {again['prefill_s']:.2f} s")
        by_heads = self.generate("--kv-dtype=f32", "--shard=kv-heads", f"--load-kv={self.saved}",
                                 count=2)
        self.assertEqual(by_heads["answer"], first["answer"])
        alone = self.generate("--kv-dtype=f32", f"--load-kv={self.saved}")
        self.assertEqual(alone["answer"], first["answer"])

    def test_sketch_takes_its_balance_along(self):
        self.text.write_text(TEXT.read_text()[:5200])  # long enough to be measured
        first = self.generate("--estimator=sketch", f"--save-kv={self.saved}", count=1)
        self.assertTrue((self.saved / "balances").stat().st_size > 0)
        again = self.generate("--estimator=sketch", f"--load-kv={self.saved}", count=1)
        self.assertTrue(again["estimator_used"])
        self.assertEqual(again["loaded_tokens"], first["prompt_tokens"] - 1)

    def test_another_question_about_the_text_takes_what_both_begin_with(self):
        self.generate("--kv-dtype=f32", f"--save-kv={self.saved}", "--prompt=What is this?")
        asked = self.generate("--kv-dtype=f32", "--prompt=Who wrote it?", count=1)
        loaded = self.generate("--kv-dtype=f32", "--prompt=Who wrote it?",
                               f"--load-kv={self.saved}", count=1)
        self.assertEqual(loaded["answer"], asked["answer"])
        self.assertLess(loaded["loaded_tokens"], loaded["prompt_tokens"] - 2)
        self.assertGreater(loaded["loaded_tokens"], loaded["prompt_tokens"] - 20)

    def test_what_does_not_fit_or_is_damaged_is_refused_and_nothing_stays_on_the_nodes(self):
        self.generate(f"--save-kv={self.saved}")
        prompt = ("--prompt-file", str(self.text))
        done = self.worker(*prompt, f"--save-kv={self.saved}")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("it exists", done.stderr)
        done = self.worker(*prompt, f"--load-kv={self.saved}", "--kv-dtype=f32")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--kv-dtype=bf16", done.stderr)
        done = self.worker("--prompt=Another text altogether", f"--load-kv={self.saved}")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("another text", done.stderr)
        with node_process.Node(NODE, *OPTIONS) as node:
            file = self.saved / "v.0017"
            rows = bytearray(file.read_bytes())
            rows[len(rows) // 2] ^= 1
            file.write_bytes(rows)
            done = self.worker(*prompt, f"--load-kv={self.saved}", f"--nodes=n={node.address}")
            listed = subprocess.run([str(CTL), "parts", "--node", node.address], timeout=30,
                                    capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("v.0017 is damaged", done.stderr)
        self.assertEqual(listed.stdout.splitlines()[-1], "0 parts", listed.stderr)


if __name__ == "__main__":
    unittest.main()
