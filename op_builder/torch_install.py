"""Which torch this environment holds, read from its files, without importing it.

Importing torch takes seconds and can touch a GPU; an installer and a report must do neither.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolchainError

#: The oldest torch whose stable ABI our ops use.
STABLE_ABI_FLOOR = (2, 10)


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """A torch package on disk: its folder and what its ``version.py`` says."""

    root: Path
    version: str
    cuda: str | None
    hip: str | None

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        from packaging.version import Version

        parsed = Version(self.version)
        return parsed.major, parsed.minor

    @property
    def include_dir(self) -> Path:
        return self.root / "include"

    @property
    def library_dir(self) -> Path:
        return self.root / "lib"


def read_torch(root: Path) -> TorchInstall | None:
    """The torch whose package folder is ``root``; None if there is no readable one."""
    try:
        tree = ast.parse((root / "version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                values[target.id] = value.value
    version = values.get("__version__")
    if not isinstance(version, str):
        return None
    cuda, hip = (v if isinstance(v, str) else None for v in (values.get("cuda"), values.get("hip")))
    return TorchInstall(root, version, cuda, hip)


def find_torch() -> TorchInstall | None:
    """The torch this interpreter imports; None when there is none."""
    try:
        module = sys.modules.get("torch")
        spec = module.__spec__ if module else importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    return read_torch(Path(spec.origin).parent)


def require_stable_abi(torch: TorchInstall | None) -> TorchInstall:
    """``torch`` itself, if an op on the stable ABI runs with it.

    Raises:
        ToolchainError: there is no torch, it is older than the floor, or it is a ROCm build.
    """
    floor = ".".join(map(str, STABLE_ABI_FLOOR))
    if torch is None:
        raise ToolchainError(
            "torch is not installed in this environment.",
            f"Install it first: `{sys.executable} -m pip install 'torch>={floor}'`.",
        )
    if torch.release < STABLE_ABI_FLOOR:
        raise ToolchainError(
            f"torch {torch.version} is older than {floor}, the oldest this op runs with.",
            f"Upgrade it: `{sys.executable} -m pip install 'torch>={floor}'`.",
        )
    if torch.hip:
        raise ToolchainError(
            f"torch {torch.version} is a ROCm build (HIP {torch.hip}), which is not supported.",
            "Install a CPU or CUDA build of torch.",
        )
    return torch
