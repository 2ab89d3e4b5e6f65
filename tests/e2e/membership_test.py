"""Nodes that register in etcd and workers that find them there, or in a file: an etcd that goes away
stops nobody, a node that stops leaves the list, and of two with one name the second says why it waits.
PIGPEN_BUILD names the build folder."""
import base64
import contextlib
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from programs import ENVIRONMENT, MODEL, NODE, TEXT, WORKER, node_process

OPTIONS = ("--memory-limit=512MiB", "--drain-timeout=5s")
LIMIT_S = 60


class Etcd:
    """A member of its own, in a folder under /tmp, on a port that was free a moment ago."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="pigpen_etcd.")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self.start()
        return self

    def start(self):
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", self.folder + "/data",
             "--listen-client-urls", f"http://{self.endpoint}",
             "--advertise-client-urls", f"http://{self.endpoint}",
             "--listen-peer-urls", "http://127.0.0.1:0",
             "--heartbeat-interval=10", "--election-timeout=100"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def until(condition, what):
    """Asks again until it is so; the limit is for failures only."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


def readiness(node):
    """(ready, what it says of itself)."""
    url = f"http://127.0.0.1:{node.admin_port}/readyz?verbose"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()


class MembershipTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.text = self.path / "text.txt"
        self.text.write_text(TEXT.read_text()[:1500])

    def node(self, stack, etcd, name, *extra):
        return stack.enter_context(node_process.Node(
            NODE, *OPTIONS, f"--node-name={name}", f"--register=etcd:{etcd.endpoint}/pigpen/nodes",
            "--register-lease=3s", *extra))

    def generate(self, nodes):
        """Names that hold tokens after a short answer; None: it failed, with what was said."""
        out = self.path / "run.json"
        out.unlink(missing_ok=True)
        done = subprocess.run(
            [str(WORKER), "generate", "--model", MODEL, "--raw", "--max-tokens=4", "--quiet",
             "--prompt-file", str(self.text), "--estimator=exact", f"--nodes={nodes}", "--json",
             str(out)], timeout=300, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env=ENVIRONMENT)
        self.said = done.stderr
        if done.returncode != 0:
            return None
        return {name for name, held in json.loads(out.read_text())["tokens_held"].items() if held}

    def registered(self, etcd, names):
        """Waits until a worker would be given exactly these names."""
        def listed():
            return self.keys(etcd) == {f"/pigpen/nodes/{name}" for name in names}
        until(listed, f"registered: {names}")

    def keys(self, etcd):
        """By etcd's own JSON gateway: nothing of ours takes part."""
        body = json.dumps({"key": "L3BpZ3Blbi8=", "range_end": "L3BpZ3BlbjA="}).encode()
        try:
            with urllib.request.urlopen(f"http://{etcd.endpoint}/v3/kv/range", body,
                                        timeout=10) as answer:
                found = json.loads(answer.read()).get("kvs", [])
        except OSError:
            return None
        return {base64.b64decode(kv["key"]).decode() for kv in found}

    def test_worker_finds_the_nodes_that_registered_and_a_stopped_one_leaves(self):
        with Etcd() as etcd, contextlib.ExitStack() as stack:
            self.node(stack, etcd, "a")
            b = self.node(stack, etcd, "b")
            self.registered(etcd, ("a", "b"))
            source = f"etcd:{etcd.endpoint}/pigpen/nodes"
            self.assertEqual(self.generate(source), {"a", "b"}, self.said)
            self.assertEqual(b.stop(), 0)
            self.registered(etcd, ("a",))
            self.assertEqual(self.generate(source), {"a"}, self.said)

    def test_etcd_that_goes_away_stops_no_node_and_finds_them_again(self):
        with Etcd() as etcd, contextlib.ExitStack() as stack:
            a = self.node(stack, etcd, "a")
            self.registered(etcd, ("a",))
            etcd.kill()
            # The lease of 3 s ends meanwhile; the data plane goes on.
            a.wait_for("the lease ended")
            self.assertTrue(readiness(a)[0])
            self.assertEqual(self.generate(f"a={a.address}"), {"a"}, self.said)
            etcd.start()
            until(lambda: "/pigpen/nodes/a" in (self.keys(etcd) or ()), "registered again")
            self.assertEqual(self.generate(f"etcd:{etcd.endpoint}/pigpen/nodes"), {"a"}, self.said)

    def test_of_two_nodes_with_one_name_the_second_is_not_ready_and_takes_over(self):
        with Etcd() as etcd, contextlib.ExitStack() as stack:
            first = self.node(stack, etcd, "a")
            self.registered(etcd, ("a",))
            second = self.node(stack, etcd, "a")
            said = until(lambda: [text for ready, text in [readiness(second)] if not ready],
                         "the second is not ready")[0]
            self.assertIn(f"a is registered as {first.address}", said)
            self.assertTrue(readiness(first)[0])
            first.kill()  # it says nothing: its entry stands until its lease ends
            until(lambda: readiness(second)[0], "the second is ready")
            self.assertEqual(self.generate(f"etcd:{etcd.endpoint}/pigpen/nodes"), {"a"}, self.said)

    def test_worker_reads_its_nodes_from_a_file_and_names_a_line_that_is_wrong(self):
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            nodes = self.path / "nodes"
            nodes.write_text(f"# ours\na={one.address}\nb={two.address}\n")
            self.assertEqual(self.generate(f"file:{nodes}"), {"a", "b"}, self.said)
            self.assertEqual(self.generate(f"dns:127.0.0.1:{one.address.split(':')[1]}"),
                             {one.address}, self.said)
            nodes.write_text(f"a={one.address}\nb=here\n")
            done = subprocess.run(
                [str(WORKER), "generate", "--model", MODEL, "--prompt=x", "--nodes-wait=100ms",
                 f"--nodes=file:{nodes}"], timeout=300, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, env=ENVIRONMENT)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("line 2: 'b=here'", done.stderr)

    def test_eval_takes_a_node_that_joins_its_list_and_goes_on_there(self):
        with node_process.Node(NODE, *OPTIONS) as one, node_process.Node(NODE, *OPTIONS) as two:
            nodes = self.path / "nodes"
            nodes.write_text(f"a={one.address}\n")
            running = subprocess.Popen(
                [str(WORKER), "eval", "--model", MODEL, "--text", str(self.text), "--tokens=250",
                 "--estimators=" + ",".join(8 * ["exact"]), f"--nodes=file:{nodes}",
                 "--log-level=info"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
            said = []

            def wait_for(words):
                for line in running.stderr:
                    said.append(line)
                    if words in line:
                        return
                self.fail(f"never said {words!r}:\n" + "".join(said))
            try:
                wait_for("prefill")
                nodes.write_text("")  # cut: whoever was there stays
                wait_for("names no node")
                nodes.write_text(f"a={one.address}\nb={two.address}\n")
                wait_for("node in use node=b")
                one.kill()
                wait_for("sequence goes on")
                running.send_signal(signal.SIGINT)
                running.wait(timeout=LIMIT_S)
            finally:
                running.kill()
                running.wait()
                running.stderr.close()
            self.assertEqual(running.returncode, 128 + signal.SIGINT, "".join(said))


if __name__ == "__main__":
    unittest.main()
