#!/usr/bin/env python3
"""What ptxas says of each kernel of a build with PIGPEN_CUDA: registers a thread and bytes spilled
to local memory, by architecture, how many warps of it a processor's 65,536 registers hold, and the
shared bytes of a block. Those are given at launch (gpu-worker/device/cuda/*.c): they are the most that
tests on the emulated GPU asked for, where these wrote them down (PIGPEN_EMU_SHARED). Then what code the
images in gpu-worker are.

usage: bench/cuda_resources.py [build/cuda [shared bytes, a line a kernel]]
"""
import re
import struct
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


IMAGE = struct.Struct("<IHHQ")  # magic, version, bytes of this, bytes of the parts behind it
PART = struct.Struct("<HHIQ")  # kind, unused, bytes of the head that this begins, bytes behind that
PART_ARCHITECTURE = 28
PTX, CODE = 1, 2


def images(program):
    """Of each image of kernels in a program the kinds of code: {"sm_80", "compute_90", ...}."""
    found, data = [], Path(program).read_bytes()
    at = data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        _, version, head, size = IMAGE.unpack_from(data, at)
        part, end, kinds = at + head, at + head + size, set()
        while version == 1 and part < end <= len(data):
            kind, _, part_head, part_size = PART.unpack_from(data, part)
            architecture, = struct.unpack_from("<I", data, part + PART_ARCHITECTURE)
            kinds.add(f"{'sm' if kind == CODE else 'compute'}_{architecture}")
            part += part_head + part_size
        if kinds:
            found.append(kinds)
        at = data.find(b"\x50\xed\x55\xba", at + 4)
    return found


def shared_bytes(path):
    """{kernel: most bytes}"""
    most = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, count = line.split()
        name = name.removeprefix("gw_gpu_")
        most[name] = max(most.get(name, 0), int(count))
    return most


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/cuda")
    kernels = read(build / "cuda")
    if not kernels:
        sys.exit(f"{build}/cuda has no *.ptxas: build the preset cuda first")
    architectures = sorted({arch for own in kernels.values() for arch in own})
    shared = shared_bytes(sys.argv[2]) if len(sys.argv) > 2 else {}
    print("kernel".ljust(28) + "".join(f"sm_{arch}".rjust(8) for arch in architectures) +
          "  spilled  warps   shared")
    for name, own in kernels.items():
        registers = [own[arch][0] for arch in architectures]
        spilled = sum(own[arch][1] for arch in architectures)
        warps = min(64, 65536 // (32 * ((max(registers) + 7) // 8 * 8)))
        print(name.ljust(28) + "".join(str(count).rjust(8) for count in registers) +
              str(spilled).rjust(9) + str(warps).rjust(7) + str(shared.get(name, "-")).rjust(9))
    total = sum(own[arch][1] for own in kernels.values() for arch in own)
    print(f"{len(kernels)} kernels for {', '.join(f'sm_{arch}' for arch in architectures)}, "
          f"{total} bytes spilled")
    found = images(build / "gpu-worker" / "gpu-worker")
    for kinds in sorted({tuple(sorted(kinds)) for kinds in found}):
        print(f"gpu-worker: {sum(set(kinds) == own for own in found)} images with {', '.join(kinds)}")


if __name__ == "__main__":
    main()
