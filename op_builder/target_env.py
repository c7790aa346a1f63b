"""The environment a package is being installed into, seen from inside pip's isolated build.

pip runs an isolated build with the target environment's interpreter but hides its packages. The
ops are compiled against the torch that is there, so it has to be found again.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from .environment import build_flags_in_force
from .errors import ToolchainError
from .process import ask
from .torch_install import TorchInstall, find_torch


def _real_path_of_interpreter() -> list[str]:
    """``sys.path`` of this interpreter as its user has it, without an isolated build's."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    program = "import json, sys; print(json.dumps(sys.path))"
    done = ask([sys.executable, "-c", program], timeout=30, env=environ, cwd="/")
    return json.loads(done.stdout) if done.returncode == 0 else []


def _virtual_env_path() -> list[str]:
    root = os.environ.get("VIRTUAL_ENV")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [str(Path(root, "lib", version, "site-packages"))] if root else []


def make_importable() -> None:
    """Let this build import what the environment being installed into holds."""
    for folder in (*_real_path_of_interpreter(), *_virtual_env_path()):
        if folder and folder not in sys.path:
            # Appended: what the build environment brings itself keeps its precedence.
            sys.path.append(folder)


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
    raise ToolchainError(
        "Pre-compiling ops needs torch, and none is installed in the environment being installed "
        "into (an isolated build of uv or of `python -m build` hides it).",
        f"Run `pip install 'torch>=2.10' ninja packaging filelock setuptools`, then `{flags} pip "
        f"install --no-build-isolation .`, or unset the DS_BUILD_* flags to build on first use.",
    )
