"""Starts and stops attn-node for tests, with the standard library only. The node is ready when it
says so on stderr: nothing here sleeps and hopes."""
import os
import pathlib
import signal
import subprocess
import tempfile
import threading

READY_SECONDS = 60
STOP_SECONDS = 30


class Node:
    """One attn-node on a free port of loopback, or on a port and address that are named. prefix: what
    goes before the program, to run it elsewhere. `with Node(path) as node: node.address`."""

    def __init__(self, program, *options, prefix=(), host="127.0.0.1", port=0):
        self._folder = tempfile.TemporaryDirectory(prefix="pigpen-node-")
        folder = pathlib.Path(self._folder.name)
        self._port_file = folder / "port"
        self._admin_port_file = folder / "admin-port"
        self.lines = []
        self._said_ready = threading.Event()
        self._said = threading.Condition()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}
        if "PIGPEN_ISA" in os.environ:
            environment["PIGPEN_ISA"] = os.environ["PIGPEN_ISA"]
        self.process = subprocess.Popen(
            [*prefix, str(program), f"--listen={host}:{port}", "--admin-listen=127.0.0.1:0",
             f"--port-file={self._port_file}", f"--admin-port-file={self._admin_port_file}",
             *options],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._said_ready.wait(READY_SECONDS) or not self._port_file.exists():
            self.kill()
            raise RuntimeError("attn-node did not become ready:\n" + "".join(self.lines))
        self.port = int(self._port_file.read_text())
        self.admin_port = int(self._admin_port_file.read_text())
        self.address = f"{host}:{self.port}"

    def _read(self):
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()
            if "READY" in line:
                self._said_ready.set()
        self._said_ready.set()  # it ended: wake whoever waits

    def wait_for(self, text):
        """Until a line of its log has the text in it."""
        with self._said:
            if not self._said.wait_for(lambda: any(text in line for line in self.lines),
                                       READY_SECONDS):
                raise AssertionError(f"never said {text!r}:\n" + "".join(self.lines))

    def stop(self, number=signal.SIGTERM):
        """Sends the signal and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError("attn-node did not stop:\n" + "".join(self.lines)) from None
        self._close()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._close()

    def _close(self):
        self._reader.join()
        self.process.stderr.close()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill_if_alive()

    def kill_if_alive(self):
        if self.process.poll() is None:
            self.kill()
