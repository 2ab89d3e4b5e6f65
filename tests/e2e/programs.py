"""What tests of whole programs share: where the built ones lie (PIGPEN_BUILD names the build folder),
the model and the text they are run on, and node_process, which starts nodes."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import node_process  # noqa: E402, F401

ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("PIGPEN_BUILD", ROOT / "build" / "release"))
NODE = BUILD / "attn-node" / "attn-node"
WORKER = BUILD / "gpu-worker" / "gpu-worker"
CTL = BUILD / "deploy" / "ctl" / "pigpenctl"
MODEL = os.environ.get("PIGPEN_MODEL",
                       str(ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PIGPEN_")}
