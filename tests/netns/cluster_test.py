"""A worker and nodes on hosts of their own, whose cables are cut, slow and lossy, and whose programs are
killed, stopped and moved: the text is the undisturbed one, token for token, or the error is clear; how
long it took to go on is printed. Needs root for its namespaces and says so where it cannot run.
PIGPEN_BUILD names the build folder; PIGPEN_LONG=1 does more of it."""
import contextlib
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

import network
from network import inside

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from answer import Answer  # noqa: E402
from programs import NODE, node_process  # noqa: E402

LONG = os.environ.get("PIGPEN_LONG") == "1"
OPTIONS = ("--insecure", "--drain-timeout=5s")
MEMORY = "--memory-limit=512MiB"
SKIPPED = 77  # CMake counts it as skipped
PORT = 7450
PROMPT_BYTES = 1200
NEVER_ENDS = 6000  # tokens: it is interrupted; n0 alone holds the prompt of so long an answer


class NetnsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder, \
                Answer(pathlib.Path(folder), (), tokens=200, prompt_bytes=PROMPT_BYTES) as answer:
            status, alone = answer.finish()
        assert status == 0, answer.errors()
        cls.undisturbed = alone["answer"]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.network = network.Network()
        self.addCleanup(self.network.close)

    def node(self, host, *options):
        node = node_process.Node(NODE, *OPTIONS, *(options or (MEMORY,)), prefix=host.inside(),
                                 host=host.address, port=PORT)
        self.addCleanup(node.kill_if_alive)
        return node

    def start(self, count, **cable):
        """So many hosts, each with a node."""
        hosts = [self.network.host(**cable) for _ in range(count)]
        return hosts, [self.node(host) for host in hosts]

    def ask(self, nodes, tokens):
        return Answer(self.path, nodes, "--estimator=exact", tokens=tokens, prompt_bytes=PROMPT_BYTES,
                      prefix=inside(self.network.hub))

    @contextlib.contextmanager
    def answer(self, nodes, tokens=120):
        """A worker at work: it has said the first words."""
        with self.ask(nodes, tokens) as answer:
            answer.after(10)
            yield answer

    def whole(self, answer):
        """The answer to its end: what was measured, and the text is right."""
        status, run = answer.finish()
        self.assertEqual(status, 0, answer.errors())
        self.assertTrue(self.undisturbed.startswith(run["answer"]),
                        f"{run['answer']!r}\n{answer.errors()}")
        return run

    def interrupted(self, answer):
        """Some more of an answer without end, which is right so far."""
        answer.after(30)
        answer.process.send_signal(signal.SIGINT)
        status, _ = answer.finish()
        self.assertEqual(status, 130, answer.errors())
        wanted = self.undisturbed.encode()
        both = min(len(answer.text), len(wanted)) - 8
        self.assertGreater(both, 30)
        self.assertEqual(answer.text[:both], wanted[:both], answer.errors())

    def left(self, answer, what, disturb):
        """Disturbs, and waits until the answer goes on without the node; lines said by then."""
        began = time.monotonic()
        disturb()
        lines = answer.wait_for("sequence goes on")
        print(f"{what}: the answer goes on after {time.monotonic() - began:.2f} s", flush=True)
        return lines

    def used_again(self, answer, name, lines, what, heal):
        began = time.monotonic()
        heal()
        answer.wait_for(f"node in use node={name} ", after=lines)
        print(f"{what}: {name} is used again after {time.monotonic() - began:.2f} s", flush=True)

    def test_a_node_that_is_cut_off_is_left_and_used_again_when_the_cable_is_back(self):
        hosts, nodes = self.start(3)
        with self.answer(nodes, tokens=NEVER_ENDS) as answer:
            lines = self.left(answer, "cut off", hosts[0].cut)
            self.used_again(answer, "n0", lines, "cable back", hosts[0].heal)
            self.interrupted(answer)
        self.assertRegex(answer.errors(), r"node out of use .*n0.*DEADLINE_EXCEEDED")

    def test_a_host_that_vanishes_costs_no_token(self):
        hosts, nodes = self.start(3)
        with self.answer(nodes) as answer:
            def vanish():  # nobody closes its connections
                hosts[1].cut()
                nodes[1].kill()
            self.left(answer, "host gone", vanish)
            run = self.whole(answer)
        self.assertEqual((run["recoveries"], run["tokens_held"]["n1"]), (1, 0))

    def test_a_killed_node_that_starts_again_at_its_address_is_used_for_the_next_loss(self):
        hosts, nodes = self.start(2)
        with self.answer(nodes, tokens=NEVER_ENDS) as answer:
            lines = self.left(answer, "SIGKILL", nodes[0].kill)
            self.used_again(answer, "n0", lines, "started again", lambda: self.node(hosts[0]))
            nodes[1].kill()  # only the one that started again is left
            answer.wait_for("sequence goes on", after=lines)
            self.interrupted(answer)

    def test_a_stopped_node_is_left_and_nothing_that_it_says_later_counts(self):
        _, nodes = self.start(3)
        with self.answer(nodes, tokens=NEVER_ENDS) as answer:
            lines = self.left(answer, "SIGSTOP",
                              lambda: nodes[0].process.send_signal(signal.SIGSTOP))
            self.used_again(answer, "n0", lines, "SIGCONT",
                            lambda: nodes[0].process.send_signal(signal.SIGCONT))
            self.interrupted(answer)
        self.assertRegex(answer.errors(), r"node out of use .*n0.*DEADLINE_EXCEEDED")

    def shaped(self):
        how, why = network.shaping()
        if how is None:
            print(f"SKIPPED: {self.id()}: {why}", flush=True)
            self.skipTest(why)

    def slow_or_lossy(self, what, tokens, **cable):
        self.shaped()
        _, nodes = self.start(2, **cable)
        with self.answer(nodes, tokens=tokens) as answer:
            run = self.whole(answer)
        print(f"{what}: {run['ms_per_token']:.0f} ms a token, {run['recoveries']} recoveries")
        self.assertEqual(run["generated_tokens"], tokens)

    def test_cables_with_20_ms_of_delay_cost_time_only(self):
        self.slow_or_lossy("20 ms", 40 if LONG else 8, delay_ms=20)

    def test_cables_that_lose_one_frame_in_a_hundred_cost_time_only(self):
        self.slow_or_lossy("1 % lost", 120 if LONG else 16, loss=0.01)

    def test_a_full_node_gets_nothing_and_when_all_are_full_the_error_says_so(self):
        hosts = [self.network.host() for _ in range(3)]
        small = "--memory-limit=144MiB"
        nodes = [self.node(hosts[0], small), self.node(hosts[1]), self.node(hosts[2])]
        with self.answer(nodes, tokens=NEVER_ENDS) as answer:
            self.interrupted(answer)
        for node in nodes[1:]:
            node.kill()
        full = [nodes[0], self.node(hosts[1], small), self.node(hosts[2], small)]
        with self.ask(full, NEVER_ENDS) as answer:
            status, _ = answer.finish()
        self.assertEqual((status, answer.text), (1, b""), answer.errors())
        self.assertRegex(answer.errors(), r"n\d.*MEMORY")

    def test_a_node_that_moves_is_found_at_its_new_address(self):
        listed = self.path / "nodes"
        for source in ("file", "dns"):
            with self.subTest(source=source):
                self.moves(source, listed)

    def moves(self, source, listed):
        hosts = [self.network.host() for _ in range(3)]
        nodes = [self.node(host) for host in hosts[:2]]

        def tell(*there):
            if source == "file":
                text = "".join(f"n{i}={host.address}:{PORT}\n" for i, host in enumerate(there))
                draft = self.path / "draft"
                draft.write_text(text)
                draft.rename(listed)
            else:
                self.network.names({"nodes.test": [host.address for host in there]})
        tell(*hosts[:2])
        name = f"file:{listed}" if source == "file" else f"dns:nodes.test:{PORT}"
        with self.answer(name, tokens=NEVER_ENDS) as answer:
            def move():
                nodes[0].kill()
                self.node(hosts[2])
                tell(hosts[2], hosts[1])
            lines = self.left(answer, f"moved, {source}", move)
            answer.wait_for(f"address={hosts[2].address}:{PORT} state=up")
            nodes[1].kill()  # only the one that moved is left
            answer.wait_for("sequence goes on", after=lines)
            self.interrupted(answer)

    def test_the_last_node_cut_off_is_named_with_its_cause(self):
        hosts, nodes = self.start(2)
        with self.answer(nodes, tokens=NEVER_ENDS) as answer:
            for host in hosts:
                host.cut()
            status, _ = answer.finish()
        self.assertEqual(status, 1)
        self.assertTrue(re.search(r"no node is left for its part .*node n\d \(", answer.errors()),
                        answer.errors())
        self.assertTrue(self.undisturbed.encode().startswith(answer.text.rstrip(b"\n")[:-8]))


if __name__ == "__main__":
    why = network.missing()
    if why is not None:
        print(f"SKIPPED: no host of its own for any program here: {why}", flush=True)
        sys.exit(SKIPPED)
    how, why = network.shaping()
    print(f"cables: {how}{f', {why}' if why else ''}", flush=True)
    unittest.main(verbosity=2)
