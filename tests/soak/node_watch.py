"""What a node's process takes, as /proc and GetStats tell, and waiting for it to come to rest."""
import pathlib
import threading
import time

from node_client import admin

REST_SECONDS = 60
PART_BYTES = tuple(f'pigpen_node_memory_used_bytes{{kind="{kind}"}}'
                   for kind in ("kv", "tail", "index", "scratch"))


class Watch:
    def __init__(self, node, client):
        """Before the node has met a part."""
        self.proc = pathlib.Path(f"/proc/{node.process.pid}")
        self.client = client
        self.empty = self.held()  # some scratch is there from the start

    def stats(self):
        answer = self.client.admin.GetStats(admin.GetStatsRequest(), timeout=60)
        return {counter.name: counter.value for counter in answer.counters}

    def status(self, field):
        for line in (self.proc / "status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise KeyError(field)

    def resident_mib(self):
        return self.status("VmRSS") / 1024

    def threads(self):
        return self.status("Threads")

    def files(self):
        return len(list((self.proc / "fd").iterdir()))

    def wait(self, what, condition, seconds=REST_SECONDS):
        """Until condition() is true; it is asked again and again, an assertion at the end."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}; parts and bytes: "
                                     f"{self.held()}, files: {self.files()}")
            threading.Event().wait(0.05)

    def held(self):
        stats = self.stats()
        names = ("pigpen_node_parts", "pigpen_node_tokens_held", *PART_BYTES)
        return {name: stats[name] for name in names}

    def at_rest(self):
        return self.held() == self.empty


def slope(values):
    """Of the straight line through them, a step."""
    n = len(values)
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    return (sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) /
            sum((x - mean_x) ** 2 for x in range(n)))
