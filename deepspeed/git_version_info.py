"""What was installed: version, commit, prebuilt ops, and the torch they were built with.

Reads ``git_version_info_installed.py``, which the installer writes. In a checkout that was never
installed, or with a damaged record, it says what can be said without one.
"""

from __future__ import annotations

from pathlib import Path

_UNKNOWN_TORCH = {
    "version": "0.0",
    "cuda_version": "0.0",
    "hip_version": "0.0",
    "nccl_version": "0.0",
    "bf16_support": False,
}


def _checkout_version() -> str:
    try:
        return (Path(__file__).parent.parent / "version.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return "0+unknown"


def _record() -> dict[str, object]:
    """The install record; empty if there is none or it is damaged."""
    try:
        from . import git_version_info_installed as installed
    except Exception:  # a damaged file raises anything, SyntaxError and ValueError among them
        return {}
    return {name: getattr(installed, name) for name in dir(installed) if not name.startswith("_")}


def _of_type(name: str, default: object) -> object:
    value = _installed.get(name, default)
    return value if isinstance(value, type(default)) else default


_installed = _record()

version: str = _of_type("version", _checkout_version())
git_hash: str = _of_type("git_hash", "unknown")
git_branch: str = _of_type("git_branch", "unknown")
#: Op name → whether a binary of it was built while installing.
installed_ops: dict[str, bool] = _of_type("installed_ops", {})
#: Op name → whether it was compatible with the machine that installed it.
compatible_ops: dict[str, bool] = _of_type("compatible_ops", {})
#: Op name → why it was not built while installing.
skipped_ops: dict[str, str] = _of_type("skipped_ops", {})
#: Op name → GPU architectures its binary was built for; empty for a CPU op.
op_architectures: dict[str, list[str]] = _of_type("op_architectures", {})
#: The DS_* variables in force while installing.
build_flags: dict[str, str] = _of_type("build_flags", {})
#: The torch the prebuilt ops were compiled with; "0.0" where none were.
torch_info: dict[str, object] = {**_UNKNOWN_TORCH, **_of_type("torch_info", {})}
