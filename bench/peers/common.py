"""What the peer benches share: the report line (machine, isa, threads, commit as the C benches write
them), medians, and one run of our own attend_bench."""
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build" / "release"


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def commit():
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    return said.stdout.strip() or "unknown"


def median(values):
    return statistics.median(values) if values else 0.0


def report(fields, threads, isa, path):
    """Prints one JSON object and appends it to path ("": no file)."""
    line = json.dumps({**fields, "machine": cpu_model(), "isa": isa, "threads": threads,
                       "commit": commit()})
    print(line, flush=True)
    if path:
        with open(path, "a", encoding="utf-8") as out:
            out.write(line + "\n")


def isa(build):
    """The instruction set that our programs choose here."""
    return attend_bench(build, ["--estimator=exact", "--tokens=1024", "--seconds=0.01"])["isa"]


def attend_bench(build, arguments):
    """One run of attend_bench; its report as a dict."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([str(Path(build) / "bench" / "attend_bench"), *arguments,
                        f"--json={out.name}"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text(encoding="utf-8").splitlines()[-1])
