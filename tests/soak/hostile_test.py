"""The port of a live node under strangers: bytes that mean nothing, frames that lie about their
size, streams and connections without end. A good client beside them gets right answers all the
while, and the node stays within its memory, its files and its threads.

PIGPEN_LONG=1 makes it minutes long. PIGPEN_SOAK_SEED=N repeats the draws of a run.
"""
import collections
import os
import pathlib
import random
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import hostile  # noqa: E402
import node_process  # noqa: E402
from good_client import ANSWER_SECONDS, Good  # noqa: E402
from node_client import PROGRAM, Client, health  # noqa: E402
from node_watch import Watch  # noqa: E402

LONG = os.environ.get("PIGPEN_LONG") == "1"
SECONDS = 120 if LONG else 8
FLOOD = 2000 if LONG else 500
SEED = int(os.environ.get("PIGPEN_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
ATTACKERS = 3
LIMIT_MIB = 512
# A sanitizer's shadow, its stacks and what it keeps of freed memory come on top.
OVERHEAD_MIB = 1024 if "asan" in str(PROGRAM) else 128


class HostileTest(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED} (replay: PIGPEN_SOAK_SEED={SEED})", flush=True)
        self.node = node_process.Node(PROGRAM, f"--memory-limit={LIMIT_MIB}MiB",
                                      "--drain-timeout=2s")
        self.addCleanup(self.node.kill_if_alive)
        self.client = Client(self.node.address)
        self.watch = Watch(self.node, self.client)
        self.resident_max = self.files_max = self.threads_max = 0
        self.good = Good(self.node.address, SEED)
        self.addCleanup(self.good.ended.set)
        self.files_before = self.watch.files()

    def sample(self):
        self.assertIsNone(self.node.process.poll(), "".join(self.node.lines[-40:]))
        self.assertIsNone(self.good.wrong)
        self.resident_max = max(self.resident_max, self.watch.resident_mib())
        self.files_max = max(self.files_max, self.watch.files())
        self.threads_max = max(self.threads_max, self.watch.threads())

    def finish(self, what):
        """Everything the strangers held must be free again before the good client goes."""
        self.watch.wait("the strangers' connections are gone",
                        lambda: self.watch.files() <= self.files_before)
        self.good.end()
        print(f"{what}; good answers {self.good.count}, the slowest {self.good.longest:.2f} s, "
              f"{self.good.refused} refused; at most {self.resident_max:.0f} MiB, "
              f"{self.files_max} files, {self.threads_max} threads")
        self.assertIsNone(self.good.wrong)
        self.assertGreater(self.good.count, 0)
        self.assertLess(self.good.longest, ANSWER_SECONDS)
        self.assertLess(self.resident_max, LIMIT_MIB + OVERHEAD_MIB)
        self.watch.wait("nothing is left of the parts", self.watch.at_rest)
        self.assertEqual(self.client.health.Check(health.HealthCheckRequest()).status,
                         health.HealthCheckResponse.SERVING)
        self.client.channel.close()
        self.assertEqual(self.node.stop(), 0, "".join(self.node.lines[-40:]))
        self.assertNotIn("Sanitizer", "".join(self.node.lines))

    def attacker(self, seed, until, counts):
        draw = random.Random(seed)
        while time.monotonic() < until:
            body = draw.choice(hostile.ATTACKS)
            body(self.node.port, draw)
            counts[body.__name__] += 1

    def test_strangers_on_the_port_take_nothing_from_a_good_client(self):
        counts = collections.Counter({body.__name__: 0 for body in hostile.ATTACKS})
        until = time.monotonic() + SECONDS
        threads = [threading.Thread(target=self.attacker, args=(SEED + i, until, counts))
                   for i in range(ATTACKERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.sample()
            threads[0].join(0.2)
        self.finish(f"{sum(counts.values())} attacks in {SECONDS} s: {dict(counts)}")
        self.assertGreater(sum(counts.values()), 20)

    def test_a_flood_of_connections_that_trickle_or_say_nothing_leaves_room_for_a_good_client(self):
        draw = random.Random(SEED)
        held, refused = [], 0
        for port in (self.node.port, self.node.admin_port):
            for number in range(FLOOD):
                try:
                    held.append(hostile.connect(port, timeout=5))
                except OSError:
                    refused += 1
                if number % 50 == 0:
                    self.sample()
        greeting = hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0, b"")
        until = time.monotonic() + SECONDS
        at = 0
        while time.monotonic() < until and at < len(greeting):
            for one in held:
                if draw.random() < 0.9:  # a byte at a time, the others never
                    try:
                        one.send(greeting[at:at + 1])
                    except OSError:
                        pass  # hung up on: that is its right
            at += 1
            self.sample()
            self.good.ended.wait(SECONDS / 60)
        for one in held:
            one.close()
        self.finish(f"{len(held)} connections held, {refused} refused")


if __name__ == "__main__":
    unittest.main()
