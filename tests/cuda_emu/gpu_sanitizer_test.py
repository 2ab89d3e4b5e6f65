"""The kernels' tests under each tool of compute-sanitizer: memory, races in shared memory, memory that was
never written, and barriers. Skipped, loudly, without a GPU or without compute-sanitizer."""
import os
import shutil
import subprocess
import sys

import gpu_here

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
KERNELS = ("operations", "draw", "attend", "keys")
FOUND = 9  # what compute-sanitizer ends with when it found something


def sanitizer():
    """The program, on PATH or beside nvcc; None: there is none."""
    beside = os.path.join(os.path.dirname(os.environ.get("PIGPEN_NVCC", "")), "compute-sanitizer")
    return shutil.which("compute-sanitizer") or shutil.which(beside)


def main():
    gpu_here.want_gpu()
    program = sanitizer()
    if program is None:
        gpu_here.skip("compute-sanitizer is not installed")
    failed = []
    for tool in TOOLS:
        for name in KERNELS:
            test = gpu_here.TESTS / f"gpu_{name}_test"
            done = subprocess.run([program, f"--tool={tool}", f"--error-exitcode={FOUND}", str(test)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            print(f"{tool} of {name}: {'clean' if done.returncode == 0 else done.stdout}", flush=True)
            failed += [(tool, name)] if done.returncode != 0 else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
