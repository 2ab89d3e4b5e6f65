"""What a node does with memory that runs out, and with memory of workers that died: refusals are typed
and at once, what it holds stays right, its process stays within its limit, and nothing is left behind.

PIGPEN_LONG=1: twenty dead workers instead of three.
"""
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402
from node_client import PROGRAM, Client, Part, common, grpc, np, sections_of  # noqa: E402
from node_watch import Watch, slope  # noqa: E402

LONG = os.environ.get("PIGPEN_LONG") == "1"
WORKERS = 20 if LONG else 3
CALL_SECONDS = 30  # a call that takes longer has failed: a refusal does not wait for anything
# Beside the limit: the program, its libraries' and its threads' own memory, and what the allocator
# keeps. An idle node takes about 60 MiB.
OWN_MIB = 96
LIMIT_MIB = 320
APPENDED_MIB = 256
HEADS, DIM, STEP = 8, 128, 1024  # 8 KiB a token of K and V in f32
GROWTH_MIB = 48


def sanitized():
    return any(mark in PROGRAM.read_bytes() for mark in (b"__asan_init", b"__tsan_init"))


class Filled:
    """A sequence whose every value is its number."""

    def __init__(self, client, number, tokens):
        self.number, self.tokens = number, tokens
        self.part = Part(client, q_heads=4, kv_heads=4, dim=64, reserve_tokens=tokens)
        rows = np.full((tokens, 4, 64), number, dtype=np.float32)
        self.part.append(rows, rows, 0, checksum=False)

    def check(self, client):
        q = np.zeros((1, 4, 64), dtype=np.float32)
        answer = client.data.Attend(self.part.attend_request(q, self.tokens), timeout=CALL_SECONDS)
        assert answer.results[0].status.code == 0, answer.results[0]
        o = sections_of(answer, 0, q.shape)["o"]
        np.testing.assert_allclose(o, self.number, rtol=1e-5)


class MemoryTest(unittest.TestCase):
    def start(self, *options):
        # What a sanitizer keeps of freed memory would look like a leak.
        os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=4"
        self.node = node_process.Node(PROGRAM, "--drain-timeout=5s", *options)
        self.addCleanup(self.node.kill_if_alive)
        self.client = Client(self.node.address)
        self.watch = Watch(self.node, self.client)

    def try_to_fill(self, number, tokens):
        """A filled sequence, or None where the node has no room and says so."""
        try:
            return Filled(self.client, number, tokens)
        except grpc.RpcError as error:
            reason = dict(error.trailing_metadata() or ()).get("pigpen-reason")
            self.assertEqual((error.code(), reason),
                             (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEMORY"), error)
            return None

    def test_node_filled_by_a_hundred_sequences_refuses_and_keeps_what_it_has(self):
        self.start(f"--memory-limit={LIMIT_MIB}MiB")
        tokens = 2048  # 4 MiB a sequence
        held = [self.try_to_fill(number, tokens) for number in range(1, 101)]
        fits = [sequence for sequence in held if sequence is not None]
        refused = len(held) - len(fits)
        resident = self.watch.resident_mib()
        print(f"{len(fits)} sequences of 4 MiB fit into {LIMIT_MIB} MiB, {refused} refused; "
              f"resident {resident:.0f} MiB")
        self.assertGreater(len(fits), 20)
        self.assertGreater(refused, 10)
        if sanitized():
            print("a sanitizer's shadow is resident too: the process's size is not held to the limit")
        else:
            self.assertLessEqual(resident, 1.15 * LIMIT_MIB + OWN_MIB)
        for sequence in fits:
            sequence.check(self.client)
        # Closing one admits the next, and only that.
        fits.pop(0).part.close()
        another = self.try_to_fill(200, tokens)
        self.assertIsNotNone(another)
        self.assertIsNone(self.try_to_fill(201, tokens))
        for sequence in (*fits, another):
            sequence.check(self.client)
            sequence.part.close()
        self.watch.wait("nothing is left of the parts", self.watch.at_rest)
        self.client.channel.close()
        self.assertEqual(self.node.stop(), 0)

    def test_workers_that_are_killed_leave_nothing_when_their_leases_have_ended(self):
        self.start("--memory-limit=640MiB", "--lease=4s")
        resident = []
        for _ in range(WORKERS):
            worker = subprocess.Popen([sys.executable, __file__, "worker", self.node.address],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                said = worker.stdout.readline()
            finally:
                worker.kill()
                worker.wait()
                worker.stdin.close()
                worker.stdout.close()
            self.assertEqual(said, f"{APPENDED_MIB} MiB\n")  # it was admitted like the first
            self.watch.wait("the dead worker's lease ends", self.watch.at_rest)
            resident.append(self.watch.resident_mib())
        print("resident MiB after each: " + " ".join(f"{x:.0f}" for x in resident))
        self.assertLess(slope(resident[1:]) * len(resident), GROWTH_MIB)
        self.client.channel.close()
        self.assertEqual(self.node.stop(), 0)


def worker(address):
    """Appends, says so, and waits to be killed."""
    part = Part(Client(address), q_heads=HEADS, kv_heads=HEADS, dim=DIM)
    rows = np.ones((STEP, HEADS, DIM), dtype=np.float32)
    for at in range(APPENDED_MIB * 1024 // 8 // STEP):
        part.append(rows, rows, at * STEP, bulk=True, checksum=False)
    print(f"{APPENDED_MIB} MiB", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2])
    else:
        unittest.main()
