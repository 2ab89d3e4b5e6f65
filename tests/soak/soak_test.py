"""A node under clients that live, die and talk nonsense, for rounds: after each, with every part
closed, nothing of the parts may be left, and the process may not have grown.

PIGPEN_LONG=1 makes it minutes long. PIGPEN_SOAK_SEED=N repeats the draws of a run.
"""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402
from node_client import PROGRAM, Client, admin  # noqa: E402
from node_watch import Watch, slope  # noqa: E402

LONG = os.environ.get("PIGPEN_LONG") == "1"
ROUNDS = 250 if LONG else 8  # 250: 10,000 lives of a part, 250 of which end in a death
SEED = int(os.environ.get("PIGPEN_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
# Cycles a round of each client; a dying one ends within its only one.
CLIENTS = (("good", 16), ("good", 16), ("hog", 1), ("garbage", 6))
LEASE_SECONDS = 20
# Over the second half of the rounds, by the straight line through them. At rest between rounds the
# allocator keeps 70 to 110 MiB, without a trend.
GROWTH_MIB = 32.0


class SoakClient:
    def __init__(self, address, kind, seed):
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "soak_client.py"), address, kind, str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, cycles):
        self.process.stdin.write(f"{cycles}\n")
        self.process.stdin.flush()

    def counts(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the {self.kind} client failed: seed {SEED}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        return self.process.returncode


class SoakTest(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED} (replay: PIGPEN_SOAK_SEED={SEED})", flush=True)
        self.seeds = random.Random(SEED)
        # What a sanitizer keeps of freed memory would look like a leak.
        os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=4"
        self.node = node_process.Node(PROGRAM, "--memory-limit=448MiB", "--drain-timeout=5s",
                                      f"--lease={LEASE_SECONDS}s")
        self.addCleanup(self.node.kill_if_alive)
        self.client = Client(self.node.address)
        self.watch = Watch(self.node, self.client)
        self.totals = collections.Counter()

    def start(self, kind):
        client = SoakClient(self.node.address, kind, self.seeds.randrange(1 << 32))
        self.addCleanup(client.process.kill)
        return client

    def round(self, clients, last):
        for client, (_, cycles) in zip(clients, CLIENTS):
            client.begin(cycles)
        dying = self.start("dying")
        dying.begin(1)
        left = dying.counts()["leaves"]
        dying.end()
        for client in clients:
            self.totals.update(client.counts())
        self.totals["died"] += 1
        if last:
            self.watch.wait("the lease of the dead client's part ends", self.watch.at_rest,
                            LEASE_SECONDS + 60)
            return
        evicted = self.client.admin.EvictParts(
            admin.EvictPartsRequest(handles=[left], force=True)).evicted
        self.assertLessEqual(evicted, 1)
        self.watch.wait("nothing is left of the parts", self.watch.at_rest)

    def test_nothing_is_left_after_every_round_and_the_node_does_not_grow(self):
        files_before = self.watch.files()
        clients = [self.start(kind) for kind, _ in CLIENTS]
        resident, threads, files = [], [], []
        began = time.monotonic()
        for number in range(ROUNDS):
            self.round(clients, last=number == ROUNDS - 1)
            resident.append(self.watch.resident_mib())
            threads.append(self.watch.threads())
            files.append(self.watch.files())
        took = time.monotonic() - began
        for client in clients:
            self.assertEqual(client.end(), 0)
        self.watch.wait("the clients' connections are gone",
                        lambda: self.watch.files() <= files_before)
        half = ROUNDS // 2
        grown = slope(resident[half:]) * (ROUNDS - half)
        print(f"{ROUNDS} rounds in {took:.0f} s: {dict(self.totals)}")
        print(f"resident MiB by round: {' '.join(f'{x:.0f}' for x in resident)}; second half grew "
              f"by {grown:.1f}; threads {min(threads)} to {max(threads)}, open files {min(files)} "
              f"to {max(files)}")
        self.assertLess(grown, GROWTH_MIB)
        self.assertLessEqual(max(threads[half:]), max(threads[:half]) + 2)  # gRPC's pool
        self.assertLessEqual(max(files[half:]), max(files[:half]) + 1)
        for kind in ("cycles", "compared", "forked", "truncated", "read", "garbage refused",
                     "garbage answered", "refused for memory"):
            self.assertGreater(self.totals[kind], 0, kind)
        self.client.channel.close()
        self.assertEqual(self.node.stop(), 0, "".join(self.node.lines[-40:]))


if __name__ == "__main__":
    unittest.main()
