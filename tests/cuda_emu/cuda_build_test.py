"""What a build with nvcc's kernels must have: code for every architecture in the program, nothing
spilled, and a comparison of declarations with the toolkit's headers that finds each one that is wrong.
PIGPEN_BUILD, PIGPEN_CUDA_INCLUDE and PIGPEN_CUDA_ARCHITECTURES come from the build."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import cuda_resources  # noqa: E402

BUILD = Path(os.environ["PIGPEN_BUILD"])
ARCHITECTURES = [int(arch) for arch in os.environ["PIGPEN_CUDA_ARCHITECTURES"].split()]
CUDA = Path("gpu-worker/device/cuda")
ROW = re.compile(r"X\((\w+), (\w+),[\s\\]+\(([^()]*)\)\)")


def compiles(changed):
    """Whether prototypes.c does, with other text in place of some of its headers: {name: text}."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CUDA).mkdir(parents=True)
        for name, text in changed.items():
            (Path(folder) / CUDA / name).write_text(text)
        done = subprocess.run(
            ["clang", "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{folder}",
             f"-I{ROOT}", "-isystem", os.environ["PIGPEN_CUDA_INCLUDE"],
             str(ROOT / CUDA / "prototypes.c")], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


class CudaBuildTest(unittest.TestCase):
    def test_the_program_has_code_for_every_architecture(self):
        wanted = {f"sm_{arch}" for arch in ARCHITECTURES} | {f"compute_{ARCHITECTURES[-1]}"}
        images = cuda_resources.images(BUILD / "gpu-worker" / "gpu-worker")
        self.assertEqual(len(images), len(list((ROOT / CUDA).glob("*.cu"))))
        for kinds in images:
            self.assertEqual(kinds, wanted)

    def test_no_kernel_spills_on_any_architecture(self):
        kernels = cuda_resources.read(BUILD / "cuda")
        self.assertGreater(len(kernels), 40)
        for name, own in kernels.items():
            self.assertEqual(sorted(own), ARCHITECTURES, name)
            for registers, spilled in own.values():
                self.assertGreater(registers, 0, name)
                self.assertEqual(spilled, 0, name)

    def test_a_wrong_declaration_or_constant_does_not_compile(self):
        good, said = compiles({})
        self.assertTrue(good, said)
        functions = 0
        for name in ("driver.h", "cublaslt.h"):
            text = (ROOT / CUDA / name).read_text()
            for row in ROW.finditer(text):
                functions += 1
                more = text[:row.end(3)] + ", double more" + text[row.end(3):]
                good, _ = compiles({name: more})
                self.assertFalse(good, f"{row[2]} may have an argument more")
        self.assertGreater(functions, 40)

    def test_a_wrong_type_of_the_same_size_does_not_compile(self):
        for name, right, wrong in (("driver.h", "size_t bytes))", "long long bytes))"),
                                   ("driver.h", "const void *image", "const char *image"),
                                   ("cublaslt.h", "gw_cublaslt_layout b_layout",
                                    "gw_cublaslt_product b_layout"),
                                   ("cublaslt.h", "uint64_t rows", "int64_t rows"),
                                   ("cublaslt.h", "GW_CUBLASLT_COMPUTE_F32       68u",
                                    "GW_CUBLASLT_COMPUTE_F32       69u"),
                                   ("driver.h", "GW_CUDA_NOT_READY       600u",
                                    "GW_CUDA_NOT_READY       601u")):
            text = (ROOT / CUDA / name).read_text()
            self.assertIn(right, text)
            good, _ = compiles({name: text.replace(right, wrong, 1)})
            self.assertFalse(good, wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
