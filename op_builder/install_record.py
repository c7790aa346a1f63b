"""The file an installer leaves behind: what it built, what it skipped and why.

It is a Python module of plain assignments, ``deepspeed/git_version_info_installed.py``, because
DeepSpeed's users import it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from .process import ask
from .torch_install import TorchInstall
from .version import SourceVersion

FILE_NAME = "git_version_info_installed.py"

_ASK_NCCL = "import torch.cuda.nccl; print('.'.join(map(str, torch.cuda.nccl.version())))"


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """What is written."""

    source: SourceVersion
    torch_info: dict[str, object]
    installed_ops: dict[str, bool] = field(default_factory=dict)
    compatible_ops: dict[str, bool] = field(default_factory=dict)
    skipped_ops: dict[str, str] = field(default_factory=dict)
    op_architectures: dict[str, list[str]] = field(default_factory=dict)
    build_flags: dict[str, str] = field(default_factory=dict)

    def to_python(self) -> str:
        """The module's text."""
        values = {
            "version": self.source.version,
            "git_hash": self.source.git_hash,
            "git_branch": self.source.git_branch,
            "installed_ops": self.installed_ops,
            "compatible_ops": self.compatible_ops,
            "skipped_ops": self.skipped_ops,
            "op_architectures": self.op_architectures,
            "build_flags": self.build_flags,
            "torch_info": self.torch_info,
        }
        lines = [f"{name} = {value!r}" for name, value in values.items()]
        return '"""Written by the installer; read by git_version_info.py."""\n\n' + (
            "\n".join(lines) + "\n"
        )


def describe_torch(torch: TorchInstall | None) -> dict[str, object]:
    """``torch_info`` for the torch the ops are compiled with; zeros without one.

    bfloat16 is decided from the CUDA version: an installer must not ask a GPU.
    """
    if torch is None:
        nothing = dict.fromkeys(("version", "cuda_version", "hip_version", "nccl_version"), "0.0")
        return {**nothing, "bf16_support": False}
    cuda = torch.cuda or "0.0"
    return {
        "version": ".".join(map(str, torch.release)),
        "cuda_version": ".".join(cuda.split(".")[:2]),
        "hip_version": torch.hip or "0.0",
        "nccl_version": _nccl_version(torch),
        "bf16_support": int(cuda.split(".")[0]) >= 11,
    }


def _nccl_version(torch: TorchInstall) -> str:
    if torch.cuda is None:
        return "0.0"
    environ = {**os.environ, "PYTHONPATH": str(torch.root.parent)}
    done = ask([sys.executable, "-c", _ASK_NCCL], timeout=60, env=environ)
    return done.stdout.strip() or "0.0"
