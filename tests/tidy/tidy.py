#!/usr/bin/env python3
"""The house rules as a test: layers, includes, lengths, names, dead files, banned calls, headers
that compile alone, documents that name only what exists. The layer table is read from
ARCHITECTURE.md. Prints one line a fault, ends with the number of checks.

usage: tests/tidy/tidy.py [check ...]      all checks by default
"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
CODE_FOLDERS = ("common", "attn-node", "gpu-worker", "deploy/ctl", "tests", "bench")
PREFIXES = {"common": "pp_", "attn-node": "an_", "gpu-worker": "gw_"}
BANNED_CALLS = ("gets", "strcpy", "strcat", "sprintf", "vsprintf", "strtok", "atoi", "atol", "atof",
                "alloca", "longjmp", "system", "tmpnam", "mktemp", "rand", "srand",
                "asctime", "ctime", "gmtime", "localtime")
INTRINSIC_HEADERS = ("immintrin.h", "nmmintrin.h", "x86intrin.h", "emmintrin.h")
ISA_FILE = re.compile(r"_(scalar|sse42|vpclmul|avx2|avx512|avx512bf16)(_\w+)?\.(c|h)$")
# Text that one file an instruction set compiles: C, never seen by nvcc.
KERNEL_TEXT = re.compile(r"_(lanes|vector)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\n")
    return [name for name in out if name and (ROOT / name).is_file()]


FILES = tracked()
SOURCES = [f for f in FILES if f.endswith((".c", ".h", ".cu", ".cuh")) and f.startswith(CODE_FOLDERS)]
PRODUCT = [f for f in SOURCES if not f.startswith(("tests", "bench"))]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def without_comments(text):
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*',
                  lambda m: m.group(0) if m.group(0).startswith('"') else blank(m), text, flags=re.S)


def layer_table():
    """Rows `| layer | folder | may include |` of ARCHITECTURE.md, as folder -> allowed folders."""
    table = {}
    for line in text_of("ARCHITECTURE.md").splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not re.fullmatch(r"\d+", cells[0]):
            continue
        folder = cells[1].strip("`")
        table[folder] = [c.strip("` ") for c in cells[2].split(",") if c.strip("` ")]
    return table


def folder_of(name, table):
    best = ""
    for folder in table:
        if (name == folder or name.startswith(folder + "/")) and len(folder) > len(best):
            best = folder
    return best


def check_layers():
    table = layer_table()
    if len(table) < 15:
        yield "ARCHITECTURE.md: the layer table was not found"
        return
    for name in PRODUCT:
        own = folder_of(name, table)
        if not own:
            yield f"{name}: its folder is in no row of the layer table"
            continue
        for kind, path in INCLUDE.findall(text_of(name)):
            if kind == "<":
                continue
            if path.endswith(".pb-c.h"):
                if "proto" not in table[own]:
                    yield f"{name}: {own} may not include generated protos"
                continue
            if not (ROOT / path).is_file():
                yield f"{name}: include \"{path}\" is no path from the root"
                continue
            other = folder_of(path, table)
            if other != own and other not in table[own]:
                yield f"{name}: {own} may not include {other} ({path})"


def check_includes():
    for name in SOURCES:
        found = [path for _, path in INCLUDE.findall(text_of(name))]
        for path in found:
            if path.startswith(("grpc/grpc", "grpc/byte", "grpc/impl", "grpc/slice", "grpc/support",
                                "grpc/status")) and not name.startswith("common/rpc/"):
                yield f"{name}: gRPC headers stand in common/rpc only"
            if re.match(r"(cuda|cublas)", path) and not name.startswith("gpu-worker/device/cuda"):
                yield f"{name}: CUDA headers stand in gpu-worker/device/cuda only"
            if path in INTRINSIC_HEADERS and not ISA_FILE.search(name) and \
                    not name.startswith(("bench/", "tests/")):
                yield f"{name}: intrinsics stand in files named for their instruction set only"
        own = name[:-2] + ".h"
        if name.endswith(".c") and own in FILES and found and found[0] != own:
            yield f"{name}: its own header comes first"


def check_lengths():
    for name in SOURCES:
        lines = text_of(name).split("\n")
        if len(lines) - 1 > FILE_LINES_MAX:
            yield f"{name}: {len(lines) - 1} lines (at most {FILE_LINES_MAX})"
        start = None
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_LENGTH_MAX:
                yield f"{name}:{number}: {len(line)} columns (at most {LINE_LENGTH_MAX})"
            if line == "{":
                start = number
            elif line == "}" and start is not None:
                if number - start - 1 > FUNCTION_LINES_MAX:
                    yield f"{name}:{start}: a function of {number - start - 1} lines " \
                          f"(at most {FUNCTION_LINES_MAX})"
                start = None


def check_names():
    public = re.compile(r"^(?!static|typedef|struct \w+ \{|enum \w+ \{|#|\s|/)[\w\s\*]+?\b(\w+)\(", re.M)
    for name in PRODUCT:
        if not name.endswith(".h") or name.startswith("deploy"):
            continue
        prefix = PREFIXES[name.split("/")[0]]
        text = without_comments(text_of(name))
        for function in public.findall(text):
            if function.startswith("__") or function.isupper():
                continue
            if not function.startswith(prefix):
                yield f"{name}: {function} should start with {prefix}"
    for name in SOURCES:
        text = without_comments(text_of(name))
        if re.search(r"\btypedef\s+struct\b", text):
            yield f"{name}: no struct typedefs"
        if not re.fullmatch(r"[a-z0-9_]+\.(c|h|cu|cuh)", Path(name).name):
            yield f"{name}: file names are lower case with underscores"


def check_banned():
    call = re.compile(r"(?<![\w.>])(" + "|".join(BANNED_CALLS) + r")\s*\(")
    for name in SOURCES:
        text = without_comments(text_of(name))
        for match in call.finditer(text):
            if match.group(1) == "system" and name not in PRODUCT:
                continue  # tests and benches make their certificates with openssl
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match.group(1)} is banned"


def check_ifdefs():
    for name in PRODUCT:
        inside = False
        for number, line in enumerate(text_of(name).split("\n"), 1):
            if line == "{":
                inside = True
            elif line == "}":
                inside = False
            elif inside and re.match(r"\s*#\s*(if|ifdef|ifndef|else|elif)\b", line):
                yield f"{name}:{number}: no conditional compilation inside functions"


def check_openings():
    for name in SOURCES:
        if not text_of(name).lstrip().startswith(("/*", "//")):
            yield f"{name}: opens with a comment that says what it is"


def check_dead_files():
    """Every header is included by somebody; every source lies where CMake globs."""
    included = set()
    for name in SOURCES:
        included.update(path for _, path in INCLUDE.findall(text_of(name)))
    for name in SOURCES:
        if name.endswith(".h") and name not in included:
            yield f"{name}: nobody includes it"
        if name.endswith(".c") and name in PRODUCT and \
                not (ROOT / name).parent.joinpath("CMakeLists.txt").is_file():
            yield f"{name}: no CMakeLists.txt beside it builds it"


def check_headers_alone():
    build = Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release"))
    flags = subprocess.run(["pkg-config", "--cflags", "grpc", "libprotobuf-c", "jansson"],
                           capture_output=True, text=True, check=True).stdout.split()
    base = ["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fsyntax-only",
            f"-I{ROOT}", f"-I{build}/proto", *flags]
    headers = [f for f in PRODUCT if f.endswith(".h") and
               not ISA_FILE.search(f) and not KERNEL_TEXT.search(f)]

    def compile_alone(header):
        faults = []
        for language, compiler, extra in (("c", "clang", ["-std=c17"]),
                                          ("c++", "clang++", ["-std=c++17", "-Wno-c99-extensions",
                                                              "-Wno-unknown-attributes"])):
            done = subprocess.run([compiler, *extra, "-x", language, *base, "-include", header,
                                   "/dev/null"], cwd=ROOT, capture_output=True, text=True)
            if done.returncode != 0:
                faults.append(f"{header}: does not compile alone as {language}: "
                              f"{done.stderr.strip().splitlines()[0]}")
        return faults
    with ThreadPoolExecutor(2) as pool:
        for faults in pool.map(compile_alone, headers):
            yield from faults


def check_format():
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *SOURCES], cwd=ROOT,
                          capture_output=True, text=True)
    bad = sorted({line.split(":")[0] for line in done.stderr.splitlines() if ": error:" in line})
    for name in bad:
        yield f"{name}: not formatted (clang-format -i {name})"


def check_documents():
    for document in ("ARCHITECTURE.md", "README.md", "STYLE.md"):
        for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text_of(document)):
            target = path.rstrip("/")
            if target.startswith(("/", "build", ".cache", "http", "~")):
                continue
            if not (ROOT / target).exists():
                yield f"{document}: names {path}, which is not there"


CHECKS = {name[6:]: function for name, function in sorted(globals().items())
          if name.startswith("check_")}


def main():
    names = sys.argv[1:] or list(CHECKS)
    faults = 0
    for name in names:
        if name not in CHECKS:
            sys.exit(f"tidy: no check '{name}'; there are: {' '.join(CHECKS)}")
        found = list(CHECKS[name]())
        for fault in found:
            print(f"{name}: {fault}")
        faults += len(found)
    print(f"tidy: {len(names)} checks, {faults} faults, {len(SOURCES)} source files")
    sys.exit(1 if faults else 0)


main()
