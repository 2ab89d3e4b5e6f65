#!/usr/bin/env python3
"""What ptxas says of each kernel of a build with PIGPEN_CUDA: registers a thread and bytes spilled
to local memory, by architecture, and how many warps of it a processor's 65,536 registers hold.
Shared memory is given at launch (gpu-worker/device/cuda/*.c), so ptxas knows none.

usage: bench/cuda_resources.py [build/cuda]
"""
import re
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(?:gw_gpu_)?(\w+)' for 'sm_(\d+)'")
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def read(folder):
    """{kernel: {architecture: [registers, bytes spilled]}}"""
    kernels = {}
    for path in sorted(folder.glob("*.ptxas")):
        own = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := ENTRY.search(line):
                own = kernels.setdefault(found[1], {}).setdefault(int(found[2]), [0, 0])
            elif own is not None and (found := SPILLED.search(line)):
                own[1] = int(found[1]) + int(found[2])
            elif own is not None and (found := USED.search(line)):
                own[0] = int(found[1])
    return kernels


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/cuda")
    kernels = read(build / "cuda")
    if not kernels:
        sys.exit(f"{build}/cuda has no *.ptxas: build the preset cuda first")
    architectures = sorted({arch for own in kernels.values() for arch in own})
    print("kernel".ljust(28) + "".join(f"sm_{arch}".rjust(8) for arch in architectures) +
          "  spilled  warps")
    for name, own in kernels.items():
        registers = [own[arch][0] for arch in architectures]
        spilled = sum(own[arch][1] for arch in architectures)
        warps = min(64, 65536 // (32 * ((max(registers) + 7) // 8 * 8)))
        print(name.ljust(28) + "".join(str(count).rjust(8) for count in registers) +
              str(spilled).rjust(9) + str(warps).rjust(7))
    total = sum(own[arch][1] for own in kernels.values() for arch in own)
    print(f"{len(kernels)} kernels for {', '.join(f'sm_{arch}' for arch in architectures)}, "
          f"{total} bytes spilled")


main()
