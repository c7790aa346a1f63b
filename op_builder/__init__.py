"""How ops are described, checked, compiled and loaded. Runs without torch installed.

Every builder class is an attribute of this package, found by reflection on first use, so that
importing it reads no op file, starts no program and touches no GPU.
"""

from __future__ import annotations

import importlib

from .builder import OpBuilder, TorchCPUOpBuilder
from .cuda_builder import CUDAOpBuilder
from .errors import OpBuilderError

__all__ = ["ALL_OPS", "CUDAOpBuilder", "OpBuilder", "OpBuilderError", "TorchCPUOpBuilder"]


def __getattr__(name: str) -> object:
    if name == "ALL_OPS" or name.endswith("Builder"):
        all_ops = importlib.import_module(".all_ops", __name__)
        if name == "ALL_OPS":
            return all_ops.ALL_OPS
        if name in all_ops.BUILDERS:
            return all_ops.BUILDERS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    all_ops = importlib.import_module(".all_ops", __name__)
    return sorted({*globals(), *__all__, *all_ops.BUILDERS})
