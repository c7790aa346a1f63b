"""A child forked after CUDA was initialized can't use CUDA, but it can build and load ops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """\
import json, os, sys, torch
torch.ones(1, device="cuda").sum().item()
from deepspeed.ops.op_builder import FusedAdamBuilder
from deepspeed.ops.op_builder.gpus import visible_capabilities
answers = [visible_capabilities()]
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    op = FusedAdamBuilder().load()
    answer = {"capabilities": visible_capabilities(), "op": type(op).__name__}
    try:
        tensors = [torch.zeros(4, device="cuda") for _ in range(4)]
        op.adam_step(*([t] for t in tensors), 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, True)
    except RuntimeError as error:
        answer["error"] = str(error)
    os.write(write, json.dumps(answer).encode())
    os._exit(0)
os.close(write)
answer = json.loads(os.read(read, 65536))
assert os.waitpid(pid, 0)[1] == 0
print(json.dumps({"parent": visible_capabilities(), **answer}))
"""


def test_a_child_forked_after_cuda_was_initialized_builds_and_loads(tmp_path: Path):
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    environ.pop("TORCH_CUDA_ARCH_LIST", None)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["capabilities"] == answer["parent"] != []
    assert answer["op"] == "FusedAdamOp"
    # torch's own sentence, before any of our code could touch the GPU.
    assert "re-initialize CUDA in forked subprocess" in answer["error"]
