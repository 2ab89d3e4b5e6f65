"""A worker that answers one prompt, watched while it runs: what it says and the bytes of its answer are
events to wait for."""
import json
import subprocess
import threading
import time

from programs import ENVIRONMENT, MODEL, TEXT, WORKER

TOKENS = 120
SAID_SECONDS = 60


class Answer:
    """One prompt, answered while nodes come to harm. nodes: those that run, or what --nodes takes; none:
    the worker alone. prefix: what goes before the program, to run it elsewhere."""

    def __init__(self, folder, nodes, *options, tokens=TOKENS, prompt_bytes=3000, prefix=()):
        prompt, self.json = folder / "prompt.txt", folder / "run.json"
        prompt.write_text(TEXT.read_text()[:prompt_bytes])
        self.json.unlink(missing_ok=True)
        if not isinstance(nodes, str):
            nodes = ",".join(f"n{i}={node.address}" for i, node in enumerate(nodes))
        # f32: no rounding of K/V on which the likeliest token might turn.
        self.process = subprocess.Popen(
            [*prefix, str(WORKER), "generate", "--model", MODEL, "--prompt-file", str(prompt), "--raw",
             f"--max-tokens={tokens}", "--kv-dtype=f32", "--json", str(self.json), *options,
             *([f"--nodes={nodes}"] if nodes else [])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env=ENVIRONMENT)
        self.lines, self.text = [], b""
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.decode())
                self._said.notify_all()

    def errors(self):
        return "".join(self.lines)

    def wait_for(self, text, after=0):
        """Until a line of stderr behind the first `after` has the text in it; lines by then."""
        with self._said:
            if not self._said.wait_for(lambda: any(text in line for line in self.lines[after:]),
                                       SAID_SECONDS):
                raise AssertionError(f"never said {text!r}:\n" + self.errors())
            return len(self.lines)

    def after(self, count):
        """Waits for so many bytes of the answer."""
        read = self.process.stdout.read(count)
        self.text += read
        if len(read) != count:
            raise AssertionError("the answer ended early:\n" + self.errors())

    def arrivals(self):
        """When each piece of the answer came, a token's text each, in seconds."""
        while piece := self.process.stdout.read1():
            self.text += piece
            yield time.monotonic()

    def finish(self):
        """Exit status and what was measured."""
        self.text += self.process.stdout.read()
        status = self.process.wait(timeout=120)
        self._reader.join()
        return status, json.loads(self.json.read_text().splitlines()[-1]) if status == 0 else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
