"""One client of the soak, a process of its own: `soak_client.py ADDRESS KIND SEED`.

Every line on stdin is a number of cycles to run; a line of JSON with counts answers it. Whatever is
wrong ends the process with a trace. KIND says what a cycle is:
  good     the life of a part, each answer compared with numpy in f64
  hog      appends until the node refuses for want of memory, then gives all back
  garbage  bytes and mutilated messages to every method: typed errors only
  dying    opens, streams, and kills itself in the middle of it
"""
import collections
import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
from node_client import (Client, Part, attention, common, grpc, np, reference,  # noqa: E402
                         sections_of)

TOKENS_MAX = 6000
SHAPES = ((6, 2, 64), (3, 3, 40), (4, 1, 128), (5, 5, 16), (2, 1, 7))  # q heads, kv heads, dim
KINDS = (common.ESTIMATOR_KIND_EXACT, common.ESTIMATOR_KIND_LSH)
METHODS = ("OpenPart", "AppendKv", "AppendKvStream", "Attend", "AttendStream", "SealPart",
           "ForkPart", "TruncatePart", "ReadKv", "RenewParts", "ClosePart", "GetPart")
# What garbage may be answered with. INTERNAL and UNKNOWN are never among them.
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED,
            grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS,
            grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNIMPLEMENTED}


class MemoryRefused(Exception):
    """A message of a stream was refused for want of memory."""


class Held:
    """A part, and per layer the rows it must hold."""

    def __init__(self, part, rows):
        self.part = part
        self.rows = rows  # [layer] (k, v), as the node stores them

    def tokens(self, layer):
        return len(self.rows[layer][0])


