"""A client of a node that strangers attack: it checks every answer that it gets."""
import queue
import threading
import time

from node_client import Client, Part, grpc, np, reference, sections_of

ANSWER_SECONDS = 20  # on a machine that is busy attacking
STREAM_SECONDS = 900


class Good:
    """A client whose every answer is checked. It asks by one stream, as a worker does: that must
    never break. Now and then it asks by a call of its own: that may be refused where strangers hold
    all calls that the node has, and is right otherwise."""

    def __init__(self, address, seed):
        self.client = Client(address)
        draw = np.random.default_rng(seed)
        self.k = draw.standard_normal((500, 2, 64), dtype=np.float32)
        self.q = draw.standard_normal((1, 6, 64), dtype=np.float32)
        self.part = Part(self.client)
        self.part.append(self.k, self.k, 0, checksum=False)
        self.count, self.refused, self.longest, self.wrong = 0, 0, 0.0, None
        self.ended = threading.Event()
        self.requests = queue.SimpleQueue()
        self.answers = self.client.data.AttendStream(iter(self.requests.get, None),
                                                     timeout=STREAM_SECONDS)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        try:
            while not self.ended.is_set():
                began = time.monotonic()
                self.ask()
                self.longest = max(self.longest, time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.wrong = error

    def ask(self):
        held = 1 + self.count % 500
        request = self.part.attend_request(self.q, held)
        if self.count % 10 == 0:
            try:
                self.check(self.client.data.Attend(request, timeout=ANSWER_SECONDS), held)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                self.refused += 1
        self.requests.put(request)
        self.check(next(self.answers), held)
        self.count += 1

    def check(self, answer, held):
        got = sections_of(answer, 0, self.q.shape)
        o, lse = reference(self.q, self.k[:held], self.k[:held], self.part.scale)
        np.testing.assert_allclose(got["o"], o, atol=1e-4)
        np.testing.assert_allclose(got["lse"], lse, atol=1e-4)

    def end(self):
        self.ended.set()
        self.thread.join()
        self.requests.put(None)
        self.part.close()
        self.client.channel.close()
