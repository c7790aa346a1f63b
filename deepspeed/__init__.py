"""DeepSpeed's ops: hand-written C++/CUDA kernels, and the build system that gets them onto any
machine. Importing it compiles nothing, starts no process and touches no GPU.

The training engine is not part of this distribution; its names raise one sentence saying so.
"""

from __future__ import annotations

from .engine_names import DeepSpeedEngine, DeepSpeedOptimizer, absent
from .git_version_info import git_branch as __git_branch__
from .git_version_info import git_hash as __git_hash__
from .git_version_info import version as __version__

__all__ = ["DeepSpeedEngine", "DeepSpeedOptimizer", "__git_branch__", "__git_hash__", "__version__"]


def __getattr__(name: str) -> object:
    if name in ("ops", "env_report"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise absent(f"deepspeed.{name}", name)
