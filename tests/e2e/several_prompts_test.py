"""A list of prompts answered side by side over two nodes: each answer is the one it is alone, also when a
node is lost meanwhile, and what is wrong with a list is told at once. PIGPEN_BUILD names the build
folder."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest

from answer import Answer
from programs import ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process

OPTIONS = ("--memory-limit=2GiB", "--drain-timeout=5s")
QUESTIONS = ("Who may copy this?", "The name of this license is", "You may not", "In short:")
TOKENS = 24


class SeveralPromptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.list = cls.path / "questions.txt"
        cls.list.write_text("\n".join(("", *QUESTIONS, "  ", "")))
        with cls.several(cls, (), "--parallel=1") as alone:
            status, _ = alone.finish()
            assert status == 0, alone.errors()
        cls.alone = cls.answers(alone)
        assert len(cls.alone) == len(QUESTIONS)

    def several(self, nodes, *options):
        return Answer(self.path, nodes, f"--prompts={self.list}", *options, tokens=TOKENS,
                      prompt_bytes=800)

    def nodes(self, count):
        started = []
        for _ in range(count):
            node = node_process.Node(NODE, *OPTIONS)
            self.addCleanup(node.kill)
            started.append(node)
        return started

    @staticmethod
    def answers(run):
        """What was measured, an object an answer."""
        objects = [json.loads(line) for line in run.json.read_text().splitlines()]
        assert [each["prompt"] for each in objects] == list(range(1, len(objects) + 1))
        return objects

    def assert_alone(self, run):
        answers = self.answers(run)
        self.assertEqual([each["answer"] for each in answers],
                         [each["answer"] for each in self.alone], run.errors())
        shown = "\n".join(f"== {i} of {len(QUESTIONS)}: {question}\n{each['answer']}\n"
                          for i, (question, each) in enumerate(zip(QUESTIONS, answers), 1))
        self.assertEqual(run.text.decode(), shown)
        return answers

    def test_prompts_side_by_side_get_the_answers_they_get_alone(self):
        nodes = self.nodes(2)
        # With 3 the last one begins when another has ended.
        for parallel, micro_batches in ((4, 1), (3, 2)):
            with self.several(nodes, "--estimator=exact", f"--parallel={parallel}",
                              f"--micro-batches={micro_batches}") as run:
                status, _ = run.finish()
            self.assertEqual(status, 0, run.errors())
            for answer in self.assert_alone(run):
                self.assertGreater(answer["keys_held"], 0)
            self.assertIn("4 answers; ", run.errors())

    def test_a_node_killed_meanwhile_costs_no_token_of_any_answer(self):
        nodes = self.nodes(3)
        with self.several(nodes, "--estimator=exact", "--micro-batches=2") as run:
            run.after(len(f"== 1 of 4: {QUESTIONS[0]}\n") + 5)  # all four are under way
            os.kill(nodes[0].process.pid, signal.SIGKILL)
            status, _ = run.finish()
        self.assertEqual(status, 0, run.errors())
        answers = self.assert_alone(run)
        self.assertEqual([each["recoveries"] for each in answers], [1] * len(QUESTIONS),
                         run.errors())

    def test_a_prompt_without_room_waits_for_another_to_end(self):
        # Each has memory kept for 3,000 tokens, 132 MiB; the node has room for one of them.
        node = node_process.Node(NODE, "--memory-limit=300MiB", "--drain-timeout=5s")
        self.addCleanup(node.kill)
        short = self.path / "short.txt"
        short.write_text("What is the capital of France?\nWhat is the capital of Italy?\n")
        with Answer(self.path, [node], f"--prompts={short}", "--estimator=exact", "--raw=false",
                    tokens=3000, prompt_bytes=0) as run:
            status, _ = run.finish()
        self.assertEqual(status, 0, run.errors())
        self.assertEqual([each["finish_reason"] for each in self.answers(run)], ["stop", "stop"])
        self.assertIn(" steps of 1.0 sequences", run.errors())
        # One opening, that tries two ways; not one a step.
        self.assertLessEqual(run.errors().count("part not opened"), 2, run.errors())

    def test_an_interruption_ends_what_runs_and_keeps_what_was_answered(self):
        listed = self.path / "interrupted.txt"
        long = TEXT.read_text()[:20000].replace("\n", " ")
        listed.write_text("\n".join((*QUESTIONS[:3], long)))
        # The first two end with their first token; the third waits while the fourth is read.
        with Answer(self.path, (), f"--prompts={listed}", "--parallel=2", tokens=1,
                    prompt_bytes=0) as run:
            read = 0
            for _ in range(3):
                read = run.wait_for("prefill 100%", read)
            run.wait_for("prefill ", read)
            run.process.send_signal(signal.SIGINT)
            status, _ = run.finish()
        self.assertEqual(status, 128 + signal.SIGINT, run.errors())
        self.assertEqual([(each["finish_reason"], each.get("error")) for each in self.answers(run)],
                         [("length", None)] * 3 + [("interrupted", "CANCELLED")])
        for number in range(1, 5):
            self.assertIn(f"== {number} of 4: ", run.text.decode())
        self.assertIn("\n3 answers; ", run.errors())
        self.assertIn("\n1 of 4 prompts have no whole answer", run.errors())

    def test_a_list_is_read_from_whatever_stdin_is(self):
        ours, theirs = socket.socketpair()
        with ours, theirs, open(self.list, "rb") as file:
            ours.sendall(self.list.read_bytes())
            ours.shutdown(socket.SHUT_WR)
            for stdin in (theirs, file):
                done = subprocess.run([str(WORKER), "generate", "--model", MODEL, "--prompts=-",
                                       "--max-tokens=1"], timeout=120, capture_output=True,
                                      text=True, stdin=stdin, env=ENVIRONMENT)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"== 4 of 4: {QUESTIONS[3]}\n", done.stdout)

    def test_a_list_that_cannot_be_answered_is_told_at_once(self):
        empty = self.path / "empty.txt"
        empty.write_text("\n \n\n")
        cut, bytes_only = self.path / "cut.txt", self.path / "bytes.txt"
        cut.write_bytes(b"Name a\0 colour\n")
        bytes_only.write_bytes(b"Name a colour\n\xff\xfe\n")
        cases = ((("--prompts", str(empty)), 1, "has no prompt in it; it takes one a line"),
                 (("--prompts", str(cut)), 1, "has a NUL byte in it"),
                 (("--prompts", str(bytes_only)), 1, "it is prompt 2 of 2: "),
                 (("--prompts", "/nothing"), 1, "cannot read /nothing: No such file"),
                 (("--prompts", str(self.list), "--prompt=x"), 2, "write it as a line of its file"),
                 (("--prompts", str(self.list), "--save-kv=x"), 2, "are of one prompt"),
                 (("--prompts=-", "--prompt-file=-"), 2, "cannot both be stdin"),
                 (("--prompts", str(self.list), "--parallel=17"), 2, "--parallel"),
                 (("--prompts", str(self.list), "--prompt-file", str(TEXT), "--context=2000"), 1,
                  "prompt 1: the prompt has "))
        for arguments, code, said in cases:
            done = subprocess.run([str(WORKER), "generate", "--model", MODEL, *arguments],
                                  timeout=120, capture_output=True, text=True,
                                  errors="replace", stdin=subprocess.DEVNULL, env=ENVIRONMENT)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
