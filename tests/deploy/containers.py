"""The image and deploy/compose.yaml for real: builds with deploy/image, starts three nodes and a
worker with podman-compose, kills a node under a running answer, and takes everything down again.
Needs podman, root (where no Debian image can be fetched) and PIGPEN_MODEL; run by tests/run --long.
podman of Debian 12 neither runs health checks by itself nor waits for them: this does, by asking."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGE = "localhost/pigpen:test"
PROJECT = f"pigpen-test-{os.getpid()}"
NODES = ("node_1", "node_2", "node_3")
TEXT = "/usr/share/common-licenses/Artistic"
# f32: no rounding of K/V on which the likeliest token might turn.
LONG_ANSWER = {"PIGPEN_PROMPT": "Count from one to one thousand, one number a line.",
               "PIGPEN_MAX_TOKENS": "400", "PIGPEN_ESTIMATOR": "exact", "PIGPEN_KV_DTYPE": "f32"}
PATIENCE_SECONDS = 300
IMAGE_BYTES_MAX = 220 << 20
ENVIRONMENT = dict(os.environ, PIGPEN_IMAGE=IMAGE, PIGPEN_PROMPT_FILE=TEXT)


def run(*command, check=True, timeout=PATIENCE_SECONDS, **settings):
    done = subprocess.run(command, cwd=ROOT, timeout=timeout, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**ENVIRONMENT, **settings})
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n"
                             f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def podman(*arguments, **keywords):
    return run("podman", *arguments, **keywords)


def compose(*arguments, **keywords):
    return run(sys.executable, "-m", "podman_compose", "-p", PROJECT, "-f", "deploy/compose.yaml",
               *arguments, **keywords)


WORKER = "worker_1"


def container(name):
    return f"{PROJECT}_{name}"


def inspect(name, form):
    return podman("inspect", "-f", form, name).stdout.strip()


def until(what, condition):
    """Asks again and again; every question runs a program, which is pause enough."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
    raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what}")


def healthy(node):
    return podman("healthcheck", "run", container(node), check=False).returncode == 0


def attends(node):
    """Attends that the node has answered since its start."""
    done = podman("exec", container(node), "pigpenctl", "stats", "--json", check=False)
    if done.returncode != 0:
        return 0
    counters = json.loads(done.stdout)["counters"]
    return counters['pigpen_node_rpc_requests_total{method="AttendStream",code="OK"}']


def attending(node):
    """Whether the node has attended for the worker, which must still run."""
    if inspect(container(WORKER), "{{.State.Running}}") != "true":
        raise AssertionError("the worker ended: " + podman("logs", container(WORKER)).stderr)
    return attends(node) > 0


def use_limits_of_this_machine():
    """Where control groups are of version 1, Debian's podman cannot run containers as it comes: crun
    does not know the mixed hierarchy, and the default limits may exceed ours."""
    if pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return
    with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
        file.write('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
                   '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n')
    unittest.addModuleCleanup(os.unlink, file.name)
    ENVIRONMENT["CONTAINERS_CONF"] = file.name


def setUpModule():
    use_limits_of_this_machine()
    run("deploy/image", "--engine", "podman", "--tag", IMAGE, timeout=3600)
    podman("run", "--rm", IMAGE, "attn-node", "--version")


