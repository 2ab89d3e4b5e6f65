"""Ends a test as skipped, loudly, where there is no GPU. PIGPEN_BUILD names the build folder."""
import os
import subprocess
import sys
from pathlib import Path

BUILD = Path(os.environ["PIGPEN_BUILD"])
TESTS = BUILD / "tests" / "cuda_emu"
SKIPPED = 77


def skip(why):
    print(f"SKIPPED, no test of this program ran: {why}", flush=True)
    sys.exit(SKIPPED)


def want_gpu():
    """Whether there is one is what the tests of kernels find."""
    probe = subprocess.run([str(TESTS / "gpu_draw_test")], capture_output=True, text=True, check=False)
    if probe.returncode == SKIPPED:
        skip(probe.stdout.partition("ran: ")[2].strip())
