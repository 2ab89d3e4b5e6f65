"""Streams that are cut, meet one another or come too late, against a node over real connections.

Rows are made so that an answer tells which tokens it counted: K is zero and V of token t is t, so
over the first n tokens o is (n - 1) / 2 and lse is log n.
"""
import pathlib
import secrets
import socket
import struct
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import node_process  # noqa: E402
from node_case import NodeCase  # noqa: E402
from node_client import PROGRAM, Client, Part, attention, common, grpc, np, sections_of  # noqa: E402


def counted_rows(begin, count):
    k = np.zeros((count, 2, 64), dtype=np.float32)
    v = np.broadcast_to(np.arange(begin, begin + count, dtype=np.float32)[:, None, None], k.shape)
    return k, v


class Connection:
    """HTTP/2 by hand, as much as it takes to break off in the middle of a message."""
    DATA, HEADERS, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 7, 8

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.frame(self.SETTINGS, 0, 0, b"")
        self.received = self.socket.makefile("rb")

    def frame(self, kind, flags, stream, payload):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] +
                            struct.pack(">BBI", kind, flags, stream) + payload)

    def open(self, path):
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path),
                  (":authority", "node"), ("content-type", "application/grpc"),
                  ("te", "trailers")]
        block = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) +
                         value.encode() for name, value in fields)
        self.frame(self.HEADERS, 4, 1, block)

    def data(self, payload):
        for at in range(0, len(payload), 16384):
            self.frame(self.DATA, 0, 1, payload[at:at + 16384])

    def message(self):
        """The next message of the stream, which comes in one DATA frame or several."""
        body = b""
        while len(body) < 5 or len(body) < 5 + struct.unpack(">I", body[1:5])[0]:
            head = self.received.read(9)
            if len(head) < 9:
                raise EOFError("the node closed the connection")
            payload = self.received.read(struct.unpack(">I", b"\0" + head[:3])[0])
            if head[3] == self.SETTINGS and not head[4] & 1:
                self.frame(self.SETTINGS, 1, 0, b"")
            elif head[3] == self.DATA:
                body += payload
        return body[5:]

    def close(self):
        self.received.close()
        self.socket.close()


def framed(request):
    body = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(body)) + body


