"""A plain Python gRPC client against a node: answers are compared with numpy. Nothing here knows how
the node works inside.

PIGPEN_BUILD names the build folder whose attn-node is tested.
"""
import pathlib
import secrets
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import node_process  # noqa: E402
from node_case import NodeCase  # noqa: E402
from node_client import (DTYPES, PROGRAM, Client, Part, admin, attention, common, crc32c,  # noqa: E402
                         grpc, health, np, reference, sections_of)


class NodeTest(NodeCase):
    def compare(self, part, q, k, v, held, tolerance, **options):
        answer, got = part.attend(q, held, **options)
        self.assertEqual(answer.results[0].status.code, 0, answer.results[0].status)
        o, lse = reference(q, part.stored(k[:held]), part.stored(v[:held]), part.scale)
        np.testing.assert_allclose(got["o"], o, atol=tolerance)
        np.testing.assert_allclose(got["lse"], lse, atol=tolerance)
        return answer, got

    def test_health_and_info_and_stats_answer(self):
        answer = self.client.health.Check(health.HealthCheckRequest())
        self.assertEqual(answer.status, health.HealthCheckResponse.SERVING)
        watch = self.client.health.Watch(health.HealthCheckRequest(), timeout=10)
        self.assertEqual(next(watch).status, health.HealthCheckResponse.SERVING)
        watch.cancel()
        self.refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND",
                     lambda: self.client.health.Check(health.HealthCheckRequest(service="x")))
        unknown = self.client.health.Watch(health.HealthCheckRequest(service="x"), timeout=10)
        self.assertEqual(next(unknown).status, health.HealthCheckResponse.SERVICE_UNKNOWN)
        unknown.cancel()
        info = self.client.admin.GetServerInfo(admin.GetServerInfoRequest())
        self.assertNotEqual(info.incarnation, 0)
        self.assertIn("lsh", info.features)
        self.assertEqual(info.state, admin.NODE_STATE_SERVING)
        stats = self.client.admin.GetStats(admin.GetStatsRequest())
        values = {counter.name: counter.value for counter in stats.counters}
        self.assertEqual(values["pigpen_node_ready"], 1)
        self.assertGreater(
            values['pigpen_node_rpc_requests_total{method="Check",code="OK"}'], 0)
        tested = self.client.admin.SelfTest(admin.SelfTestRequest())
        self.assertTrue(tested.ok, tested)

    def test_exact_attend_equals_numpy_in_every_dtype(self):
        for dtype, tolerance in ((common.DTYPE_F32, 1e-4), (common.DTYPE_BF16, 1e-4),
                                 (common.DTYPE_F16, 1e-4), (common.DTYPE_I8, 1e-4)):
            part = Part(self.client, dtype=dtype)
            k, v, q = self.rows(700), self.rows(700), self.rows(1, heads=6)
            self.assertEqual(part.append(k, v, 0).held_tokens, 700)
            for held in (1, 2, 333, 700):
                with self.subTest(dtype=dtype, held=held):
                    answer, got = self.compare(part, q, k, v, held, tolerance)
                    self.assertEqual(answer.results[0].estimator, common.ESTIMATOR_KIND_EXACT)
                    self.assertTrue((got["var"] == 0).all())
            self.client.data.ClosePart(attention.ClosePartRequest(part=part.ref))

    def test_several_rows_and_bf16_answers(self):
        part = Part(self.client)
        k, v, q = self.rows(900), self.rows(900), self.rows(5, heads=6)
        part.append(k, v, 0)
        self.compare(part, q, k, v, 900, 1e-4)
        self.compare(part, q, k, v, 900, 0.02, o_dtype=common.DTYPE_BF16)

    def test_no_held_tokens_is_the_empty_partial(self):
        part = Part(self.client)
        part.append(self.rows(10), self.rows(10), 0)
        _, got = part.attend(self.rows(1, heads=6), 0)
        self.assertTrue((got["o"] == 0).all())
        self.assertTrue(np.isneginf(got["lse"]).all())

    def test_append_rules(self):
        part = Part(self.client)
        k, v = self.rows(20), self.rows(20)
        self.assertEqual(part.append(k[:10], v[:10], 0).held_tokens, 10)
        again = part.append(k[:10], v[:10], 0)
        self.assertTrue(again.duplicate)
        self.assertEqual(again.held_tokens, 10)
        self.assertEqual(part.append(k[5:20], v[5:20], 5).held_tokens, 20)  # overlap is equal
        gap = self.refused(grpc.StatusCode.OUT_OF_RANGE, "APPEND_GAP",
                           lambda: part.append(k[:2], v[:2], 25))
        self.assertEqual(gap.details(), "expected_start=20")
        self.refused(grpc.StatusCode.ABORTED, "APPEND_CONFLICT",
                     lambda: part.append(v[:10], k[:10], 0))
        self.assertEqual(part.append(k, v, 0).held_tokens, 20)  # all of it stands unchanged
        broken = part.append_request(k[:2], v[:2], 20)
        broken.crc32c ^= 1
        self.refused(grpc.StatusCode.DATA_LOSS, "CHECKSUM",
                     lambda: self.client.data.AppendKv(broken))
        poisoned = k[:2].copy()
        poisoned[1, 1, 1] = np.nan
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "NON_FINITE",
                     lambda: part.append(poisoned, v[:2], 20))
        short = part.append_request(k[:2], v[:2], 20)
        short.count = 1
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, ("BAD_SHAPE", "INVALID_ARGUMENT"),
                     lambda: self.client.data.AppendKv(short))

    def test_append_stream_acknowledges_and_answers_errors_by_message(self):
        part = Part(self.client, layers=2)
        k, v = self.rows(2600), self.rows(2600)
        acks = part.append_all(k, v, layer=1)
        self.assertEqual([a.held_tokens for a in acks], [500, 1000, 1500, 2000, 2500, 2600])
        self.assertTrue(all(not a.HasField("status") for a in acks))
        requests = [part.append_request(k[:5], v[:5], 0, request_id=1),
                    part.append_request(k[:5], v[:5], 50, request_id=2),
                    part.append_request(k[5:9], v[5:9], 5, request_id=3)]
        acks = list(self.client.data.AppendKvStream(iter(requests)))
        self.assertEqual([a.request_id for a in acks], [1, 2, 3])
        self.assertEqual(acks[1].status.reason, "APPEND_GAP")
        self.assertEqual(acks[1].status.code, grpc.StatusCode.OUT_OF_RANGE.value[0])
        self.assertEqual(acks[1].status.expected_start, 5)
        self.assertEqual(acks[2].held_tokens, 9)

    def test_lsh_attend_is_near_exact_and_reads_a_part(self):
        tokens, dim = 8192, 64
        part = Part(self.client, estimator=common.ESTIMATOR_KIND_LSH, dim=dim)
        k, v = self.rows(tokens), self.rows(tokens)
        q = 3 * k[self.random.integers(0, tokens, 4)].repeat(3, axis=1)  # near some keys
        part.append_all(k, v, bulk=True)
        sealed = self.client.data.SealPart(attention.SealPartRequest(part=part.ref))
        self.assertGreater(sealed.segments, 0)
        layer = self.client.data.GetPart(attention.GetPartRequest(part=part.ref)).part.layers[0]
        self.assertEqual((layer.held_tokens, layer.sealed_tokens, layer.indexed_tokens),
                         (tokens, tokens, tokens))
        lsh = common.Estimator(kind=common.ESTIMATOR_KIND_LSH)
        answer, got = part.attend(q, tokens, estimator=lsh)
        self.assertEqual(answer.results[0].status.code, 0, answer.results[0].status)
        self.assertEqual(answer.results[0].estimator, common.ESTIMATOR_KIND_LSH)
        self.assertEqual(answer.results[0].keys_sampled, answer.results[0].keys_held)
        share = got["keys_read"] / tokens
        self.assertGreater(share.min(), 0.0005)
        self.assertLess(share.max(), 0.3)
        o, _ = reference(q, part.stored(k), part.stored(v), part.scale)
        error = ((got["o"] - o) ** 2).sum(axis=2)
        self.assertTrue((got["var"] > 0).all())
        self.assertLess(np.sqrt(error.mean()), 3 * np.sqrt(got["var"].mean()))
        exact = common.Estimator(kind=common.ESTIMATOR_KIND_EXACT)
        self.compare(part, q, k, v, tokens, 1e-4, estimator=exact)
        self.compare(part, q, k, v, 77, 1e-4, estimator=exact)

    def test_sketch_attend_reads_its_budget_and_is_exact_in_the_mean(self):
        tokens, share, seeds = 4096, 0.05, 256
        part = Part(self.client, estimator=common.ESTIMATOR_KIND_SKETCH)
        k, v = self.rows(tokens), self.rows(tokens)
        q = k[self.random.integers(0, tokens, 1)].repeat(3, axis=1)  # near a key
        part.append_all(k, v, bulk=True)
        self.client.data.SealPart(attention.SealPartRequest(part=part.ref))
        layer = self.client.data.GetPart(attention.GetPartRequest(part=part.ref)).part.layers[0]
        self.assertEqual(layer.indexed_tokens, tokens)
        o, lse = reference(q, part.stored(k), part.stored(v), part.scale)
        sketch = common.Estimator(kind=common.ESTIMATOR_KIND_SKETCH, rows_share=share)
        weights, sums, variances, squares, distinct = [], [], [], [], 0
        for first in range(0, seeds, 64):
            request = part.attend_request(q.repeat(64, axis=0), tokens, estimator=sketch)
            request.items[0].seeds.extend(range(first, first + 64))
            answer = self.client.data.Attend(request)
            result = answer.results[0]
            self.assertEqual(result.status.code, 0, result.status)
            self.assertEqual(result.estimator, common.ESTIMATOR_KIND_SKETCH)
            self.assertEqual(result.keys_sampled, result.keys_held)
            got = sections_of(answer, 0, (64, 6, 64))
            # The heads of a group read the same rows.
            self.assertTrue((got["keys_read"] == got["keys_read"][:, [0, 0, 0, 3, 3, 3]]).all())
            distinct += int(got["keys_read"][:, ::3].sum())
            self.assertEqual(result.keys_read, got["keys_read"][:, ::3].sum())
            weight = np.exp(got["lse"].astype(np.float64) - lse)
            weights.append(weight)
            sums.append(weight[:, :, None] * got["o"])
            variances.append(got["var"])
            squares.append(((got["o"] - o) ** 2).sum(axis=2))
        self.assertAlmostEqual(distinct / (seeds * 2 * tokens), share, delta=0.05 * share)
        # Both sums of an estimate, of weights and of weighted values, have no bias.
        for name, got, want in (("weights", weights, 1.0), ("weighted values", sums, o[0])):
            got = np.concatenate(got)
            standard_error = got.std(axis=0, ddof=1) / np.sqrt(seeds)
            off = np.abs(got.mean(axis=0) - want) / standard_error
            self.assertLess(off.max(), 5, name)
        published = np.concatenate(variances).mean()
        self.assertAlmostEqual(np.concatenate(squares).mean() / published, 1, delta=0.3)
        again, _ = part.attend(q, tokens, estimator=sketch)
        self.assertEqual(again.payload, part.attend(q, tokens, estimator=sketch)[0].payload)

    def test_attend_stream_matches_requests_and_spares_good_items(self):
        part = Part(self.client)
        k, v = self.rows(300), self.rows(300)
        part.append(k, v, 0)
        queries = [self.rows(1, heads=6) for _ in range(40)]
        requests = [part.attend_request(q, 100 + i, request_id=i) for i, q in enumerate(queries)]
        answers = list(self.client.data.AttendStream(iter(requests)))
        self.assertEqual(sorted(a.request_id for a in answers), list(range(40)))
        for answer in answers:
            i = answer.request_id
            o, _ = reference(queries[i], k[:100 + i], v[:100 + i], part.scale)
            np.testing.assert_allclose(sections_of(answer, 0, (1, 6, 64))["o"], o, atol=1e-4)
        mixed = part.attend_request(queries[0], 300)
        mixed.items.append(attention.AttendItem(handle=part.ref.handle, held_tokens=301, q_rows=1))
        mixed.items.append(attention.AttendItem(handle=12345, held_tokens=1, q_rows=1))
        mixed.items.append(attention.AttendItem(handle=part.ref.handle, held_tokens=3, q_rows=0))
        for item in (1, 2, 3):
            mixed.sections.append(common.Section(kind=common.SECTION_KIND_Q, item=item,
                                                 bytes=len(mixed.payload)))
        answer = self.client.data.Attend(mixed)
        self.assertEqual([r.status.reason for r in answer.results],
                         ["OK", "SHORT_PART", "PART_NOT_FOUND", "BAD_SHAPE"])
        o, _ = reference(queries[0], k, v, part.scale)
        np.testing.assert_allclose(sections_of(answer, 0, (1, 6, 64))["o"], o, atol=1e-4)
        poisoned = queries[0].copy()
        poisoned[0, 0, 0] = np.inf
        answer, _ = part.attend(poisoned, 300)
        self.assertEqual(answer.results[0].status.reason, "NON_FINITE")

    def test_fork_and_truncate_keep_to_themselves(self):
        part = Part(self.client)
        k, v, q = self.rows(2000), self.rows(2000), self.rows(1, heads=6)
        part.append(k[:1500], v[:1500], 0)
        fork = attention.ForkPartRequest(part=part.ref, sequence_id=secrets.token_bytes(16),
                                         part_id=secrets.token_bytes(16), held_tokens=1200,
                                         generation=0)
        forked = self.client.data.ForkPart(fork)
        self.assertEqual(self.client.data.ForkPart(fork).handle, forked.handle)  # idempotent
        other = Part.__new__(Part)
        other.__dict__.update(part.__dict__)
        other.ref = attention.PartRef(handle=forked.handle, incarnation=forked.incarnation,
                                      generation=forked.generation)
        other_k = np.concatenate([k[:1200], k[1700:2000]])
        other_v = np.concatenate([v[:1200], v[1700:2000]])
        self.assertEqual(other.append(k[1700:2000], v[1700:2000], 1200).held_tokens, 1500)
        self.compare(other, q, other_k, other_v, 1500, 1e-4)
        self.compare(part, q, k, v, 1500, 1e-4)
        truncate = attention.TruncatePartRequest(part=part.ref, new_generation=1, held_tokens=700)
        self.assertEqual(self.client.data.TruncatePart(truncate).generation, 1)
        self.assertEqual(self.client.data.TruncatePart(truncate).generation, 1)  # idempotent
        self.refused(grpc.StatusCode.ABORTED, "STALE_GENERATION",
                     lambda: part.append(k[1500:1510], v[1500:1510], 1500))
        part.ref.generation = 1
        self.compare(part, q, k, v, 700, 1e-4)
        self.compare(other, q, other_k, other_v, 1500, 1e-4)

    def test_read_kv_gives_the_rows_back(self):
        for dtype in DTYPES:
            part = Part(self.client, dtype=dtype, kv_heads=3, q_heads=3, dim=40)
            k, v = self.rows(6000, heads=3, dim=40), self.rows(6000, heads=3, dim=40)
            part.append_all(k, v, step=1500)
            kind = DTYPES[dtype][2]
            got_k, got_v, at = [], [], 17
            request = attention.ReadKvRequest(part=part.ref, layer=0, start=17, count=5900)
            for piece in self.client.data.ReadKv(request):
                self.assertEqual(piece.start, at)
                self.assertEqual(piece.crc32c, crc32c(piece.payload))
                at += piece.count
                for section in piece.sections:
                    data = piece.payload[section.offset:section.offset + section.bytes]
                    rows = np.frombuffer(data, dtype=kind).reshape(piece.count, 3, -1)
                    (got_k if section.kind == common.SECTION_KIND_K else got_v).append(rows)
            self.assertEqual(at, 17 + 5900)
            narrow = DTYPES[dtype][0]
            np.testing.assert_array_equal(np.concatenate(got_k), narrow(k[17:5917]))
            np.testing.assert_array_equal(np.concatenate(got_v), narrow(v[17:5917]))
            past = attention.ReadKvRequest(part=part.ref, layer=0, start=5999, count=2)
            self.refused(grpc.StatusCode.OUT_OF_RANGE, "OUT_OF_RANGE",
                         lambda: list(self.client.data.ReadKv(past)))

    def test_parts_are_known_by_handle_and_incarnation(self):
        part = Part(self.client)
        again = self.client.data.OpenPart(part.request)
        self.assertTrue(again.existed)
        self.assertEqual(again.handle, part.ref.handle)
        part.request.hash_seed += 1
        self.refused(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH",
                     lambda: self.client.data.OpenPart(part.request))
        part.request.hash_seed -= 1
        part.request.kv_head_count = 1
        self.refused(grpc.StatusCode.ALREADY_EXISTS, "PART_EXISTS",
                     lambda: self.client.data.OpenPart(part.request))
        renew = attention.RenewPartsRequest(incarnation=part.ref.incarnation,
                                            handles=[part.ref.handle, 99])
        self.assertEqual(list(self.client.data.RenewParts(renew).unknown_handles), [99])
        listed = self.client.admin.ListParts(admin.ListPartsRequest(page_size=1000))
        self.assertIn(part.ref.handle, [p.handle for p in listed.parts])
        wrong = attention.PartRef(handle=part.ref.handle, incarnation=part.ref.incarnation ^ 2)
        self.refused(grpc.StatusCode.ABORTED, "INCARNATION_CHANGED",
                     lambda: self.client.data.GetPart(attention.GetPartRequest(part=wrong)))
        self.client.data.ClosePart(attention.ClosePartRequest(part=part.ref))
        self.refused(grpc.StatusCode.NOT_FOUND, "PART_NOT_FOUND",
                     lambda: self.client.data.GetPart(attention.GetPartRequest(part=part.ref)))

    def test_a_tebibyte_declared_with_a_hundred_bytes_sent_takes_no_memory(self):
        part = Part(self.client)
        def resident():
            status = pathlib.Path(f"/proc/{self.node.process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0]) * 1024
        request = attention.AppendKvRequest(
            part=part.ref, start=0, count=60000, payload=bytes(100),
            sections=[common.Section(kind=common.SECTION_KIND_K, bytes=1 << 40),
                      common.Section(kind=common.SECTION_KIND_V, offset=1 << 40, bytes=1 << 40)])
        def call():
            return self.client.data.AppendKv(request)
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_SHAPE", call)  # warm
        before = resident()
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_SHAPE", call)
        self.assertLess(resident() - before, 1 << 20)

    def test_garbage_ends_the_call_and_not_the_node(self):
        call = self.client.channel.unary_unary("/pigpen.v1.AttentionService/AppendKv")
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"\xff" * 1000)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        missing = self.client.channel.unary_unary("/pigpen.v1.AttentionService/Nothing")
        with self.assertRaises(grpc.RpcError) as caught:
            missing(b"", timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(self.client.health.Check(health.HealthCheckRequest()).status,
                         health.HealthCheckResponse.SERVING)

    def test_a_stream_that_is_cut_leaves_whole_messages_only(self):
        part = Part(self.client)
        k, v = self.rows(100), self.rows(100)
        go_on = iter([part.append_request(k[:60], v[:60], 0)])
        hold = threading.Event()
        def requests():
            yield next(go_on)
            hold.wait(30)
        call = self.client.data.AppendKvStream(requests())
        self.assertEqual(next(call).held_tokens, 60)
        call.cancel()
        hold.set()
        self.assertEqual(part.append(k[60:], v[60:], 60).held_tokens, 100)
        self.compare(part, self.rows(1, heads=6), k, v, 100, 1e-4)

    def test_drain_refuses_new_parts_and_serves_old_ones_until_resume(self):
        part = Part(self.client)
        k, v, q = self.rows(50), self.rows(50), self.rows(1, heads=6)
        part.append(k, v, 0)
        watch = self.client.health.Watch(health.HealthCheckRequest(), timeout=30)
        self.assertEqual(next(watch).status, health.HealthCheckResponse.SERVING)
        self.client.admin.Drain(admin.DrainRequest())
        try:
            self.assertEqual(next(watch).status, health.HealthCheckResponse.NOT_SERVING)
            self.refused(grpc.StatusCode.UNAVAILABLE, "DRAINING", lambda: Part(self.client))
            answer, _ = self.compare(part, q, k, v, 50, 1e-4)
            self.assertTrue(answer.draining)
        finally:
            self.client.admin.Resume(admin.ResumeRequest())
        self.assertEqual(next(watch).status, health.HealthCheckResponse.SERVING)
        watch.cancel()
        Part(self.client)


class EndTest(unittest.TestCase):
    def test_sigterm_with_open_streams_and_calls_ends_cleanly(self):
        for second_signal in (False, True):
            timeout = "30s" if second_signal else "300ms"
            node = node_process.Node(PROGRAM, "--memory-limit=1GiB", f"--drain-timeout={timeout}")
            client = Client(node.address)
            part = Part(client)
            rows = np.ones((64, 2, 64), dtype=np.float32)
            part.append(rows, rows, 0)
            hold = threading.Event()
            def requests(first):
                yield first
                hold.wait(60)
            streams = [client.data.AttendStream(requests(
                part.attend_request(np.ones((1, 6, 64), dtype=np.float32), 64)))
                for _ in range(50)]
            for stream in streams:
                self.assertEqual(next(stream).results[0].status.code, 0)
            watch = client.health.Watch(health.HealthCheckRequest())
            self.assertEqual(next(watch).status, health.HealthCheckResponse.SERVING)
            if second_signal:
                node.process.terminate()
                self.assertEqual(next(watch).status, health.HealthCheckResponse.NOT_SERVING)
            self.assertEqual(node.stop(), 0, "".join(node.lines))
            hold.set()
            for stream in streams:
                with self.assertRaises(grpc.RpcError):
                    for _ in stream:
                        pass
            client.channel.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
