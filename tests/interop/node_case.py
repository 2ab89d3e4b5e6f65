"""What tests with one node for all of them share: the node, a client of it, made-up rows, and how a
refusal looks."""
import unittest

import node_process
from node_client import PROGRAM, Client, grpc, np


class NodeCase(unittest.TestCase):
    options = ("--build=sync", "--memory-limit=2GiB", "--spin=0us", "--drain-timeout=100ms")

    @classmethod
    def setUpClass(cls):
        cls.node = node_process.Node(PROGRAM, *cls.options)
        cls.client = Client(cls.node.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.channel.close()
        code = cls.node.stop()
        if code != 0:
            raise AssertionError(f"attn-node ended with {code}:\n" + "".join(cls.node.lines))

    def setUp(self):
        self.random = np.random.default_rng(42)

    def rows(self, tokens, heads=2, dim=64):
        return self.random.standard_normal((tokens, heads, dim), dtype=np.float32)

    def refused(self, code, reason, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        trailers = dict(caught.exception.trailing_metadata() or ())
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(trailers.get("pigpen-reason"),
                      reason if isinstance(reason, tuple) else (reason,))
        return caught.exception
