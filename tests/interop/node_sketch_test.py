"""Balances and tuning of sketches, by a plain Python client: a BALANCE section is taken with a
layer's first rows, kept by merges and forks, and refused where the API says so; TunePart and
`pigpenctl tune` say what a part needs, from the queries it was asked.

PIGPEN_BUILD names the build folder whose attn-node is tested.
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from node_case import NodeCase  # noqa: E402
from node_client import (BUILD, Part, admin, attention, common, crc32c, grpc, np,  # noqa: E402
                         reference)

CTL = pathlib.Path(BUILD) / "deploy" / "ctl" / "pigpenctl"
SKETCH = common.Estimator(kind=common.ESTIMATOR_KIND_SKETCH)


class SketchTest(NodeCase):
    def append(self, part, k, v, start, balance=None):
        request = part.append_request(k, v, start)
        if balance is not None:
            more = np.ascontiguousarray(balance, dtype=np.float32).tobytes()
            request.sections.append(common.Section(kind=common.SECTION_KIND_BALANCE,
                                                   offset=len(request.payload), bytes=len(more)))
            request.payload += more
            request.crc32c = crc32c(request.payload)
        return self.client.data.AppendKv(request)

    def variance(self, part, q, held):
        """Mean published variance of the heads, and that the estimate is a sample."""
        answer, got = part.attend(q, held, estimator=SKETCH)
        self.assertEqual(answer.results[0].status.code, 0, answer.results[0].status)
        self.assertEqual(answer.results[0].estimator, common.ESTIMATOR_KIND_SKETCH)
        return got["var"].mean(), got

    def test_a_balance_comes_with_a_layers_first_rows_and_serves_its_forks(self):
        tokens, dim = 4096, 64
        uneven = np.ones(dim, dtype=np.float32)
        uneven[::16] = 30  # a few dimensions of K are far larger, and of q as much smaller
        k, v = self.rows(tokens) * uneven, self.rows(tokens)
        q = self.rows(1, heads=6) * 3 / uneven
        balance = np.tile(uneven, (2, 1))
        variances = []
        for given in (None, balance):
            part = Part(self.client, estimator=common.ESTIMATOR_KIND_SKETCH)
            self.append(part, k[:512], v[:512], 0, given)
            for start in range(512, tokens, 512):
                self.append(part, k[start:start + 512], v[start:start + 512], start)
            variance, got = self.variance(part, q, tokens)
            variances.append(variance)
            o, _ = reference(q, part.stored(k), part.stored(v), part.scale)
            error = ((got["o"] - o) ** 2).sum(axis=2)
            self.assertLess(np.sqrt(error.mean()), 4 * np.sqrt(variance))
        self.assertLess(variances[1], 0.5 * variances[0])
        fork = part.fork(tokens)
        self.assertLess(self.variance(fork, q, tokens)[0], 0.5 * variances[0])
        # The same again is welcome, another one is in conflict, and none is as good.
        more_k, more_v = k[:512], v[:512]
        self.append(part, more_k, more_v, tokens, balance)
        self.refused(grpc.StatusCode.ABORTED, "APPEND_CONFLICT",
                     lambda: self.append(part, more_k, more_v, tokens + 512, 2 * balance))
        self.append(part, more_k, more_v, tokens + 512)
        for each in (part, fork):
            each.close()

    def test_a_balance_that_is_none_is_refused(self):
        k, v = self.rows(8), self.rows(8)
        part = Part(self.client, estimator=common.ESTIMATOR_KIND_SKETCH)
        good = np.ones((2, 64), dtype=np.float32)
        for wrong in (0, -1, np.nan, np.inf, 2.0 ** 17, 2.0 ** -17):
            bad = good.copy()
            bad[1, 5] = wrong
            self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                         lambda: self.append(part, k, v, 0, bad))
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                     lambda: self.append(part, k, v, 0, good[:1]))
        exact = Part(self.client)
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                     lambda: self.append(exact, k, v, 0, good))
        self.assertEqual(self.append(part, k, v, 0, good).held_tokens, 8)
        part.close()
        exact.close()

    def test_draws_are_keyed_by_what_the_open_says(self):
        tokens = 4096
        k, v, q = self.rows(tokens), self.rows(tokens), self.rows(1, heads=6)
        estimator = common.Estimator(kind=common.ESTIMATOR_KIND_SKETCH, rows_share=0.02)
        parts = [Part(self.client, estimator=common.ESTIMATOR_KIND_SKETCH, draw_key=key)
                 for key in (1, 1, 2, 0, 0)]
        answers = []
        for part in parts:
            part.append_all(k, v, bulk=True)
            self.client.data.SealPart(attention.SealPartRequest(part=part.ref))
            answers.append(part.attend(q, tokens, estimator=estimator)[0])
        fork = parts[0].fork(tokens)
        answers.append(fork.attend(q, tokens, estimator=estimator)[0])
        first, replica, other, unnamed, unnamed_too, forked = [one.payload for one in answers]
        self.assertTrue(all(0 < one.results[0].keys_read < one.results[0].keys_held
                            for one in answers), "sampled")
        self.assertEqual(first, replica)
        self.assertEqual(first, forked)
        self.assertEqual(len({first, other, unnamed, unnamed_too}), 4)
        for part in [*parts, fork]:
            part.close()

    def tune(self, part, target):
        return self.client.admin.TunePart(
            admin.TunePartRequest(part=part.ref, target_error=target)).layers

    def true_error(self, part, queries, k, v, share):
        """Root of the mean over queries and heads of |o' - o|^2 / |o|^2."""
        estimator = common.Estimator(kind=common.ESTIMATOR_KIND_SKETCH, rows_share=share)
        squares = []
        for seed, q in enumerate(queries):
            o, _ = reference(q, part.stored(k), part.stored(v), part.scale)
            request = part.attend_request(q, len(k), estimator=estimator)
            request.items[0].seeds.append(seed)
            answer = self.client.data.Attend(request)
            got = np.frombuffer(answer.payload[:o.size * 4], dtype=np.float32).reshape(o.shape)
            squares.append(((got - o) ** 2).sum(axis=2) / (o ** 2).sum(axis=2))
        return np.sqrt(np.mean(squares))

    def test_what_tune_proposes_meets_its_target(self):
        tokens, target = 4096, 0.15
        part = Part(self.client, layers=2, estimator=common.ESTIMATOR_KIND_SKETCH)
        k, v = self.rows(tokens), self.rows(tokens) + 0.3
        part.append_all(k, v)
        queries = [2 * self.rows(1, heads=6) for _ in range(8)]
        self.assertFalse(self.tune(part, target)[0].HasField("estimator"))  # not asked yet
        for q in queries:
            self.variance(part, q, tokens)
        first, second = self.tune(part, target)
        self.assertEqual((first.tokens, first.queries), (tokens, 8))
        self.assertEqual(first.estimator.kind, common.ESTIMATOR_KIND_SKETCH)
        self.assertFalse(second.HasField("estimator"))
        self.assertLessEqual(first.error, target / 1.3)
        found = self.true_error(part, queries, k, v, first.estimator.rows_share)
        self.assertLess(abs(found / first.error - 1), 0.35)
        self.assertLess(found, target)
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                     lambda: self.tune(part, 0))
        one = self.client.admin.TunePart(admin.TunePartRequest(
            part=part.ref, target_error=target, layer_begin=1, layer_count=1)).layers
        self.assertEqual([layer.layer for layer in one], [1])
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                     lambda: self.client.admin.TunePart(admin.TunePartRequest(
                         part=part.ref, target_error=target, layer_begin=1, layer_count=2)))
        # The tool says the same, with a line for a worker.
        handle = f"{part.ref.handle:016x}"
        command = [CTL, "tune", f"--node={self.node.address}", f"--part={handle}",
                   f"--target-error={target}"]
        told = subprocess.run(command + ["--json"], capture_output=True, text=True, check=True)
        said = json.loads(told.stdout)
        match = re.fullmatch(r"sketch:bits=2,share=([0-9.]+)", said["estimator"])
        self.assertTrue(match, said["estimator"])
        self.assertGreaterEqual(float(match[1]), 0.99 * first.estimator.rows_share)
        self.assertLess(float(match[1]), 1.26 * first.estimator.rows_share)
        table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertIn(f"--estimator {said['estimator']}\n", table)
        part.close()


if __name__ == "__main__":
    unittest.main()
