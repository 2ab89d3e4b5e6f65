"""SIGTERM to a node in the middle of work, again and again, and it ends with 0. With time to drain no
call that was in flight fails: only new parts are refused, and the node ends when the last one is
closed. Without it ends within its time, and each call was answered, or refused with a status that says
why.

PIGPEN_LONG=1: 100 times instead of 10, half as often without time to drain. PIGPEN_SOAK_SEED=N repeats the draws of a run.
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
DRAIN_SECONDS = 120  # more than anything takes that is begun
STOP_SECONDS = 15  # drain-timeout, and what settling takes on a busy machine
STATUS = grpc.StatusCode
# A stopping node refuses new parts (DRAINING), cancels what runs, and closes its port.
TYPED = {STATUS.UNAVAILABLE, STATUS.CANCELLED, STATUS.NOT_FOUND}


class Refused(Exception):
    """No new part was opened: that is no call of a sequence that lives."""


class Load:
    """Threads that call without pause until they are refused for good. patient: a call that fails is
    wrong, unless it opens a part or is a watch, which ends with the node."""

    def __init__(self, address, patient):
        self.patient = patient
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
                except Refused:
                    self.count("no new part")
                    self.ended.wait(0.01)
                except grpc.RpcError as error:
                    self.count(error.code().name)
                    failed = self.patient and body != self.watch
                    if failed or error.code() not in TYPED:
                        self.wrong.append(error)
                    self.ended.wait(0.01)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.wrong.append(error)

    def filled(self, client):
        try:
            part = Part(client)
        except grpc.RpcError as error:
            if error.code() not in TYPED:
                raise
            raise Refused from error
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
        part.close()

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
        part.close()

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
        part.close()


class StopTest(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED} (replay: PIGPEN_SOAK_SEED={SEED})", flush=True)
        self.draw = random.Random(SEED)

    def one(self, timeout_ms, patient, stop):
        """stop(node, load): its exit code. What became of the calls, and how long stopping took."""
        node = node_process.Node(PROGRAM, "--memory-limit=512MiB",
                                 f"--drain-timeout={timeout_ms}ms")
        load = Load(node.address, patient)
        try:
            for _ in range(self.draw.randrange(1, 60)):
                self.assertTrue(load.answered.acquire(timeout=60), "no call is answered")
            began = time.monotonic()
            code = stop(node, load)
            took = time.monotonic() - began
        finally:
            node.kill_if_alive()
            load.end()
        text = "".join(node.lines)
        self.assertEqual(code, 0, text[-6000:])
        self.assertNotIn("Sanitizer", text)
        self.assertNotIn("ERROR", text)
        self.assertEqual(load.wrong, [], text[-3000:])
        return load.outcomes, took, text

    def hurried(self, node, load):
        if self.draw.random() < 0.3:  # a second one cuts the draining short
            node.process.send_signal(signal.SIGTERM)
        return node.stop(signal.SIGTERM)

    def patient(self, node, load):
        node.process.send_signal(signal.SIGTERM)
        load.ended.set()  # everybody comes to the end of what he has begun
        code = node.process.wait(DRAIN_SECONDS + 60)
        node.stop()
        return code

    def test_no_call_in_flight_fails_where_there_is_time_to_drain(self):
        outcomes = collections.Counter()
        longest = 0.0
        for number in range(RUNS):
            with self.subTest(run=number):
                counts, took, text = self.one(1000 * DRAIN_SECONDS, True, self.patient)
                self.assertIn('parts_left=0 cause="nothing is left"', text)
                outcomes += counts
                longest = max(longest, took)
        print(f"{RUNS} stops with time to drain, the longest {longest:.2f} s: {dict(outcomes)}")
        self.assertGreater(outcomes["answered"], RUNS)

    def test_without_time_every_call_is_answered_or_refused_and_the_node_ends_in_its_own(self):
        outcomes = collections.Counter()
        longest = 0.0
        for number in range(RUNS // 2):
            with self.subTest(run=number):
                counts, took, _ = self.one(self.draw.choice((0, 50, 300, 1000)), False, self.hurried)
                self.assertLess(took, STOP_SECONDS)
                outcomes += counts
                longest = max(longest, took)
        print(f"{RUNS // 2} stops without, the longest {longest:.2f} s: {dict(outcomes)}")
        self.assertGreater(outcomes["answered"], 0)
        self.assertGreater(outcomes["UNAVAILABLE"] + outcomes["CANCELLED"], 0)


if __name__ == "__main__":
    unittest.main()
