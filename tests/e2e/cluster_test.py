"""A worker over two nodes from the outside: the same text as the worker alone, errors that are clear
and quick, and the quality of lsh on a long text. PIGPEN_BUILD names the build folder."""
import array
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from programs import CTL, ENVIRONMENT, MODEL, NODE, ROOT, TEXT, WORKER, node_process

CERTIFICATES = ROOT / "deploy" / "certificates"
OPTIONS = ("--memory-limit=2GiB", "--drain-timeout=5s")


def nodes_option(nodes):
    return "--nodes=" + ",".join(f"n{i}={node.address}" for i, node in enumerate(nodes))


def worker(program, *arguments, timeout=900):
    return subprocess.run([str(WORKER), program, "--model", MODEL, *arguments], timeout=timeout,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=ENVIRONMENT)


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        # Some 650 tokens, and 1,950 where estimators are to be told apart.
        self.brief, self.short = self.path / "brief.txt", self.path / "short.txt"
        self.brief.write_text(TEXT.read_text()[:3000])
        self.short.write_text(TEXT.read_text()[:9000])
        self.addCleanup(self.folder.cleanup)

    def generate(self, text, *arguments):
        out = self.path / "run.json"
        out.unlink(missing_ok=True)
        done = worker("generate", "--prompt-file", str(text), "--raw", "--max-tokens=64",
                      "--quiet", "--json", str(out), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text())

    def test_exact_over_two_nodes_gives_the_text_of_the_worker_alone(self):
        alone = self.generate(self.brief, "--kv-dtype=f32")
        self.assertEqual(alone["generated_tokens"], 64)
        for shard in ("tokens", "kv-heads"):
            with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
                spread = self.generate(self.brief, "--kv-dtype=f32", "--estimator=exact",
                                       f"--shard={shard}", nodes_option((one, two)))
            self.assertEqual(spread["answer"], alone["answer"], shard)
            self.assertEqual(len(spread["tokens_held"]), 2)
            for name, tokens in spread["tokens_held"].items():
                self.assertGreater(tokens, 0, f"{name} holds nothing ({shard})")

    def test_exact_logits_over_two_nodes_equal_the_workers_own(self):
        out, own, decoded = (self.path / name for name in ("eval.json", "own", "decoded"))
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            done = worker("eval", "--text", str(self.short), "--tokens=64", "--kv-dtype=f32",
                          "--estimators=exact", "--json", str(out), "--dump-logits", str(own),
                          "--dump-decoded", str(decoded), nodes_option((one, two)))
        self.assertEqual(done.returncode, 0, done.stderr)
        entry = json.loads(out.read_text())
        self.assertLess(entry["logit_error_max"], 1e-3)
        self.assertEqual(entry["top1_agreement"], 1.0)
        own, decoded = (array.array("f", path.read_bytes()) for path in (own, decoded))
        self.assertEqual(len(own), len(decoded))
        apart = max(abs(a - b) for a, b in zip(own, decoded))
        self.assertAlmostEqual(apart, entry["logit_error_max"], delta=1e-6)
        print(f"logit_error_max {entry['logit_error_max']:.2e}")

    def test_indexes_from_the_workers_signatures_give_the_same_bits(self):
        for shard in ("tokens", "kv-heads"):
            entries = []
            for made in ("false", "true"):
                out = self.path / f"eval_{shard}_{made}.json"
                options = (*OPTIONS, "--build=sync", "--index-tokens-min=1")
                with node_process.Node(NODE, *options) as one, \
                        node_process.Node(NODE, *options) as two:
                    done = worker("eval", "--text", str(self.brief), "--tokens=40",
                                  f"--shard={shard}", "--estimators",
                                  "lsh:k=6,l=40/1-2:exact/5:lsh:k=5,l=50,t=3",
                                  "--dense-layers=0", f"--worker-signatures={made}",
                                  "--json", str(out), nodes_option((one, two)))
                self.assertEqual(done.returncode, 0, done.stderr)
                entries.append(json.loads(out.read_text()))
            self.assertTrue(entries[0]["estimator_used"])
            self.assertLess(entries[0]["rows_share"], 0.9)
            for name in ("ppl", "kl_mean", "logit_error_max", "keys_read"):
                self.assertEqual(entries[0][name], entries[1][name], (shard, name))

    def test_int8_exact_over_two_nodes_is_the_workers_own_but_for_rounding(self):
        # Sums in another order may round the next layer's keys to the next int8: as in bf16, the
        # logits differ by more than f32 rounding, the distribution hardly.
        out = self.path / "eval_int8.json"
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            done = worker("eval", "--text", str(self.brief), "--tokens=64", "--kv-dtype=int8",
                          "--estimators=exact", "--json", str(out), nodes_option((one, two)))
        self.assertEqual(done.returncode, 0, done.stderr)
        entry = json.loads(out.read_text())
        self.assertLess(entry["kl_mean"], 1e-3)
        self.assertGreater(entry["top1_agreement"], 0.96)
        print(f"int8 KL {entry['kl_mean']:.2e}, logit_error_max {entry['logit_error_max']:.2e}")

    def test_last_node_killed_ends_the_request_within_two_seconds_and_with_an_error(self):
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            running = subprocess.Popen(
                [str(WORKER), "generate", "--model", MODEL, "--prompt-file", str(self.brief), "--raw",
                 "--max-tokens=2000", "--quiet", nodes_option((one, two))],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
            try:
                first = running.stdout.read(8)
                self.assertTrue(first, "no answer before the kill")
                for node in (two, one):
                    os.kill(node.process.pid, signal.SIGKILL)
                killed = time.monotonic()
                rest, errors = running.communicate(timeout=30)
                took = time.monotonic() - killed
            finally:
                if running.poll() is None:
                    running.kill()
                    running.communicate()
        text = errors.decode()
        self.assertNotEqual(running.returncode, 0, text)
        self.assertIn("n0", text, "the error names the node")
        self.assertLess(took, 2.0, text)
        alone = self.path / "alone.json"
        done = worker("generate", "--prompt-file", str(self.brief), "--raw", "--max-tokens=400",
                      "--quiet", "--json", str(alone))
        self.assertEqual(done.returncode, 0, done.stderr)
        whole = json.loads(alone.read_text())["answer"]
        partial = (first + rest).decode(errors="ignore").rstrip("\n")
        self.assertTrue(whole.startswith(partial) or partial.startswith(whole),
                        f"wrong text before the error: {partial!r}")

    def parts_after(self, end):
        """Runs a long answer, calls end(process) at its first bytes: (exit status, parts held)."""
        with node_process.Node(NODE, *OPTIONS) as node:
            running = subprocess.Popen(
                [str(WORKER), "generate", "--model", MODEL, "--prompt-file", str(self.brief), "--raw",
                 "--max-tokens=4000", "--quiet", nodes_option((node,))],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
            try:
                self.assertTrue(running.stdout.read(8), "no answer")
                end(running)
                running.wait(timeout=30)
            finally:
                running.kill()
                running.wait()
                running.stdout.close()
                running.stderr.close()
            listed = subprocess.run([str(CTL), "parts", "--node", node.address], timeout=30,
                                    capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        return running.returncode, listed.stdout.splitlines()[-1]

    def test_interrupted_answer_leaves_no_part_on_the_node(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            status, parts = self.parts_after(lambda running: running.send_signal(number))
            self.assertEqual((status, parts), (128 + number, "0 parts"))

    def test_reader_that_goes_away_leaves_no_part_on_the_node(self):
        status, parts = self.parts_after(lambda running: running.stdout.close())
        self.assertEqual((status, parts), (1, "0 parts"))

    def test_answer_that_cannot_fit_is_refused_before_anything_is_computed(self):
        with node_process.Node(NODE, "--memory-limit=144MiB", "--drain-timeout=5s") as node:
            done = worker("generate", "--prompt=Hello", "--max-tokens=8000", "--quiet",
                          nodes_option((node,)))
            listed = subprocess.run([str(CTL), "parts", "--node", node.address], timeout=30,
                                    capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("MEMORY", done.stderr)
        self.assertIn("n0", done.stderr)
        self.assertEqual(listed.stdout.splitlines()[-1], "0 parts", listed.stderr)

    def test_worker_with_a_certificate_is_answered_over_tls_and_one_without_is_not(self):
        subprocess.run([str(CERTIFICATES), str(self.path / "tls")], check=True, timeout=60)
        trust = (f"--tls-ca-file={self.path}/tls/ca.pem", "--tls-server-name=attn-node")

        def own(name):
            return (f"--tls-cert-file={self.path}/tls/{name}.pem",
                    f"--tls-key-file={self.path}/tls/{name}.key")
        ask = ("generate", "--prompt=Hello", "--max-tokens=2", "--quiet")
        with node_process.Node(NODE, *OPTIONS, *own("attn-node"),
                               f"--tls-ca-file={self.path}/tls/ca.pem") as node:
            done = worker(*ask, nodes_option((node,)), *trust, *own("gpu-worker"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip())
            done = worker(*ask, nodes_option((node,)), *trust, "--nodes-wait=3s")
            self.assertEqual(done.returncode, 1)
            self.assertIn("node n0 ", done.stderr)
        done = worker(*ask, "--nodes=lost=127.0.0.1:1", *own("gpu-worker"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("need --tls-ca-file", done.stderr)

    def test_no_node_at_the_address_is_a_clear_error(self):
        done = worker("generate", "--prompt=Hello", "--nodes=lost=127.0.0.1:1", "--nodes-wait=2s")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lost", done.stderr)

    def test_eval_attends_under_lsh_to_what_a_fresh_prefill_left(self):
        wanted = "lsh:k=8,l=75"
        text = self.path / "answered.txt"
        out = self.path / "eval.json"
        with node_process.Node(NODE, *OPTIONS) as node:
            fresh = self.generate(self.short, f"--estimator={wanted}", nodes_option((node,)))
            text.write_text(self.short.read_text() + fresh["answer"])
            # The same steps over the same tokens: behind one prefill that went on to the end of the
            # text, behind another estimator's steps, and on a sequence of another index.
            done = worker("eval", "--text", str(text), f"--tokens={fresh['steps']}", "--estimators",
                          f"exact,{wanted},lsh:k=6,l=30,{wanted}",
                          "--json", str(out), nodes_option((node,)))
        self.assertEqual(done.returncode, 0, done.stderr)
        entries = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual(len(entries), 4)
        self.assertTrue(fresh["estimator_used"])
        for entry in entries:
            self.assertEqual(entry["context"], fresh["prompt_tokens"] + fresh["generated_tokens"])
            self.assertEqual(entry["keys_held"], fresh["keys_held"], entry["estimator"])
            self.assertEqual(entry["keys_local"], fresh["keys_local"], entry["estimator"])
        for entry in (entry for entry in entries if entry["estimator"] == wanted):
            print(f"keys read {entry['keys_read']} of {entry['keys_held']}, "
                  f"fresh {fresh['keys_read']}; KL {entry['kl_mean']:.6f}")
            self.assertLess(abs(entry["keys_read"] / fresh["keys_read"] - 1), 0.002)
            self.assertLess(abs(entry["kl_mean"] / entries[1]["kl_mean"] - 1), 0.05)

    def test_eval_reads_of_one_sketch_index_what_each_budget_names(self):
        out = self.path / "eval.json"
        shares = {"sketch": 0.08, "sketch:share=0.2": 0.2, "sketch:bits=1,share=0.2": 0.2}
        options = (*OPTIONS, "--index-tokens-min=64")
        with node_process.Node(NODE, *options) as one, node_process.Node(NODE, *options) as two:
            done = worker("eval", "--text", str(self.short), "--tokens=64",
                          "--estimators", ",".join(shares), "--json", str(out),
                          nodes_option((one, two)))
        self.assertEqual(done.returncode, 0, done.stderr)
        entries = {}
        for line in out.read_text().splitlines():
            entry = json.loads(line)
            entries[entry["estimator"]] = entry
            print(f"{entry['estimator']}: KL {entry['kl_mean']:.4f}, rows {entry['rows_share']:.4f}")
        for text, share in shares.items():
            # The rows that came while decoding have no index yet and are all read.
            self.assertGreater(entries[text]["rows_share"], 0.9 * share)
            self.assertLess(entries[text]["rows_share"], 1.05 * share + 0.06)
        self.assertLess(entries["sketch:share=0.2"]["kl_mean"], entries["sketch"]["kl_mean"])

    def test_errors_reach_the_worker_and_answers_keep_to_a_target(self):
        out = self.path / "eval.json"
        options = (*OPTIONS, "--index-tokens-min=64", "--shadow-every=1")
        with node_process.Node(NODE, *options) as one, node_process.Node(NODE, *options) as two:
            done = worker("eval", "--text", str(self.short), "--tokens=16", "--compare",
                          "--estimators=sketch:share=0.2,sketch:error=0.2,exact",
                          "--metrics-file", str(self.path / "worker.prom"),
                          "--json", str(out), nodes_option((one, two)))
        self.assertEqual(done.returncode, 0, done.stderr)
        fixed, kept, exact = (json.loads(line) for line in out.read_text().splitlines())
        for entry in (fixed, kept):
            errors = entry["errors"]
            print(f"{entry['estimator']}: rows {entry['rows_share']:.4f}, error "
                  f"{entry['error_mean']:.4f} true, {errors['mean']:.4f} estimated, p95 "
                  f"{errors['p95']:.4f}; twice covers {entry['coverage']:.4f}")
            self.assertTrue(0 < errors["mean"] < errors["worst_mean"] < 1, errors)
            self.assertEqual(len(errors["layer_mean"]), len(errors["layer_p95"]))
            self.assertEqual(max(errors["layer_mean"]), errors["layer_mean"][errors["worst_layer"]])
            self.assertGreater(entry["coverage"], 0.95)
        print(f"within the target: {kept['within_target']:.4f}")
        self.assertGreaterEqual(kept["within_target"], 0.95)
        self.assertNotIn("errors", exact)
        self.assertIn("estimated relative error", done.stdout)
        series = dict(line.rsplit(" ", 1) for line in
                      (self.path / "worker.prom").read_text().splitlines() if line[0] != "#")
        # 16 steps of three estimators, exact with an error of 0.
        self.assertEqual(int(series["pigpen_worker_rel_err_count"]), 3 * 16 * 30 * 9)
        self.assertEqual(int(series['pigpen_worker_attends_flagged_total{flag="empty_sample"}']), 0)

    def test_lsh_perplexity_on_a_long_text_is_within_five_per_cent_of_exact(self):
        out = self.path / "eval.json"
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            done = worker("eval", "--text", str(TEXT), "--tokens=1024",
                          "--estimators=exact,lsh:k=10,l=150", "--json", str(out),
                          nodes_option((one, two)))
        self.assertEqual(done.returncode, 0, done.stderr)
        exact, lsh = (json.loads(line) for line in out.read_text().splitlines())
        print(f"perplexity exact {exact['ppl']:.4f}, lsh {lsh['ppl']:.4f}; "
              f"keys read {lsh['rows_share']:.4f}; KL {lsh['kl_mean']:.4f}")
        self.assertLess(abs(lsh["ppl"] / exact["ppl"] - 1), 0.05)
        self.assertLess(lsh["rows_share"], 0.3)
        self.assertGreater(lsh["rows_share"], 0.005)
        self.assertEqual(exact["rows_share"], 1.0)


if __name__ == "__main__":
    unittest.main()
