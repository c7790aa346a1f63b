"""The environment a package is being installed into, seen from inside pip's isolated build.

pip runs an isolated build with the target environment's interpreter but hides its packages. The
ops are compiled against the torch that is there, so it has to be found again.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from .environment import build_flags_in_force
from .errors import ToolchainError
from .process import ask
from .torch_install import TorchInstall, find_torch, read_torch

#: What pip sets to hide the environment from an isolated build.
_HIDING = frozenset({"PYTHONPATH", "PYTHONNOUSERSITE"})


def _interpreters() -> list[str]:
    """Those of the environment being installed into: pip's is ours, else the activated one."""
    root = os.environ.get("VIRTUAL_ENV")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not root or not Path(root, "lib", version).is_dir():
        return [sys.executable]
    return [sys.executable, str(Path(root, "bin", "python"))]


def _path_of(interpreter: str) -> list[str]:
    """``sys.path`` of ``interpreter`` as its user has it, without an isolated build's."""
    environ = {k: v for k, v in os.environ.items() if k not in _HIDING}
    program = "import json, sys; print(json.dumps(sys.path))"
    done = ask([interpreter, "-c", program], timeout=30, env=environ, cwd="/")
    return json.loads(done.stdout) if done.returncode == 0 else []


def _target_path() -> list[str]:
    return [path for interpreter in _interpreters() for path in _path_of(interpreter) if path]


def make_importable() -> None:
    """Let this build import what the environment being installed into holds."""
    # Appended: what the build environment brings itself keeps its precedence.
    sys.path += [folder for folder in _target_path() if folder not in sys.path]


def find_target_torch() -> TorchInstall | None:
    """The torch of the environment being installed into, if there is one; imports nothing."""
    torch = find_torch()
    if torch is None:
        spec = PathFinder.find_spec("torch", _target_path())
        torch = read_torch(Path(spec.origin).parent) if spec and spec.origin else None
    return torch


def require_torch() -> TorchInstall:
    """The torch of the environment being installed into, made importable for this build.

    Raises:
        ToolchainError: none is found; the message has the command that works.
    """
    if find_torch() is None:
        make_importable()
    torch = find_torch()
    if torch is not None:
        return torch
    flags = " ".join(f"{k}={shlex.quote(v)}" for k, v in build_flags_in_force().items())
    pip = "uv pip" if "UV" in os.environ else "pip"  # uv tells its builds where it lies
    raise ToolchainError(
        "Pre-compiling ops needs torch, and none is installed in the environment being installed "
        "into (an isolated build of uv or of `python -m build` hides it).",
        f"Run `{pip} install 'torch>=2.10' ninja packaging filelock 'setuptools>=77'`, then "
        f"`{flags} {pip} install --no-build-isolation .`, or unset the DS_BUILD_* flags to build "
        f"on first use.",
    )
