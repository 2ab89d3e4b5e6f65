"""How the worker's programs end when they cannot go on: interrupted, without a node, without a file.
Each says why on stderr, leaves no part on a node, and ends with the exit code that README.md tells.
PIGPEN_BUILD names the build folder."""
import re
import signal
import subprocess
import tempfile
import unittest

from programs import CTL, ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process

OPTIONS = ("--memory-limit=2GiB", "--drain-timeout=5s")


def command(program, *arguments):
    return [str(WORKER), program, "--model", MODEL, *arguments]


def worker(program, *arguments):
    return subprocess.run(command(program, *arguments), timeout=300, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env=ENVIRONMENT)


def interrupt_at(line, *arguments):
    """Runs the command, sends SIGINT when stderr says the line: (exit status, what followed)."""
    running = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        for said in running.stderr:
            if re.search(line, said):
                break
        else:
            raise AssertionError(f"it never said {line}")
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        return running.wait(timeout=30), rest
    finally:
        running.kill()
        running.wait()
        running.stderr.close()


class ClusterErrorsTest(unittest.TestCase):
    def test_interrupted_eval_leaves_no_part_on_the_node(self):
        for line in (r"^prefill [1-9]", r"^decode [1-9]"):
            with node_process.Node(NODE, *OPTIONS) as node:
                status, rest = interrupt_at(line, "eval", "--text", str(TEXT), "--context=2000",
                                            "--tokens=500", "--estimators=exact,lsh",
                                            f"--nodes=n={node.address}")
                listed = subprocess.run([str(CTL), "parts", "--node", node.address], timeout=30,
                                        capture_output=True, text=True, env=ENVIRONMENT)
            self.assertEqual(status, 130, rest)
            self.assertIn("gpu-worker eval was interrupted", rest)
            self.assertNotIn("failed", rest)
            self.assertEqual(listed.stdout.splitlines()[-1], "0 parts", line)

    def test_interrupted_prefill_of_generate_leaves_no_part_on_the_node(self):
        with node_process.Node(NODE, *OPTIONS) as node:
            status, rest = interrupt_at(r"^prefill [1-9]", "generate", "--raw", "--prompt-file",
                                        str(TEXT), f"--nodes=n={node.address}")
            listed = subprocess.run([str(CTL), "parts", "--node", node.address], timeout=30,
                                    capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(status, 130, rest)
        self.assertEqual(listed.stdout.splitlines()[-1], "0 parts")

    def test_waiting_for_a_node_is_told_and_can_be_interrupted(self):
        line = r"^waiting for node lost \(127\.0\.0\.1:1\): .*refused.*, \d+ s of 30 s$"
        for program in (("generate", "--prompt=Hello"), ("eval", "--text", str(TEXT))):
            status, rest = interrupt_at(line, *program, "--nodes=lost=127.0.0.1:1")
            self.assertEqual(status, 130, rest)

    def test_a_node_that_never_comes_is_named_with_its_cause(self):
        done = worker("generate", "--prompt=Hello", "--nodes=lost=127.0.0.1:1", "--quiet",
                      "--nodes-wait=2s")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^node lost \(127\.0\.0\.1:1\) is missing: .*refused")
        self.assertNotIn("waiting", done.stderr)

    def test_wrong_options_end_with_two_and_name_the_option(self):
        for program in (("generate", "--prompt=x"), ("eval", "--text", str(TEXT))):
            estimator = "--estimator" if program[0] == "generate" else "--estimators"
            for option, value in (("--nodes", "a=127.0.0.1:65536"), ("--nodes", "a=127.0.0.1"),
                                  (estimator, "foo"), ("--threads", "x"),
                                  ("--dense-layers", "3,2")):
                done = worker(*program, option, value)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(option, done.stderr)
                self.assertIn(value, done.stderr)
        done = worker("generate")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--prompt", done.stderr)

    def test_files_that_cannot_be_read_or_written_are_named_with_the_cause(self):
        with tempfile.NamedTemporaryFile(suffix=".bin") as binary:
            binary.write(bytes(range(128, 256)))
            binary.flush()
            cases = (
                (("generate", "--prompt-file", "/"), "cannot read /: Is a directory"),
                (("generate", "--prompt-file", "/nothing"),
                 "cannot read /nothing: No such file or directory"),
                (("generate", "--prompt-file", binary.name), "UTF-8"),
                (("generate", "--prompt=x", "--json=/"), "--json: cannot write /: Is a directory"),
                (("generate", "--prompt=x", "--model=/"), "cannot load the model /: "),
                (("eval", "--text=/"), "cannot read /: Is a directory"),
                (("eval", "--text", binary.name), f"{binary.name} cannot be encoded"),
                (("eval", "--text", str(TEXT), "--dump-logits=/no/file"),
                 "--dump-logits: cannot write /no/file: No such file or directory"),
                (("eval", "--text", str(TEXT), "--dump-decoded=/no/file"),
                 "--dump-decoded: cannot write /no/file: No such file or directory"),
            )
            for arguments, line in cases:
                done = worker(*arguments)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                self.assertIn(line, done.stderr)
        done = worker("eval", "--text", str(TEXT), "--context=64", "--tokens=1", "--quiet",
                      "--dump-decoded=/dev/full")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cannot write /dev/full\n", done.stderr)

    def test_figures_that_cannot_be_written_are_told_instead(self):
        done = worker("generate", "--prompt=Hello", "--max-tokens=2", "--quiet", "--json=/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.strip(), "the answer is there")
        self.assertIn("--json: cannot write /dev/full: No space left on device", done.stderr)
        self.assertIn('"ms_per_token":', done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
