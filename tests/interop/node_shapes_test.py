"""Shapes that cannot be, against a node over real connections: head counts that do not divide, dtypes
and layers that there are none of, sizes whose products pass 2^32 and 2^64. All of them are refused
before memory is taken, and the node serves on. PIGPEN_BUILD names the build folder."""
import pathlib
import secrets
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from node_case import NodeCase  # noqa: E402
from node_client import Part, attention, common, grpc, health, np  # noqa: E402

INVALID = grpc.StatusCode.INVALID_ARGUMENT


class NodeShapesTest(NodeCase):
    def open_request(self, kv_begin=0, kv_count=2, **model):
        fields = {"fingerprint": b"interop", "layers": 1, "q_heads": 6, "kv_heads": 2,
                  "head_dim": 64, "kv_dtype": common.DTYPE_F32, **model}
        return attention.OpenPartRequest(
            sequence_id=secrets.token_bytes(16), part_id=secrets.token_bytes(16),
            model=common.Model(**fields), kv_head_begin=kv_begin, kv_head_count=kv_count,
            estimator=common.Estimator(kind=common.ESTIMATOR_KIND_EXACT), hash_seed=1)

    def refused_open(self, reason, **fields):
        request = self.open_request(**fields)
        self.refused(INVALID, reason, lambda: self.client.data.OpenPart(request))

    def resident(self):
        status = pathlib.Path(f"/proc/{self.node.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def serves(self):
        answer = self.client.health.Check(health.HealthCheckRequest())
        self.assertEqual(answer.status, health.HealthCheckResponse.SERVING)

    def attend_code(self, request):
        """Of the call, where no part may have such a layer; else of its one item."""
        try:
            return self.client.data.Attend(request).results[0].status.code
        except grpc.RpcError as error:
            return error.code().value[0]

    def test_head_counts_that_do_not_divide_are_refused(self):
        for q_heads, kv_heads in ((33, 2), (3, 2), (4, 0), (2, 4)):
            with self.subTest(q_heads=q_heads, kv_heads=kv_heads):
                self.refused_open("BAD_SHAPE", q_heads=q_heads, kv_heads=kv_heads,
                                  kv_count=kv_heads)
        self.serves()

    def test_dtypes_layers_and_ranges_that_there_are_none_of_are_refused(self):
        for dtype in (-1, 7, 0x7fffffff):
            with self.subTest(dtype=dtype):
                self.refused_open("BAD_DTYPE", kv_dtype=dtype)
        for begin, count in ((0, 3), (1, 2), (2, 1), (0xffffffff, 2), (0, 0), (2**31, 2**31)):
            with self.subTest(kv_begin=begin, kv_count=count):
                self.refused_open("BAD_SHAPE", kv_begin=begin, kv_count=count)
        part = Part(self.client, layers=2)
        k, v = self.rows(3), self.rows(3)
        q = np.zeros((1, 6, 64), dtype=np.float32)
        for layer in (2, 3, 0x7fffffff, 0xffffffff):
            with self.subTest(layer=layer):
                with self.assertRaises(grpc.RpcError) as caught:
                    part.append(k, v, 0, layer=layer)
                self.assertEqual(caught.exception.code(), INVALID)
                self.assertEqual(self.attend_code(part.attend_request(q, 0, layer=layer)),
                                 INVALID.value[0])
        info = self.client.data.GetPart(attention.GetPartRequest(part=part.ref)).part
        self.assertEqual([layer.held_tokens for layer in info.layers], [0, 0])
        part.close()
        self.serves()

    def test_sizes_whose_products_overflow_take_no_memory(self):
        wrong = ({"q_heads": 65536, "kv_heads": 65536, "head_dim": 65536, "kv_count": 65536},
                 {"q_heads": 2**31, "kv_heads": 2**31, "head_dim": 256, "kv_count": 2**31},
                 {"head_dim": 2**32 - 1}, {"layers": 2**32 - 1},
                 {"layers": 2**31, "q_heads": 2**31, "kv_heads": 2**31, "head_dim": 2**31,
                  "kv_count": 2**31})
        for fields in wrong:  # warm
            self.refused_open("BAD_SHAPE", **fields)
        before = self.resident()
        for fields in wrong:
            with self.subTest(**fields):
                self.refused_open("BAD_SHAPE", **fields)
        self.assertLess(self.resident() - before, 1 << 20)
        self.serves()


if __name__ == "__main__":
    unittest.main(verbosity=2)
