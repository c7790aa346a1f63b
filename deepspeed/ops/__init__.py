"""The ops. Importing this package imports none of them.

``__compatible_ops__`` maps each op's name to whether it can be used here.
"""

from __future__ import annotations

import importlib
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "op_builder").is_dir():
    # A checkout or an editable install: op_builder/ and csrc/ lie at the project's root. Searching
    # there needs no symbolic links, which break source archives.
    __path__.append(str(_HERE.parent.parent))


def _compatible_ops() -> dict[str, bool]:
    from .op_builder.all_ops import ALL_OPS
    from .op_builder.compatibility import check

    return {name: check(builder).ok for name, builder in ALL_OPS.items()}


def __getattr__(name: str) -> object:
    if name == "__compatible_ops__":
        return _compatible_ops()
    if name in ("adam", "adagrad", "lamb", "lion", "op_builder", "quantizer", "transformer"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
