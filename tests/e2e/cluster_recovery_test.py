"""A worker that loses nodes while it answers: the text is the undisturbed one, token for token, and
what the loss cost is told. PIGPEN_BUILD names the build folder; PIGPEN_LONG=1 kills more often and
stops a node for half a minute."""
import os
import pathlib
import random
import re
import signal
import tempfile
import time
import unittest

from answer import Answer
from programs import NODE, node_process

OPTIONS = ("--memory-limit=2GiB", "--drain-timeout=5s")
LONG = os.environ.get("PIGPEN_LONG") == "1"
SEED = int(os.environ.get("PIGPEN_RECOVERY_SEED", random.randrange(1 << 30)))


class ClusterRecoveryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.random = random.Random(SEED)
        print(f"seed {SEED} (replay: PIGPEN_RECOVERY_SEED={SEED})")
        with tempfile.TemporaryDirectory() as folder, \
                Answer(pathlib.Path(folder), ()) as answer:
            status, alone = answer.finish()
        assert status == 0, answer.errors()
        cls.undisturbed = alone["answer"]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def nodes(self, count, *options):
        started = []
        for _ in range(count):
            node = node_process.Node(NODE, *(options or OPTIONS))
            self.addCleanup(node.kill)
            started.append(node)
        return started

    def kill_one(self, count, *options):
        """Kills one of the nodes at a random place of the answer; what was measured."""
        nodes, at = self.nodes(count), self.random.randrange(1, 60)
        which = self.random.randrange(count)
        with Answer(self.path, nodes, "--estimator=exact", *options) as answer:
            answer.after(at)
            os.kill(nodes[which].process.pid, signal.SIGKILL)
            status, run = answer.finish()
        self.assertEqual(status, 0, answer.errors())
        self.assertEqual(run["answer"], self.undisturbed,
                         f"n{which} killed after {at} bytes\n" + answer.errors())
        self.assertEqual(run["tokens_held"][f"n{which}"], 0)
        for node in nodes:
            node.kill()
        print(f"{' '.join(options)}: n{which} killed after {at} bytes: {run['recoveries']} recoveries, "
              f"{run['recovery_ms']:.0f} ms, {run['tokens_recomputed']} tokens computed again")
        return run

    def test_a_killed_node_costs_time_and_no_token(self):
        for _ in range(20 if LONG else 1):
            run = self.kill_one(3)
            self.assertEqual(run["recoveries"], 1)
            self.assertGreater(run["recovery_ms"], 0)

    def test_a_killed_node_of_any_cut_costs_no_token(self):
        for shard, count in (("kv-heads", 3), ("both", 4)):
            self.assertEqual(self.kill_one(count, f"--shard={shard}")["recoveries"], 1)

    def test_a_killed_replica_costs_nothing(self):
        for _ in range(20 if LONG else 1):
            run = self.kill_one(3, "--replicas=2")
            self.assertEqual((run["recoveries"], run["tokens_recomputed"]), (0, 0))

    def test_a_stopped_node_is_left_alone_and_used_again_when_it_goes_on(self):
        nodes = self.nodes(3)
        with Answer(self.path, nodes, "--estimator=exact", tokens=7000) as answer:
            answer.after(10)
            os.kill(nodes[0].process.pid, signal.SIGSTOP)
            try:
                lost = answer.wait_for("sequence goes on")
                if LONG:
                    time.sleep(30)  # so long that its connections are given up as well
            finally:
                os.kill(nodes[0].process.pid, signal.SIGCONT)
            answer.wait_for("node in use node=n0", after=lost)
            answer.process.send_signal(signal.SIGINT)
            status, _ = answer.finish()
        self.assertEqual(status, 130, answer.errors())
        both = min(len(answer.text) - 8, len(self.undisturbed.encode()) - 8)
        self.assertGreater(both, 0)
        self.assertEqual(answer.text[:both], self.undisturbed.encode()[:both], answer.errors())
        self.assertRegex(answer.errors(), r"node out of use .*n0.*DEADLINE_EXCEEDED")

    def test_a_drained_node_is_left_and_ends_while_the_answer_goes_on(self):
        nodes = [self.nodes(1, "--memory-limit=2GiB", "--drain-timeout=120s")[0], *self.nodes(2)]
        with Answer(self.path, nodes, "--estimator=exact", tokens=6000) as answer:
            answer.after(10)
            self.assertEqual(nodes[0].stop(), 0)  # long before its drain timeout
            answer.after(40)
            answer.process.send_signal(signal.SIGINT)
            status, _ = answer.finish()
        self.assertEqual(status, 130, answer.errors())
        self.assertIn("a part has left a draining node node=n0", answer.errors())
        self.assertNotIn("part lost", answer.errors())
        both = min(len(answer.text), len(self.undisturbed.encode())) - 8
        self.assertEqual(answer.text[:both], self.undisturbed.encode()[:both], answer.errors())

    def test_nodes_lost_one_after_the_other_leave_the_last_with_everything(self):
        nodes = self.nodes(3)
        with Answer(self.path, nodes, "--estimator=exact") as answer:
            for node in nodes[:2]:
                answer.after(20)
                os.kill(node.process.pid, signal.SIGKILL)
            status, run = answer.finish()
        self.assertEqual(status, 0, answer.errors())
        self.assertEqual(run["answer"], self.undisturbed, answer.errors())
        held = run["tokens_held"]
        self.assertEqual((held["n0"], held["n1"]), (0, 0))
        self.assertGreaterEqual(held["n2"], run["tokens_left"])

    def test_a_node_killed_while_the_prompt_is_stored_costs_no_token(self):
        nodes = self.nodes(2)
        with Answer(self.path, nodes, "--estimator=exact") as answer:
            answer.wait_for("prefill")
            os.kill(nodes[0].process.pid, signal.SIGKILL)
            status, run = answer.finish()
        self.assertEqual(status, 0, answer.errors())
        self.assertEqual(run["answer"], self.undisturbed, answer.errors())
        self.assertEqual(run["tokens_held"]["n0"], 0)

    def test_the_last_node_lost_is_named_with_its_cause(self):
        nodes = self.nodes(1)
        with Answer(self.path, nodes, "--estimator=exact") as answer:
            answer.after(10)
            os.kill(nodes[0].process.pid, signal.SIGKILL)
            status, _ = answer.finish()
        self.assertEqual(status, 1)
        self.assertTrue(re.search(r"no node is left for its part .*node n0 \(", answer.errors()),
                        answer.errors())


if __name__ == "__main__":
    unittest.main(verbosity=2)
