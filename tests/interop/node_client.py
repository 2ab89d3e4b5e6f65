"""A plain Python gRPC client of a node for tests: stubs come from proto/ by protoc, the reference
is numpy in f64. Nothing here knows how the node works inside.

PIGPEN_BUILD names the build folder whose attn-node is tested.
"""
import atexit
import importlib
import os
import pathlib
import secrets
import sys
import tempfile

try:
    import grpc
    import numpy as np
    from grpc_tools import protoc
except ImportError as error:
    sys.exit(f"FAILED: {error}. Install what this test needs: "
             f"{sys.executable} -m pip install -r tests/interop/requirements.txt "
             "(tests/run does it, and sets PIGPEN_PYTHON)")

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
BUILD = os.environ.get("PIGPEN_BUILD", HERE.parents[1] / "build" / "release")
PROGRAM = pathlib.Path(BUILD) / "attn-node" / "attn-node"


def generate_stubs(folder):
    import grpc_tools
    google = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(str(path) for path in PROTO.rglob("*.proto"))
    code = protoc.main(["protoc", f"-I{PROTO}", f"-I{google}", f"--python_out={folder}",
                        f"--grpc_python_out={folder}", *files])
    if code != 0:
        sys.exit("FAILED: protoc refused the protos")


def import_stubs():
    """Generates the stubs, unless PIGPEN_STUBS says where a parent process has put them."""
    folder = os.environ.get("PIGPEN_STUBS")
    if folder is None:
        made = tempfile.TemporaryDirectory(prefix="pigpen-stubs-")
        atexit.register(made.cleanup)
        folder = os.environ["PIGPEN_STUBS"] = made.name
        generate_stubs(folder)
    # "grpc" is also the name of the library: the health stubs lie under a path of their own.
    sys.path.insert(0, folder)
    grpc.__path__.append(str(pathlib.Path(folder) / "grpc"))
    names = ["pigpen.v1.common_pb2", "pigpen.v1.attention_pb2", "pigpen.v1.attention_pb2_grpc",
             "pigpen.v1.admin_pb2", "pigpen.v1.admin_pb2_grpc", "grpc.health.v1.health_pb2",
             "grpc.health.v1.health_pb2_grpc"]
    return [importlib.import_module(name) for name in names]


common, attention, attention_grpc, admin, admin_grpc, health, health_grpc = import_stubs()

CRC_TABLE = np.zeros(256, dtype=np.uint32)
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    CRC_TABLE[_i] = _c