class StreamsTest(NodeCase):
    options = ("--memory-limit=2GiB", "--spin=0us", "--drain-timeout=100ms")

    def held(self, part, layer=0):
        answer = self.client.data.GetPart(attention.GetPartRequest(part=part.ref))
        return answer.part.layers[layer].held_tokens if answer.part.layers else 0

    def expect_prefix(self, answer, count):
        self.assertEqual(answer.results[0].status.code, 0, answer.results[0].status)
        got = sections_of(answer, 0, (1, 6, 64))
        np.testing.assert_allclose(got["lse"], np.log(count), atol=1e-5)
        np.testing.assert_allclose(got["o"], (count - 1) / 2, rtol=1e-5, atol=1e-5)
        self.assertTrue((got["keys_read"] == count).all())

    def attend(self, part, count):
        return self.client.data.Attend(
            part.attend_request(np.ones((1, 6, 64), dtype=np.float32), count))

    def read_back(self, part, count):
        pieces = self.client.data.ReadKv(
            attention.ReadKvRequest(part=part.ref, layer=0, start=0, count=count))
        return b"".join(piece.payload for piece in pieces)

    def test_a_stream_cut_inside_a_message_shows_nothing_of_it(self):
        for share in (0.0, 0.02, 0.5, 0.999):
            with self.subTest(share=share):
                part = Part(self.client)
                connection = Connection(self.node.port)
                connection.open("/pigpen.v1.AttentionService/AppendKvStream")
                connection.data(framed(part.append_request(*counted_rows(0, 40), 0)))
                answer = attention.AppendKvResponse.FromString(connection.message())
                self.assertFalse(answer.HasField("status"), answer)
                self.assertEqual(answer.held_tokens, 40)
                whole = framed(part.append_request(*counted_rows(40, 30), 40))
                connection.data(whole[:int(len(whole) * share)])
                connection.close()
                self.assertEqual(self.held(part), 40)
                self.expect_prefix(self.attend(part, 40), 40)
                short = self.attend(part, 41)
                self.assertEqual(short.results[0].status.reason, "SHORT_PART")
                self.refused(grpc.StatusCode.OUT_OF_RANGE, "OUT_OF_RANGE",
                             lambda: self.read_back(part, 41))
                again = part.append(*counted_rows(40, 30), 40)
                self.assertFalse(again.duplicate)
                self.assertEqual(again.held_tokens, 70)
                self.expect_prefix(self.attend(part, 70), 70)

    def test_an_append_whose_answer_was_lost_is_met_as_a_duplicate(self):
        part = Part(self.client)
        connection = Connection(self.node.port)
        connection.open("/pigpen.v1.AttentionService/AppendKvStream")
        connection.data(framed(part.append_request(*counted_rows(0, 40), 0)))
        connection.message()  # applied; the worker of this story never saw it
        connection.close()
        again = part.append(*counted_rows(0, 40), 0)
        self.assertTrue(again.duplicate)
        self.assertEqual(again.held_tokens, 40)
        self.expect_prefix(self.attend(part, 40), 40)
        gap = self.refused(grpc.StatusCode.OUT_OF_RANGE, "APPEND_GAP",
                           lambda: part.append(*counted_rows(45, 5), 45))
        self.assertEqual(gap.details(), "expected_start=40")

    def test_of_two_workers_at_one_position_one_is_in_conflict(self):
        for _ in range(20):
            part = Part(self.client)
            part.append(*counted_rows(0, 10), 0)
            k, v = counted_rows(10, 20)
            calls = [self.client.data.AppendKv.future(part.append_request(k, v + i, 10))
                     for i in range(2)]
            codes = [call.code() for call in calls]
            self.assertEqual(sorted(code.name for code in codes), ["ABORTED", "OK"])
            lost = codes.index(grpc.StatusCode.ABORTED)
            self.assertEqual(dict(calls[lost].trailing_metadata())["pigpen-reason"],
                             "APPEND_CONFLICT")
            self.assertEqual(self.held(part), 30)
            won = np.frombuffer(self.read_back(part, 30), dtype=np.float32)
            self.assertEqual(won[-1], 29 + (1 - lost))

    def test_attends_beside_two_appending_streams_count_the_asked_prefix(self):
        """Both streams send the same rows: the second of each is a duplicate or an overlap."""
        part = Part(self.client)
        step, total = 7, 3500
        acknowledged = [0]
        lock = threading.Condition()

        def append(stride):
            requests = (part.append_request(*counted_rows(at, min(stride, total - at)), at)
                        for at in range(0, total, stride))
            sent = self.client.data.AppendKvStream(requests)
            for answer in sent:
                with lock:
                    if not answer.HasField("status"):
                        acknowledged[0] = max(acknowledged[0], answer.held_tokens)
                    else:  # this stream ran ahead of nobody: it may only be behind its own gap
                        failures.append(answer.status.reason)
                    lock.notify_all()

        failures = []
        workers = [threading.Thread(target=append, args=(stride,)) for stride in (step, 3 * step)]
        asked = []

        def requests():
            at = 0
            while at < total:
                with lock:
                    lock.wait_for(lambda: acknowledged[0] > at or failures, timeout=60)
                    if failures or acknowledged[0] <= at:
                        return
                    at = acknowledged[0]
                for held in (at, (at + 1) // 2):
                    asked.append(held)
                    yield part.attend_request(np.ones((1, 6, 64), dtype=np.float32), held,
                                              request_id=held)

        answers = self.client.data.AttendStream(requests())
        for worker in workers:
            worker.start()
        seen = 0
        for answer in answers:
            self.expect_prefix(answer, answer.request_id)
            seen += 1
        for worker in workers:
            worker.join()
        self.assertEqual(failures, [])
        self.assertEqual(seen, len(asked))
        self.assertGreater(seen, 2)
        self.assertEqual(self.held(part), total)
        self.expect_prefix(self.attend(part, total), total)

    def test_an_append_sent_before_a_truncate_that_arrives_after_it_is_stale(self):
        part = Part(self.client)
        part.append(*counted_rows(0, 100), 0)
        connection = Connection(self.node.port)
        connection.open("/pigpen.v1.AttentionService/AppendKvStream")
        late = [framed(part.append_request(*counted_rows(start, 20), start))
                for start in (100, 60)]  # at the old length, and at the new one
        connection.data(late[0][:-1])  # all but the last byte is on its way
        truncate = attention.TruncatePartRequest(part=part.ref, new_generation=1, held_tokens=60)
        self.assertEqual(self.client.data.TruncatePart(truncate).generation, 1)
        connection.data(late[0][-1:] + late[1])
        for _ in late:
            answer = attention.AppendKvResponse.FromString(connection.message())
            self.assertEqual(answer.status.reason, "STALE_GENERATION")
        connection.close()
        self.assertEqual(self.attend(part, 60).results[0].status.reason, "STALE_GENERATION")
        part.ref.generation = 1
        self.assertEqual(self.held(part), 60)
        self.expect_prefix(self.attend(part, 60), 60)
        self.assertEqual(part.append(*counted_rows(60, 5), 60).held_tokens, 65)
        self.expect_prefix(self.attend(part, 65), 65)

    def test_sizes_that_do_not_fit_are_refused_and_leave_the_rows_alone(self):
        part = Part(self.client)
        part.append(*counted_rows(0, 30), 0)
        before = self.read_back(part, 30)

        def start(request, value):
            request.start = value
        def count(request, value):
            request.count = value
        def k_bytes(request, value):
            request.sections[0].bytes = value
        def cut(request, value):
            request.payload = request.payload[:value]
        rows = 2 * 64 * 4 * 2  # K of two tokens
        for spoil, value in ((start, 2**64 - 1), (start, 2**40 - 1), (count, 0), (count, 3),
                             (k_bytes, rows - 4), (k_bytes, rows // 2), (cut, 2 * rows - 1),
                             (cut, rows)):
            with self.subTest(spoil=spoil.__name__, value=value):
                request = part.append_request(*counted_rows(30, 2), 30)
                spoil(request, value)
                with self.assertRaises(grpc.RpcError) as caught:
                    self.client.data.AppendKv(request)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertEqual(self.held(part), 30)
                self.assertEqual(self.read_back(part, 30), before)
        for heads in (1, 5, 7, 12):  # the part has 6
            request = part.attend_request(np.ones((1, heads, 64), dtype=np.float32), 30)
            answer = self.client.data.Attend(request)
            self.assertEqual(answer.results[0].status.code,
                             grpc.StatusCode.INVALID_ARGUMENT.value[0], heads)
        self.expect_prefix(self.attend(part, 30), 30)

    def test_replicas_draw_alike_and_another_seed_or_shard_does_not(self):
        random = np.random.default_rng(5)
        k, v = (random.standard_normal((4096, 2, 64), dtype=np.float32) for _ in range(2))
        q = random.standard_normal((1, 6, 64), dtype=np.float32)
        with node_process.Node(PROGRAM, "--memory-limit=1GiB",
                               "--drain-timeout=100ms") as node:
            replica = Client(node.address)
            for kind in (common.ESTIMATOR_KIND_LSH, common.ESTIMATOR_KIND_SKETCH):
                first = Part(self.client, estimator=kind)
                answers = [self.sampled(self.client, first, 0, kind, k, v, q)]
                for change in (0, 1):
                    answers.append(self.sampled(replica, first, change, kind, k, v, q))
                self.assertEqual(answers[0], answers[1], kind)
                self.assertNotEqual(answers[0], answers[2], kind)
            replica.channel.close()
            self.assertEqual(node.stop(), 0)

    def sampled(self, client, first, change, kind, k, v, q):
        """The answer over these rows of the same part at the client's node, or of another shard with
        another seed."""
        part = Part.__new__(Part)
        part.__dict__.update(first.__dict__)
        part.client = client
        part.request = attention.OpenPartRequest.FromString(first.request.SerializeToString())
        part.request.hash_seed += change
        if change != 0:
            part.request.part_id = secrets.token_bytes(16)
            part.request.sequence_id = secrets.token_bytes(16)
        opened = client.data.OpenPart(part.request)
        part.ref = attention.PartRef(handle=opened.handle, incarnation=opened.incarnation)
        part.append_all(k, v, bulk=True)
        client.data.SealPart(attention.SealPartRequest(part=part.ref))
        self.wait_for_index(client, part, 4096)
        answer = client.data.Attend(part.attend_request(
            q, 4096, estimator=common.Estimator(kind=kind)))
        self.assertEqual(answer.results[0].estimator, kind)
        part.close()
        return answer.payload

    def wait_for_index(self, client, part, tokens):
        """Asks until the builder, which works on its own, has published."""
        for _ in range(100000):
            layer = client.data.GetPart(attention.GetPartRequest(part=part.ref)).part.layers[0]
            if layer.indexed_tokens == tokens:
                return
        self.fail("the index was not built")


if __name__ == "__main__":
    unittest.main(verbosity=2)
