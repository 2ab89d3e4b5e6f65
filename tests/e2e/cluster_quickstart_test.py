"""deploy/quickstart with built programs: its table, and that no process and no folder of it is left
when it is ended while it fetches, starts nodes, reads, answers or measures. PIGPEN_BUILD names the
build folder."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release"))
MODEL = os.environ.get("PIGPEN_MODEL",
                       str(ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
# What it has said when a phase has begun; of an answer, its first characters.
PHASES = {
    "nodes": r"4\. Nodes\n",
    "reading": r"prefill [1-9]",
    "answering": r"prefill 100%\n((store|index) \d+%\n)*(?!store|index|quickstart)[^\n]{8}",
    "measuring": r"6\. Agreement[^$]*prefill [1-9]",
}
SIGNALS = (  # as Ctrl-C sends it, to all of the terminal's group, and to the script alone
    (signal.SIGINT, lambda run: os.killpg(run.pid, signal.SIGINT)),
    (signal.SIGTERM, lambda run: run.send_signal(signal.SIGTERM)),
)


def processes_with(variable):
    """The processes that carry NAME=VALUE in their environment."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if variable in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                pass  # it ended, or is another user's
    return found


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pigpen-quickstart-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.text = self.folder / "text"
        self.text.write_text(TEXT.read_text()[:9000])
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}
        self.environment["TMPDIR"] = str(self.temporary)

    def start(self, *arguments, script=ROOT / "deploy" / "quickstart"):
        return subprocess.Popen([str(script), "--programs", str(BUILD), *arguments],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=self.environment,
                                start_new_session=True)

    def end_at(self, pattern, send, *arguments, **options):
        """Ends it when it has said the pattern: (exit status, all it said)."""
        running = self.start(*arguments, **options)
        said = ""
        try:
            while not re.search(pattern, said):
                more = os.read(running.stdout.fileno(), 4096)
                self.assertTrue(more, f"it never said {pattern}: {said}")
                said += more.decode(errors="replace")
            send(running)
            # It ends when no process of it has the pipe any more.
            said += running.stdout.read().decode(errors="replace")
            return running.wait(timeout=60), said
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            running.stdout.close()

    def check_nothing_is_left(self, number, status, said):
        self.assertEqual(status, 128 + number, said)
        self.assertIn("quickstart: interrupted", said)
        self.assertEqual(processes_with(f"TMPDIR={self.temporary}".encode()), [])
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_a_run_ends_with_a_table_and_leaves_nothing(self):
        summary = self.folder / "summary.json"
        running = self.start("--model", MODEL, "--text", str(self.text), "--max-tokens", "8",
                             "--nodes", "1", "--json", str(summary))
        said = running.communicate(timeout=500)[0].decode(errors="replace")
        self.assertEqual(running.returncode, 0, said)
        self.assertRegex(said, r"(?m)^  share of held keys read +\d+\.\d %  sketch, a query head$")
        for estimator in ("exact", "sketch", "lsh"):
            self.assertRegex(said, rf"(?m)^  {estimator} +\d+\.\d % +\d+\.\d % ")
        report = json.loads(summary.read_text())
        self.assertTrue(0 < report["rows_share_q_head"] <= report["rows_share"] < 0.3, report)
        self.assertEqual((report["estimator"], report["estimator_used"]), ("sketch", True))
        self.assertEqual(list(self.temporary.iterdir()), [])
        self.assertEqual(processes_with(f"TMPDIR={self.temporary}".encode()), [])

    def test_a_text_too_short_for_an_index_leaves_the_row_out(self):
        self.text.write_text(TEXT.read_text()[:3000])
        running = self.start("--model", MODEL, "--text", str(self.text), "--max-tokens", "8",
                             "--nodes", "2")
        said = running.communicate(timeout=500)[0].decode(errors="replace")
        self.assertEqual(running.returncode, 0, said)
        for estimator in ("sketch", "lsh"):
            self.assertRegex(said, rf"(?m)^  {estimator} +left out: no node held 1,024 tokens of this")
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_an_end_in_any_phase_leaves_nothing(self):
        for phase, pattern in PHASES.items():
            for number, send in SIGNALS:
                with self.subTest(phase=phase, signal=number.name):
                    status, said = self.end_at(pattern, send, "--model", MODEL, "--text",
                                               str(self.text), "--max-tokens", "400")
                    self.check_nothing_is_left(number, status, said)

    def test_an_end_while_a_node_is_asked_leaves_nothing(self):
        # A node that serves nothing, and an asker that gets no answer.
        programs = self.folder / "programs"
        asked = self.folder / "asked"
        for name, script in (
                ("gpu-worker/gpu-worker", "exit 1"),
                ("attn-node/attn-node", 'echo 1 >"$6"; sleep 100'),
                ("deploy/ctl/pigpenctl", f"touch {asked}; sleep 100")):
            program = programs / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        for number, send in SIGNALS:
            with self.subTest(signal=number.name):
                asked.unlink(missing_ok=True)

                def send_when_asked(running, send=send):
                    while not asked.exists():
                        time.sleep(0.01)
                    send(running)
                status, said = self.end_at(PHASES["nodes"], send_when_asked, "--programs",
                                           str(programs), "--model", MODEL)
                self.check_nothing_is_left(number, status, said)

    def test_an_end_in_the_download_leaves_nothing(self):
        # A tree of its own, without a model, and an index that takes connections and is silent.
        deploy = self.folder / "tree" / "deploy"
        deploy.mkdir(parents=True)
        for name in ("quickstart", "fetch-model"):
            (deploy / name).write_text((ROOT / "deploy" / name).read_text())
            (deploy / name).chmod(0o755)
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        self.environment["PIP_INDEX_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        self.environment["no_proxy"] = "127.0.0.1"
        for number, send in SIGNALS:
            with self.subTest(signal=number.name):
                status, said = self.end_at(r"fetching", send, script=deploy / "quickstart")
                self.check_nothing_is_left(number, status, said)
                cache = self.folder / "tree" / ".cache"
                self.assertEqual(sorted(path.name for path in cache.iterdir()), ["models", "pip"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
