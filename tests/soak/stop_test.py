"""SIGTERM to a node in the middle of work, again and again: it ends with 0 within its time, and
each call that was in flight was answered, or refused with a status that says why.

PIGPEN_LONG=1: 100 times instead of 10. PIGPEN_SOAK_SEED=N repeats the draws of a run.
"""
import collections
import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402
from node_client import PROGRAM, Client, Part, attention, grpc, health, np  # noqa: E402

RUNS = 100 if os.environ.get("PIGPEN_LONG") == "1" else 10
SEED = int(os.environ.get("PIGPEN_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
STOP_SECONDS = 15  # drain-timeout, and what settling takes on a busy machine
STATUS = grpc.StatusCode
# A stopping node refuses new parts (DRAINING), cancels what runs, and closes its port.
TYPED = {STATUS.UNAVAILABLE, STATUS.CANCELLED, STATUS.NOT_FOUND}


class Load:
    """Threads that call without pause until they are refused for good."""

    def __init__(self, address):
        self.outcomes = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()
        self.answered = threading.Semaphore(0)
        self.ended = threading.Event()
        bodies = (self.parts, self.parts, self.attends, self.attend_stream, self.append_stream,
                  self.watch, self.reads)
        self.clients = [Client(address) for _ in bodies]
        self.threads = [threading.Thread(target=self.work, args=(body, client))
                        for body, client in zip(bodies, self.clients)]
        for thread in self.threads:
            thread.start()

    def count(self, outcome):
        with self.lock:
            self.outcomes[outcome] += 1

    def end(self):
        """After the node is gone. Python's gRPC has been seen to lose the end of a call together
        with its deadline when the connection broke: closing the channel ends it."""
        self.ended.set()
        for thread, client in zip(self.threads, self.clients):
            thread.join(20)
            client.channel.close()
            thread.join()

    def work(self, body, client):
        try:
            while not self.ended.is_set():
                try:
                    body(client)
                    self.count("answered")
                    self.answered.release()
                except grpc.RpcError as error:
                    self.count(error.code().name)
                    if error.code() not in TYPED:
                        self.wrong.append(error)
                    self.ended.wait(0.01)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.wrong.append(error)

    def filled(self, client):
        part = Part(client)
        rows = np.ones((256, 2, 64), dtype=np.float32)
        part.append(rows, rows, 0, checksum=False)
        return part, rows

    def parts(self, client):
        part, _ = self.filled(client)
        self.attend(client, part)
        part.close()

    def attend(self, client, part):
        q = np.ones((1, 6, 64), dtype=np.float32)
        self.right(client.data.Attend(part.attend_request(q, 256), timeout=60))

    def right(self, answer):
        result = answer.results[0]
        if result.status.code != 0 or not answer.payload:
            raise AssertionError(f"no answer, and no error either: {result}")

    def attends(self, client):
        part, _ = self.filled(client)
        for _ in range(50):
            self.attend(client, part)

    def attend_stream(self, client):
        part, _ = self.filled(client)
        q = np.ones((1, 6, 64), dtype=np.float32)
        requests = (part.attend_request(q, 256, request_id=i) for i in range(200))
        count = 0
        for answer in client.data.AttendStream(requests):
            self.right(answer)
            count += 1
        if count != 200:
            raise AssertionError(f"the stream ended well after {count} of 200 answers")

    def append_stream(self, client):
        part, rows = self.filled(client)
        requests = (part.append_request(rows, rows, i * 256, request_id=i, checksum=False)
                    for i in range(1, 40))
        held = 0
        for ack in client.data.AppendKvStream(requests):
            if ack.HasField("status"):
                raise AssertionError(f"refused: {ack.status}")
            held = ack.held_tokens
        if held != 40 * 256:
            raise AssertionError(f"the stream ended well with {held} tokens held")
        part.close()

    def watch(self, client):
        for _ in client.health.Watch(health.HealthCheckRequest(), timeout=60):
            pass

    def reads(self, client):
        part, _ = self.filled(client)
        request = attention.ReadKvRequest(part=part.ref, layer=0, start=0, count=256)
        for _ in range(20):
            count = sum(piece.count for piece in client.data.ReadKv(request, timeout=60))
            if count != 256:
                raise AssertionError(f"ReadKv ended well after {count} of 256 rows")


class StopTest(unittest.TestCase):
    def one(self, draw):
        timeout_ms = draw.choice((0, 50, 300, 1000))
        node = node_process.Node(PROGRAM, "--memory-limit=512MiB",
                                 f"--drain-timeout={timeout_ms}ms")
        load = Load(node.address)
        try:
            for _ in range(draw.randrange(1, 60)):
                self.assertTrue(load.answered.acquire(timeout=60), "no call is answered")
            began = time.monotonic()
            if draw.random() < 0.3:  # a second one cuts the draining short
                node.process.send_signal(signal.SIGTERM)
            code = node.stop(signal.SIGTERM)
            took = time.monotonic() - began
        finally:
            node.kill_if_alive()
            load.end()
        text = "".join(node.lines)
        self.assertEqual(code, 0, text[-6000:])
        self.assertNotIn("Sanitizer", text)
        self.assertNotIn("ERROR", text)
        self.assertLess(took, STOP_SECONDS)
        self.assertEqual(load.wrong, [], text[-3000:])
        return load.outcomes, took

    def test_sigterm_under_load_ends_with_0_and_every_call_is_answered_or_refused(self):
        print(f"seed {SEED} (replay: PIGPEN_SOAK_SEED={SEED})", flush=True)
        draw = random.Random(SEED)
        outcomes = collections.Counter()
        longest = 0.0
        for number in range(RUNS):
            with self.subTest(run=number):
                counts, took = self.one(draw)
                outcomes += counts
                longest = max(longest, took)
        print(f"{RUNS} stops, the longest {longest:.2f} s: {dict(outcomes)}")
        self.assertGreater(outcomes["answered"], 0)
        self.assertGreater(outcomes["UNAVAILABLE"] + outcomes["CANCELLED"], 0)


if __name__ == "__main__":
    unittest.main()
