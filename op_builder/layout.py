"""Where this project's files lie: in a checkout, an editable install or an installed wheel.

``op_builder/`` and ``csrc/`` are siblings in all three: at the root of a checkout, inside
``deepspeed/ops/`` once installed. So nothing has to be configured, linked or copied.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_HERE = Path(__file__).resolve().parent

#: The folder relative op sources and include paths start from.
PROJECT_ROOT = _HERE.parent


def locate(path: str) -> Path:
    """The absolute path of a source or include folder an op declares."""
    return Path(path) if Path(path).is_absolute() else PROJECT_ROOT / path


def _package_dir(package: str) -> Path | None:
    """The folder of a top-level package, without importing it."""
    if package == "deepspeed":
        installed = _HERE.parent.name == "ops" and _HERE.parent.parent.name == "deepspeed"
        return _HERE.parent.parent if installed else PROJECT_ROOT / "deepspeed"
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def prebuilt_candidates(absolute_name: str) -> list[Path]:
    """Existing binaries for the dotted module name ``absolute_name``, stable-ABI names first."""
    if "." not in absolute_name:
        return []
    package, *middle, stem = absolute_name.split(".")
    folder = _package_dir(package)
    if folder is None:
        return []
    folder = folder.joinpath(*middle)
    stable = folder / f"{stem}.abi3.so"
    others = sorted(p for p in folder.glob(f"{stem}.*so") if p != stable)
    return ([stable] if stable.is_file() else []) + others
