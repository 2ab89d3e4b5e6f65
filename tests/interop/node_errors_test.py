"""Error estimates, budgets and layers of their own, by a plain Python client: what a node publishes
of its error fits what it is off by, flags say how an answer came about, a budget of an item is a
share, a number or a target error, the LOCAL section counts towards a target, and layers keep to
their estimators.

PIGPEN_BUILD names the build folder whose attn-node is tested.
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from node_case import NodeCase  # noqa: E402
from node_client import Part, attention, common, grpc, np, reference, sections_of  # noqa: E402

TOKENS, HEADS, DIM = 4096, 6, 64
TARGET_MISSED = 4
EXACT = common.Estimator(kind=common.ESTIMATOR_KIND_EXACT)


def sketch(**budget):
    return common.Estimator(kind=common.ESTIMATOR_KIND_SKETCH, **budget)


def merged(left_o, left_lse, right_o, right_lse):
    """The merge law over two partials in f64."""
    top = np.maximum(left_lse, right_lse)
    left, right = np.exp(left_lse - top)[:, :, None], np.exp(right_lse - top)[:, :, None]
    return (left * left_o + right * right_o) / (left + right)


def apart(o, want):
    return np.sqrt(((o - want) ** 2).sum(axis=2) / (want ** 2).sum(axis=2))


class ErrorsTest(NodeCase):
    def setUp(self):
        super().setUp()
        self.part = Part(self.client, estimator=common.ESTIMATOR_KIND_SKETCH)
        self.k, self.v = self.rows(TOKENS), self.rows(TOKENS) + 0.3
        self.part.append_all(self.k, self.v, checksum=False)
        self.q = 2 * self.rows(4, heads=HEADS)
        self.o, self.lse = reference(self.q, self.part.stored(self.k), self.part.stored(self.v),
                                     self.part.scale)

    def tearDown(self):
        self.part.close()

    def ask(self, estimator, seed=1, local=None, part=None, layer=0):
        """Local is (o, lse) of what the asker has itself. -> result, sections."""
        request = (part or self.part).attend_request(self.q, TOKENS, layer=layer,
                                                     estimator=estimator)
        request.items[0].seeds.extend(seed + 100 * i for i in range(len(self.q)))
        if local is not None:
            more = np.concatenate([local[0], local[1][:, :, None]], axis=2).astype(np.float32)
            request.sections.append(common.Section(
                kind=common.SECTION_KIND_LOCAL, offset=len(request.payload), bytes=more.nbytes))
            request.payload += more.tobytes()
        answer = self.client.data.Attend(request)
        result = answer.results[0]
        if result.status.code != 0:
            return result, None
        return result, sections_of(answer, 0, self.q.shape)

    def answered(self, *arguments, **options):
        result, got = self.ask(*arguments, **options)
        self.assertEqual(result.status.code, 0, result.status)
        return result, got

    def item_refused(self, estimator, reason="INVALID_ARGUMENT", **options):
        result, _ = self.ask(estimator, **options)
        self.assertEqual(result.status.reason, reason, result.status)
        return result.status.message

    def test_published_errors_fit_the_true_ones(self):
        squares, variances, lse_squares, lse_variances, within = [], [], [], [], []
        for seed in range(24):
            result, got = self.answered(sketch(rows_share=0.08), seed=1 + 1000 * seed)
            self.assertEqual((result.estimator, result.flags),
                             (common.ESTIMATOR_KIND_SKETCH, 0))
            off = ((got["o"] - self.o) ** 2).sum(axis=2)
            squares.append(off)
            variances.append(got["var"])
            lse_squares.append((got["lse"] - self.lse) ** 2)
            lse_variances.append(got["lse_var"])
            within.append(np.sqrt(off) <= 2 * np.sqrt(got["var"]))
        self.assertLess(abs(np.mean(squares) / np.mean(variances) - 1), 0.4)
        self.assertLess(abs(np.mean(lse_squares) / np.mean(lse_variances) - 1), 0.6)
        self.assertGreater(np.mean(within), 0.93)
        _, got = self.answered(EXACT)
        for name in ("var", "lse_var"):
            self.assertTrue((got[name] == 0).all())
        self.assertTrue((got["keys_read"] == TOKENS).all())

    def test_nothing_is_said_of_errors_unless_it_is_asked(self):
        request = self.part.attend_request(self.q, TOKENS, estimator=sketch(rows_share=0.05))
        request.want_errors = False
        answer = self.client.data.Attend(request)
        self.assertEqual({section.kind for section in answer.sections},
                         {common.SECTION_KIND_O, common.SECTION_KIND_LSE})

    def test_a_budget_is_a_share_or_a_number_of_rows(self):
        heads = 2 * len(self.q)  # kv heads x q rows
        for budget, rows in (({"rows_share": 0.05}, 0.05 * TOKENS), ({"rows": 300}, 300),
                             ({}, 0.08 * TOKENS)):  # the default up to 4,096 tokens
            with self.subTest(budget=budget):
                result, got = self.answered(sketch(**budget))
                self.assertAlmostEqual(result.keys_read / heads / rows, 1, delta=0.12)
                self.assertEqual(result.keys_read, got["keys_read"][:, ::3].sum())
                self.assertEqual(result.keys_sampled, result.keys_held)
                self.assertEqual(result.keys_held, heads * TOKENS)
        # Without a kind the node plans, and the budget counts where it samples.
        plan = common.Estimator(rows=300)
        result, got = self.answered(plan)
        if result.estimator == common.ESTIMATOR_KIND_SKETCH:
            self.assertLess(result.keys_read, heads * 0.5 * TOKENS)
        else:
            self.assertEqual(result.keys_read, result.keys_held)

    def test_senseless_budgets_are_refused_item_by_item(self):
        for wrong in (sketch(rows_share=-0.1), sketch(rows_share=1.5),
                      sketch(rows_share=0.1, rows=5), sketch(target_error=-0.1),
                      sketch(target_error=1.5), sketch(target_error=float("nan")),
                      sketch(rows_share=float("nan")), sketch(bits=3)):
            with self.subTest(wrong=wrong):
                self.item_refused(wrong)
        self.assertEqual(self.ask(sketch(rows_share=1.0))[0].status.code, 0)

    def test_a_target_error_is_met_or_all_is_read_and_flagged(self):
        wide, _ = self.answered(sketch(target_error=0.5))
        near, got = self.answered(sketch(target_error=0.1))
        self.assertEqual((wide.estimator, wide.flags), (common.ESTIMATOR_KIND_SKETCH, 0))
        self.assertLess(wide.keys_read, near.keys_read)
        off = apart(got["o"], self.o)
        self.assertGreaterEqual((off <= 0.1).mean(), 0.8)
        # Beside a budget that cannot do it all rows are read, and the answer says so.
        hopeless, got = self.answered(sketch(target_error=0.001, rows_share=0.02))
        self.assertTrue(hopeless.flags & TARGET_MISSED)
        self.assertEqual(hopeless.keys_read, hopeless.keys_held)
        np.testing.assert_allclose(got["o"], self.o, atol=1e-4)
        self.assertTrue((got["var"] == 0).all())

    def test_what_the_asker_attends_itself_counts_towards_the_target(self):
        alone, _ = self.answered(sketch(target_error=0.1))
        # Ten times the weight lies with the asker: the part may err by more.
        local_o, local_lse = self.o + 0.5, self.lse + np.log(10)
        beside, got = self.answered(sketch(target_error=0.1), local=(local_o, local_lse))
        self.assertEqual(beside.flags, 0)
        self.assertLess(beside.keys_read, 0.5 * alone.keys_read)
        want = merged(self.o, self.lse, local_o, local_lse)
        off = apart(merged(got["o"], got["lse"], local_o, local_lse), want)
        self.assertGreaterEqual((off <= 0.1).mean(), 0.8)
        # An asker that has nothing says so by lse = -inf: the answer is as without the section.
        nothing = (np.zeros_like(self.o), np.full_like(self.lse, -np.inf))
        same, _ = self.answered(sketch(target_error=0.1), local=nothing)
        self.assertEqual(same.keys_read, alone.keys_read)
        # Without a target it changes nothing.
        _, plain = self.answered(sketch(rows_share=0.05))
        _, with_local = self.answered(sketch(rows_share=0.05), local=(local_o, local_lse))
        np.testing.assert_array_equal(plain["o"], with_local["o"])

    def test_a_local_section_that_is_none_is_refused(self):
        target = sketch(target_error=0.1)
        self.item_refused(target, local=(self.o[:3], self.lse[:3]))
        broken = self.o.copy()
        broken[2, 1, 5] = np.nan
        self.item_refused(target, "NON_FINITE", local=(broken, self.lse))
        for wrong in (np.nan, np.inf):
            lse = self.lse.copy()
            lse[1, 4] = wrong
            self.item_refused(target, "NON_FINITE", local=(self.o, lse))

    def test_layers_keep_to_their_own_estimators(self):
        own = [attention.LayerEstimator(layer=1, estimator=EXACT),
               attention.LayerEstimator(layer=2, estimator=sketch(rows_share=0.02)),
               attention.LayerEstimator(layer=3, estimator=common.Estimator(
                   kind=common.ESTIMATOR_KIND_LSH, k=6, l=40, t=1)),
               # Of several for a layer the last counts.
               attention.LayerEstimator(layer=3, estimator=sketch(rows=200))]
        part = Part(self.client, layers=4, estimator=common.ESTIMATOR_KIND_SKETCH,
                    layer_estimators=own)
        rows = []
        for layer in range(4):
            part.append_all(self.k, self.v, layer=layer, checksum=False)
            kind = common.ESTIMATOR_KIND_EXACT if layer == 1 else common.ESTIMATOR_KIND_SKETCH
            estimator = EXACT if layer == 1 else sketch()
            result, _ = self.answered(estimator, part=part, layer=layer)
            self.assertEqual(result.estimator, kind)
            rows.append(result.keys_read / len(self.q) / 2)
        for found, want in zip(rows, (0.08 * TOKENS, TOKENS, 0.02 * TOKENS, 200)):
            self.assertAlmostEqual(found / want, 1, delta=0.25)
        # Where there is no index every estimator of the part reads all; another one is refused.
        result, _ = self.answered(sketch(rows_share=0.02), part=part, layer=1)
        self.assertEqual((result.estimator, result.keys_read),
                         (common.ESTIMATOR_KIND_EXACT, result.keys_held))
        self.item_refused(common.Estimator(kind=common.ESTIMATOR_KIND_LSH), "UNIMPLEMENTED",
                          part=part)
        part.close()
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                     lambda: Part(self.client, layer_estimators=[
                         attention.LayerEstimator(layer=1, estimator=EXACT)]))


if __name__ == "__main__":
    unittest.main()