class ImageTest(unittest.TestCase):
    def test_image_is_small_unprivileged_labelled_and_knows_its_health(self):
        facts = json.loads(podman("image", "inspect", IMAGE).stdout)[0]
        config = facts["Config"]
        self.assertEqual(config["User"], "65532:65532")
        self.assertEqual(config["Entrypoint"], ["tini", "--"])
        self.assertEqual(config["Cmd"], ["attn-node"])
        self.assertEqual(facts["Healthcheck"]["Test"], ["CMD", "pigpenctl", "health"])
        self.assertEqual(config["Labels"]["org.opencontainers.image.title"], "pigpen")
        version = podman("run", "--rm", IMAGE, "attn-node", "--version").stdout
        for label in ("version", "revision"):
            self.assertIn(config["Labels"][f"org.opencontainers.image.{label}"], version)
        print(f"image: {facts['Size'] / 1e6:.0f} MB")
        self.assertLess(facts["Size"], IMAGE_BYTES_MAX)

    def test_image_holds_no_package_for_building(self):
        listed = podman("run", "--rm", IMAGE, "dpkg-query", "-W", "-f", "${Package}\\n").stdout.split()
        wanted = run("deploy/install-build-deps", "--list", "build").stdout.split()
        self.assertIn("libgrpc29", listed)
        self.assertEqual(set(listed) & set(wanted), set())

    def test_node_that_others_could_reach_does_not_start_without_tls(self):
        done = podman("run", "--rm", IMAGE, "attn-node", "--listen=0.0.0.0:7450", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--insecure", done.stderr)

    def test_stopped_node_ends_by_itself_and_with_zero(self):
        name = f"{PROJECT}-stop"
        podman("run", "-d", "--name", name, IMAGE)
        self.addCleanup(podman, "rm", "-f", name)
        until("the node serves", lambda: podman("exec", name, "pigpenctl", "health",
                                                check=False).returncode == 0)
        podman("stop", "-t", "60", name)
        self.assertEqual(inspect(name, "{{.State.ExitCode}}"), "0")
        self.assertIn("stopped status=OK", podman("logs", name).stderr)


class ComposeTest(unittest.TestCase):
    def up(self, **settings):
        self.addCleanup(self.down, **settings)
        compose("up", "-d", **settings)

    def down(self, **settings):
        compose("down", "-v", **settings)
        for kind in (("ps", "-a"), ("network", "ls"), ("pod", "ps"), ("volume", "ls")):
            left = podman(*kind, "-q", "--filter", f"label=io.podman.compose.project={PROJECT}")
            self.assertEqual(left.stdout, "", kind)

    def end_of_worker(self):
        status = int(podman("wait", container(WORKER)).stdout)
        logs = podman("logs", container(WORKER))
        return status, logs.stdout, logs.stderr

    def test_three_nodes_become_healthy_and_the_answer_uses_all_of_them(self):
        self.up(PIGPEN_MAX_TOKENS="16")
        for node in NODES:
            until(f"{node} is healthy", lambda node=node: healthy(node))
            self.assertEqual(inspect(container(node), "{{.HostConfig.Memory}}"), str(1 << 30))
        status, answer, figures = self.end_of_worker()
        self.assertEqual(status, 0, figures)
        self.assertTrue(answer.strip())
        counts = [attends(node) for node in NODES]
        print(f"answer {answer.strip()!r}; attends answered {counts}")
        self.assertGreater(counts[0], 0)
        self.assertEqual(len(set(counts)), 1, counts)
        for node in NODES:
            parts = podman("exec", container(node), "pigpenctl", "parts").stdout
            self.assertEqual(parts, "0 parts\n", "the worker has closed what it opened")

    def test_a_killed_node_costs_the_answer_nothing_but_time(self):
        self.up(**LONG_ANSWER)
        status, undisturbed, figures = self.end_of_worker()
        self.assertEqual(status, 0, figures)
        podman("rm", container(WORKER))
        before = attends(NODES[1])
        compose("up", "-d", "--no-recreate", **LONG_ANSWER)
        until("node_2 attends again", lambda: attending(NODES[1]) and attends(NODES[1]) > before)
        podman("kill", "--signal", "KILL", container(NODES[1]))
        status, answer, errors = self.end_of_worker()
        self.assertEqual(status, 0, errors)
        print(next(line for line in errors.splitlines() if "sequence goes on" in line))
        self.assertEqual(answer, undisturbed, errors)
        for node in (NODES[0], NODES[2]):
            self.assertTrue(healthy(node), node)

    def test_a_larger_set_is_used_whole(self):
        self.up(PIGPEN_MAX_TOKENS="4", PIGPEN_NODES="4")
        status, _, figures = self.end_of_worker()
        self.assertEqual(status, 0, figures)
        for node in (*NODES, "node_4"):
            self.assertGreater(attends(node), 0, node)

    def test_stopped_worker_ends_by_the_signal_and_leaves_nothing_on_the_nodes(self):
        self.up(**LONG_ANSWER)
        until("node_3 attends", lambda: attending(NODES[2]))
        podman("stop", "-t", "60", container(WORKER))
        self.assertEqual(inspect(container(WORKER), "{{.State.ExitCode}}"), "143")
        for node in NODES:
            parts = podman("exec", container(node), "pigpenctl", "parts").stdout
            self.assertEqual(parts, "0 parts\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