class Soak:
    def __init__(self, address, seed):
        self.client = Client(address)
        self.random = np.random.default_rng(seed)
        self.counts = collections.Counter()
        self.opened_by_chance = set()
        # Drawn once: a cycle takes runs of them.
        self.pools = {shape: self.random.standard_normal((2 * TOKENS_MAX, *shape[1:]),
                                                         dtype=np.float32) for shape in SHAPES}

    def draw(self, low, high):
        return int(self.random.integers(low, high + 1))

    def chance(self, share):
        return self.random.random() < share

    def open(self, **options):
        shape = SHAPES[self.draw(0, len(SHAPES) - 1)]
        layers = self.draw(1, 3)
        part = Part(self.client, layers=layers, q_heads=shape[0], kv_heads=shape[1], dim=shape[2],
                    dtype=(common.DTYPE_BF16, common.DTYPE_F16, common.DTYPE_F32)[self.draw(0, 2)],
                    estimator=KINDS[self.draw(0, 1)], **options)
        self.counts["opened"] += 1
        empty = np.zeros((0, *shape[1:]), dtype=np.float32)
        return Held(part, [(empty, empty) for _ in range(layers)])

    def take(self, part, count):
        pool = self.pools[(part.q_heads, part.kv_heads, part.dim)]
        at = self.draw(0, len(pool) - count)
        return pool[at:at + count]

    def append(self, held, layer, count):
        part, start = held.part, held.tokens(layer)
        k, v = self.take(part, count), self.take(part, count)
        checksum = count < 200 and self.chance(0.1)  # by Python: slow
        if self.chance(0.5):
            acks = part.append_all(k, v, start=start, step=self.draw(50, 1500), layer=layer,
                                   bulk=self.chance(0.5), checksum=checksum)
            refused = {ack.status.reason for ack in acks if ack.HasField("status")}
            if "MEMORY" in refused:  # what follows in the stream is a gap
                raise MemoryRefused
            assert not refused, acks
            got = acks[-1].held_tokens
        else:
            got = part.append(k, v, start, layer=layer, checksum=checksum).held_tokens
        assert got == start + count, (got, start, count)
        held.rows[layer] = (np.concatenate([held.rows[layer][0], part.stored(k)]),
                            np.concatenate([held.rows[layer][1], part.stored(v)]))
        self.counts["appended"] += count

    def attend(self, held):
        part = held.part
        layer = self.draw(0, len(held.rows) - 1)
        count = self.draw(0, held.tokens(layer))
        q = self.random.standard_normal((self.draw(1, 3), part.q_heads, part.dim), dtype=np.float32)
        exact = common.Estimator(kind=common.ESTIMATOR_KIND_EXACT) if self.chance(0.6) else None
        request = part.attend_request(q, count, layer=layer, estimator=exact)
        if self.chance(0.5):
            answer = self.client.data.Attend(request)
        else:
            answer = list(self.client.data.AttendStream(iter([request])))[0]
        result = answer.results[0]
        assert result.status.code == 0, result
        got = sections_of(answer, 0, q.shape)
        self.counts["attended"] += 1
        if count == 0:
            assert np.isneginf(got["lse"]).all() and (got["o"] == 0).all()
            return
        assert np.isfinite(got["o"]).all() and np.isfinite(got["lse"]).all()
        if result.estimator == common.ESTIMATOR_KIND_EXACT:
            k, v = held.rows[layer]
            o, lse = reference(q, k[:count], v[:count], part.scale)
            np.testing.assert_allclose(got["o"], o, atol=2e-4)
            np.testing.assert_allclose(got["lse"], lse, atol=2e-4)
            self.counts["compared"] += 1

    def read(self, held):
        layer = self.draw(0, len(held.rows) - 1)
        if held.tokens(layer) == 0:
            return
        start = self.draw(0, held.tokens(layer) - 1)
        request = attention.ReadKvRequest(part=held.part.ref, layer=layer, start=start,
                                          count=self.draw(1, held.tokens(layer) - start))
        pieces = list(self.client.data.ReadKv(request))
        assert sum(piece.count for piece in pieces) == request.count
        if held.part.dtype == common.DTYPE_F32:
            shape = (-1, held.part.kv_heads, held.part.dim)
            got = [np.frombuffer(p.payload[s.offset:s.offset + s.bytes], np.float32).reshape(shape)
                   for p in pieces for s in p.sections if s.kind == common.SECTION_KIND_K]
            np.testing.assert_array_equal(np.concatenate(got),
                                          held.rows[layer][0][start:start + request.count])
        self.counts["read"] += 1

    def truncate(self, held):
        kept = self.draw(0, min(held.tokens(layer) for layer in range(len(held.rows))))
        generation = held.part.ref.generation + 1
        self.client.data.TruncatePart(attention.TruncatePartRequest(
            part=held.part.ref, new_generation=generation, held_tokens=kept))
        held.part.ref = attention.PartRef(handle=held.part.ref.handle, generation=generation,
                                          incarnation=held.part.ref.incarnation)
        held.rows = [(k[:kept], v[:kept]) for k, v in held.rows]
        self.counts["truncated"] += 1

    def fork(self, held):
        kept = self.draw(0, min(held.tokens(layer) for layer in range(len(held.rows))))
        other = Held(held.part.fork(kept), [(k[:kept], v[:kept]) for k, v in held.rows])
        self.counts["forked"] += 1
        return other

    def good(self):
        alive = [self.open()]
        try:
            self.live(alive)
        except grpc.RpcError as error:
            self.refused_for_memory(error)  # while the hog has it
        except MemoryRefused:
            self.counts["refused for memory"] += 1
        self.random.shuffle(alive)
        for held in alive:
            held.part.close()

    def live(self, alive):
        for layer in range(len(alive[0].rows)):
            self.append(alive[0], layer, self.draw(1, TOKENS_MAX if self.chance(0.2) else 800))
        for _ in range(self.draw(2, 10)):
            held = alive[self.draw(0, len(alive) - 1)]
            what = self.draw(0, 9)
            if what <= 3:
                self.attend(held)
            elif what <= 5:
                self.append(held, self.draw(0, len(held.rows) - 1), self.draw(1, 300))
            elif what == 6:
                self.client.data.SealPart(attention.SealPartRequest(part=held.part.ref))
            elif what == 7:
                self.truncate(held)
            elif what == 8 and len(alive) < 4:
                alive.append(self.fork(held))
            else:
                self.read(held)
        for held in alive:
            self.attend(held)

    def hog(self):
        held = []
        rows = self.pools[SHAPES[2]][:TOKENS_MAX]
        try:
            while True:
                held.append(Part(self.client, q_heads=4, kv_heads=1, dim=128,
                                 dtype=common.DTYPE_F32, estimator=KINDS[self.draw(0, 1)]))
                self.counts["opened"] += 1
                for at in range(self.draw(1, 20)):
                    held[-1].append(rows, rows, at * TOKENS_MAX, bulk=self.chance(0.5),
                                    checksum=False)
        except grpc.RpcError as error:
            self.refused_for_memory(error)
        for part in held:
            part.close()

    def refused_for_memory(self, error):
        reason = dict(error.trailing_metadata() or ()).get("pigpen-reason")
        assert (error.code(), reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEMORY"), error
        self.counts["refused for memory"] += 1

    def garbage(self):
        held = self.open()
        part = held.part
        k = self.take(part, 50)
        part.append(k, k, 0, checksum=False)
        q = np.ones((1, part.q_heads, part.dim), dtype=np.float32)
        good = [part.request, part.append_request(k, k, 50), part.attend_request(q, 50),
                attention.SealPartRequest(part=part.ref), attention.GetPartRequest(part=part.ref)]
        for _ in range(20):
            if self.chance(0.3):
                body = self.random.bytes(self.draw(0, 3000))
            else:
                body = self.mutilate(good[self.draw(0, len(good) - 1)].SerializeToString())
            self.send(METHODS[self.draw(0, len(METHODS) - 1)], body)
        # Mutilated or not, some of them may have been real requests, also to close.
        for handle in {part.ref.handle, *self.opened_by_chance}:
            ref = attention.PartRef(handle=handle, incarnation=part.ref.incarnation)
            try:
                self.client.data.ClosePart(attention.ClosePartRequest(part=ref))
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND, error
        self.opened_by_chance.clear()

    def mutilate(self, body):
        body = bytearray(body)
        for _ in range(self.draw(1, 4)):
            at = self.draw(0, len(body) - 1)
            what = self.draw(0, 3)
            if what == 0:
                body[at] = self.draw(0, 255)
            elif what == 1:
                del body[at:at + self.draw(1, 20)]
            elif what == 2:
                body[at:at] = self.random.bytes(self.draw(1, 20))
            else:
                del body[at:]
            body = body or bytearray(b"\0")
        return bytes(body)

    def send(self, name, body):
        path = f"/pigpen.v1.AttentionService/{name}"
        try:
            if name.endswith("Stream"):
                answers = list(self.client.channel.stream_stream(path)(iter([body]), timeout=60))
            elif name == "ReadKv":
                answers = list(self.client.channel.unary_stream(path)(body, timeout=60))
            else:
                answers = [self.client.channel.unary_unary(path)(body, timeout=60)]
            self.counts["garbage answered"] += 1
            if name in ("OpenPart", "ForkPart"):  # the handle is the first field of both
                self.opened_by_chance.add(attention.OpenPartResponse.FromString(answers[0]).handle)
        except grpc.RpcError as error:
            assert error.code() in REFUSALS, f"{name} {body!r}: {error}"
            self.counts["garbage refused"] += 1

    def dying(self):
        held = self.open()
        rows = self.take(held.part, 500)
        def requests():
            for at in range(20):
                if at == 12:
                    print(json.dumps({"leaves": held.part.ref.handle}), flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                yield held.part.append_request(rows, rows, at * 500, checksum=False)
        list(self.client.data.AppendKvStream(requests()))


def main():
    address, kind, seed = sys.argv[1:]
    soak = Soak(address, int(seed))
    for line in sys.stdin:
        for _ in range(int(line)):
            getattr(soak, kind)()
            soak.counts["cycles"] += 1
        print(json.dumps(soak.counts), flush=True)
        soak.counts.clear()


if __name__ == "__main__":
    main()
