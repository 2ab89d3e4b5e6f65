"""The life of a node from the outside: start, health, self test, drain, kill, start again; what it
says when an option is wrong. PIGPEN_BUILD names the build folder."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402

BUILD = pathlib.Path(os.environ.get("PIGPEN_BUILD", HERE.parents[1] / "build" / "release"))
NODE = BUILD / "attn-node" / "attn-node"
CTL = BUILD / "deploy" / "ctl" / "pigpenctl"
CERTIFICATES = HERE.parents[1] / "deploy" / "certificates"
OPTIONS = ("--memory-limit=1GiB", "--drain-timeout=10s")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}


def ctl(*arguments):
    return subprocess.run([str(CTL), *arguments], capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT)


def node(*arguments):
    return subprocess.run([str(NODE), *arguments], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, env=ENVIRONMENT)


def http(started, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{started.admin_port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class LifecycleTest(unittest.TestCase):
    def test_node_serves_and_ends_cleanly_on_sigterm(self):
        with node_process.Node(NODE, *OPTIONS) as started:
            health = ctl("health", "--node", started.address)
            self.assertEqual((health.returncode, health.stdout), (0, "SERVING\n"), health.stderr)
            unknown = ctl("health", "--node", started.address, "--service", "nothing")
            self.assertEqual(unknown.returncode, 4, unknown.stderr)
            tested = ctl("selftest", "--node", started.address, "--json")
            self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)
            self.assertTrue(json.loads(tested.stdout)["ok"])
            info = json.loads(ctl("info", "--node", started.address, "--json").stdout)
            self.assertEqual(info["state"], "SERVING")
            self.assertEqual(info["memory_limit_bytes"], 1 << 30)
            parts = json.loads(ctl("parts", "--node", started.address, "--json").stdout)
            self.assertEqual(parts["parts_total"], 0)
            stats = json.loads(ctl("stats", "--node", started.address, "--json").stdout)
            self.assertEqual(stats["counters"]["pigpen_node_ready"], 1)
            self.assertEqual(stats["counters"]["pigpen_node_draining"], 0)
            for command in ("info", "parts", "stats", "selftest"):
                table = ctl(command, "--node", started.address)
                self.assertEqual(table.returncode, 0, table.stderr)
                self.assertTrue(table.stdout.strip())
            self.assertEqual(started.stop(signal.SIGTERM), 0, "".join(started.lines))
            text = "".join(started.lines)
            self.assertIn("boot", text)
            self.assertNotIn("ERROR", text.upper().replace("ERROR=", ""))

    def test_admin_port_answers(self):
        with node_process.Node(NODE, *OPTIONS) as started:
            self.assertEqual(http(started, "/livez")[0], 200)
            code, checks = http(started, "/readyz?verbose")
            self.assertEqual(code, 200, checks)
            self.assertIn("[+] service", checks)
            code, metrics = http(started, "/metrics")
            self.assertEqual(code, 200)
            self.assertRegex(metrics, r"(?m)^pigpen_node_build_info\{.*\} 1$")
            self.assertRegex(metrics, r"(?m)^pigpen_node_ready 1$")
            self.assertRegex(metrics, r"(?m)^pigpen_node_memory_limit_bytes [1-9]\d+$")
            self.assertRegex(metrics, r"(?m)^pigpen_node_parts 0$")
            code, config = http(started, "/config")
            self.assertIn("1GiB", config)
            self.assertEqual(started.stop(signal.SIGINT), 0)

    def test_killed_node_comes_back_with_another_incarnation(self):
        seen = set()
        for _ in range(2):
            with node_process.Node(NODE, *OPTIONS) as started:
                info = ctl("info", "--node", started.address, "--json")
                seen.add(json.loads(info.stdout)["incarnation"])
                address = started.address
                self.assertEqual(started.stop(signal.SIGKILL), -signal.SIGKILL)
            gone = ctl("health", "--node", address, "--timeout", "2s")
            self.assertEqual(gone.returncode, 3, gone.stdout + gone.stderr)
            self.assertIn("check --node", gone.stderr)
        self.assertEqual(len(seen), 2)

    def test_sighup_reads_the_log_level_again_and_a_bad_file_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "node.yaml"
            config.write_text("log-level: info\n")
            with node_process.Node(NODE, f"--config={config}", *OPTIONS) as started:
                config.write_text("log-level: loud\n")
                started.process.send_signal(signal.SIGHUP)
                started.wait_for("nothing reloaded")
                config.write_text("log-level: warn\n")
                started.process.send_signal(signal.SIGHUP)
                started.wait_for("log_level=warn")
                health = ctl("health", "--node", started.address)
                self.assertEqual(health.stdout, "SERVING\n", health.stderr)
                self.assertEqual(started.stop(), 0)
                self.assertNotIn("draining", "".join(started.lines), "is below warn")

    def test_taken_port_is_a_clear_error(self):
        with node_process.Node(NODE, *OPTIONS) as started:
            second = node(f"--listen={started.address}", "--admin-listen=", *OPTIONS)
            self.assertEqual(second.returncode, 1, second.stderr)
            self.assertIn(started.address, second.stderr)
            self.assertEqual(started.stop(), 0)

    def test_wrong_options_say_what_to_do(self):
        open_door = node("--listen=0.0.0.0:0")
        self.assertEqual(open_door.returncode, 2)
        self.assertIn("--insecure", open_door.stderr)
        small = node("--memory-limit=16MiB", "--listen=127.0.0.1:0", "--admin-listen=")
        self.assertEqual(small.returncode, 1)
        self.assertIn("too small", small.stderr)
        unknown = node("--memory-limmit=1GiB")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("memory-limit", unknown.stderr)
        for wrong in ("127.0.0.1:99999", "127.0.0.1", ""):
            address = node(f"--listen={wrong}")
            self.assertEqual(address.returncode, 2, wrong)
            self.assertIn("no address", address.stderr)
        half = node("--tls-cert-file=/nothing")
        self.assertEqual(half.returncode, 2)
        self.assertIn("--tls-key-file", half.stderr)

    def test_sealing_options_out_of_bounds_say_what_is_right(self):
        for option, wrong in (("--seal-tokens", ("0", "65473", "4294968320", "-1", "1.5", "")),
                              ("--index-tokens-min", ("0", "65473", "4294968320", "-1", "x"))):
            for value in wrong:
                refused = node(f"{option}={value}", "--listen=127.0.0.1:0", "--admin-listen=")
                self.assertEqual(refused.returncode, 2, (option, value))
                self.assertIn(f'{option}: "{value}"', refused.stderr)
                self.assertIn("at least 1, at most 65472", refused.stderr)
        for pair in (("--seal-tokens=512",), ("--index-tokens-min=1025",),
                     ("--seal-tokens=64", "--index-tokens-min=65")):
            refused = node(*pair, "--listen=127.0.0.1:0", "--admin-listen=")
            self.assertEqual(refused.returncode, 2, pair)
            self.assertIn("above --seal-tokens", refused.stderr)

    def test_self_test_passes_at_the_bounds_of_the_sealing_options(self):
        for pair in (("--seal-tokens=1", "--index-tokens-min=1"),
                     ("--seal-tokens=65472", "--index-tokens-min=65472")):
            with node_process.Node(NODE, *OPTIONS, *pair) as started:
                tested = ctl("selftest", "--node", started.address)
                self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)
                self.assertEqual(started.stop(), 0)

    def test_help_names_every_option_and_config_is_printed(self):
        shown = node("--help")
        self.assertEqual(shown.returncode, 0)
        printed = node("--print-config")
        self.assertEqual(printed.returncode, 0)
        names = [line.split(" ")[0] for line in printed.stdout.splitlines() if " = " in line]
        self.assertGreater(len(names), 15)
        for name in names:
            self.assertIn("--" + name.replace("_", "-"), shown.stdout)

    def test_tls_node_answers_only_to_its_authority(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([str(CERTIFICATES), folder], check=True, timeout=60)
            def path(name):
                return os.path.join(folder, name)
            with node_process.Node(NODE, *OPTIONS, f"--tls-cert-file={path('attn-node.pem')}",
                                   f"--tls-key-file={path('attn-node.key')}",
                                   f"--tls-ca-file={path('ca.pem')}") as started:
                ask = ("health", "--node", started.address, "--timeout=3s")
                trusted = (f"--tls-ca-file={path('ca.pem')}", )
                own = (f"--tls-cert-file={path('attn-node.pem')}", f"--tls-key-file={path('attn-node.key')}")
                self.assertEqual(ctl(*ask, *trusted, *own).returncode, 0)
                self.assertEqual(ctl(*ask).returncode, 3)  # plain text
                unused = ctl(*ask, *own)  # would be plain text too, with a certificate given
                self.assertEqual(unused.returncode, 2)
                self.assertIn("--tls-ca-file", unused.stderr)
                self.assertEqual(ctl(*ask, *trusted).returncode, 3)  # no certificate of its own
                self.assertEqual(started.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