def crc32c(data):
    crc = 0xFFFFFFFF
    table = CRC_TABLE.tolist()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def to_bf16(values):
    """f32 to bf16 bits, half to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_int8(values):
    """[...][dim] f32 -> [...][dim + 4] bytes: the int8, then their scale, max |value| / 127."""
    scale = np.abs(values).max(axis=-1, keepdims=True).astype(np.float32) / np.float32(127)
    whole = np.rint(values / np.where(scale == 0, 1, scale)).astype(np.int8)
    return np.concatenate([whole.view(np.uint8), scale.view(np.uint8)], axis=-1)


def from_int8(stored):
    scale = np.ascontiguousarray(stored[..., -4:]).view(np.float32)
    return np.ascontiguousarray(stored[..., :-4]).view(np.int8).astype(np.float32) * scale


DTYPES = {
    common.DTYPE_I8: (to_int8, from_int8, np.uint8),
    common.DTYPE_BF16: (to_bf16, from_bf16, np.uint16),
    common.DTYPE_F16: (lambda x: x.astype(np.float16), lambda x: x.astype(np.float32), np.float16),
    common.DTYPE_F32: (lambda x: x.astype(np.float32), lambda x: x, np.float32),
}


def reference(q, k, v, scale):
    """q [rows][q heads][dim], k and v [tokens][kv heads][dim] -> o, lse, in f64."""
    rows, q_heads, dim = q.shape
    kv_heads = k.shape[1]
    group = q_heads // kv_heads
    o = np.zeros((rows, q_heads, dim))
    lse = np.zeros((rows, q_heads))
    for head in range(q_heads):
        kk = k[:, head // group].astype(np.float64)
        vv = v[:, head // group].astype(np.float64)
        scores = q[:, head].astype(np.float64) @ kk.T * scale
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        o[:, head] = weights @ vv / total
        lse[:, head] = (top + np.log(total))[:, 0]
    return o, lse


class Part:
    """A part on the node, and the rows it should hold."""

    def __init__(self, client, layers=1, q_heads=6, kv_heads=2, dim=64, kv_begin=0, kv_count=None,
                 dtype=common.DTYPE_F32, estimator=common.ESTIMATOR_KIND_EXACT, **options):
        self.client = client
        self.q_heads, self.kv_heads, self.dim, self.dtype = q_heads, kv_heads, dim, dtype
        self.kv_count = kv_heads if kv_count is None else kv_count
        self.scale = 1 / np.sqrt(dim)
        self.sequence_id, self.part_id = secrets.token_bytes(16), secrets.token_bytes(16)
        self.request = attention.OpenPartRequest(
            sequence_id=self.sequence_id, part_id=self.part_id,
            model=common.Model(fingerprint=b"interop", layers=layers, q_heads=q_heads,
                               kv_heads=kv_heads, head_dim=dim, kv_dtype=dtype),
            kv_head_begin=kv_begin, kv_head_count=self.kv_count,
            estimator=common.Estimator(kind=estimator), hash_seed=1234, **options)
        self.opened = client.data.OpenPart(self.request)
        self.ref = attention.PartRef(handle=self.opened.handle,
                                     incarnation=self.opened.incarnation, generation=0)

    def append_request(self, k, v, start, layer=0, request_id=1, bulk=False, checksum=True):
        narrow = DTYPES[self.dtype][0]
        k_bytes, v_bytes = narrow(k).tobytes(), narrow(v).tobytes()
        return attention.AppendKvRequest(
            part=self.ref, request_id=request_id, layer=layer, start=start, count=len(k),
            crc32c=crc32c(k_bytes + v_bytes) if checksum else 0, bulk=bulk,
            sections=[common.Section(kind=common.SECTION_KIND_K, offset=0, bytes=len(k_bytes)),
                      common.Section(kind=common.SECTION_KIND_V, offset=len(k_bytes),
                                     bytes=len(v_bytes))],
            payload=k_bytes + v_bytes)

    def append(self, k, v, start, **options):
        return self.client.data.AppendKv(self.append_request(k, v, start, **options))

    def append_all(self, k, v, start=0, step=500, **options):
        """By the stream, from held index `start`; returns the acknowledgements."""
        requests = [self.append_request(k[i:i + step], v[i:i + step], start + i, request_id=i + 1,
                                        **options)
                    for i in range(0, len(k), step)]
        return list(self.client.data.AppendKvStream(iter(requests)))

    def fork(self, held_tokens):
        """A part over the same first tokens."""
        other = Part.__new__(Part)
        other.__dict__.update(self.__dict__)
        forked = self.client.data.ForkPart(attention.ForkPartRequest(
            part=self.ref, sequence_id=secrets.token_bytes(16), part_id=secrets.token_bytes(16),
            held_tokens=held_tokens, generation=0))
        other.ref = attention.PartRef(handle=forked.handle, incarnation=forked.incarnation,
                                      generation=forked.generation)
        return other

    def close(self):
        return self.client.data.ClosePart(attention.ClosePartRequest(part=self.ref))

    def attend_request(self, q, held, layer=0, request_id=7, estimator=None, **options):
        items = [attention.AttendItem(handle=self.ref.handle, generation=self.ref.generation,
                                      held_tokens=held, q_rows=len(q), estimator=estimator)]
        payload = np.ascontiguousarray(q, dtype=np.float32).tobytes()
        return attention.AttendRequest(
            request_id=request_id, incarnation=self.ref.incarnation, layer=layer, items=items,
            want_errors=True,
            sections=[common.Section(kind=common.SECTION_KIND_Q, bytes=len(payload))],
            payload=payload, **options)

    def attend(self, q, held, **options):
        answer = self.client.data.Attend(self.attend_request(q, held, **options))
        return answer, sections_of(answer, 0, q.shape)

    def stored(self, values):
        narrow, widen, _ = DTYPES[self.dtype]
        return widen(narrow(values)).reshape(values.shape)


def sections_of(answer, item, q_shape):
    rows, heads, dim = q_shape
    found = {}
    for section in answer.sections:
        if section.item == item:
            found[section.kind] = answer.payload[section.offset:section.offset + section.bytes]
    def array(kind, dtype, shape):
        return np.frombuffer(found[kind], dtype=dtype).reshape(shape)
    if not found:
        return None
    if answer.o_dtype == common.DTYPE_BF16:
        o = from_bf16(array(common.SECTION_KIND_O, np.uint16, q_shape))
    else:
        o = array(common.SECTION_KIND_O, np.float32, q_shape)
    flat = (rows, heads)
    return {
        "o": o,
        "lse": array(common.SECTION_KIND_LSE, np.float32, flat),
        "var": array(common.SECTION_KIND_VAR, np.float32, flat),
        "lse_var": array(common.SECTION_KIND_LSE_VAR, np.float32, flat),
        "keys_read": array(common.SECTION_KIND_KEYS_READ, np.uint32, flat),
    }


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", 32 << 20),
                              ("grpc.max_send_message_length", 32 << 20),
                              ("grpc.enable_http_proxy", 0)])
        self.data = attention_grpc.AttentionServiceStub(self.channel)
        self.admin = admin_grpc.AdminServiceStub(self.channel)
        self.health = health_grpc.HealthStub(self.channel)
