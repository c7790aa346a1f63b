"""Every environment variable this package reads, one function each, read at the call.

The table of all of them is docs/environment.md. Nothing here knows what the values are used for.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .errors import ConfigurationError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def switch(name: str) -> bool | None:
    """The on/off variable ``name``: True, False, or None when unset or empty.

    Raises:
        ConfigurationError: the value is none of 0/1/true/false/yes/no/on/off.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ConfigurationError(
        f"{name}={value!r} is neither on nor off.",
        f"Use one of 0/1/true/false/yes/no/on/off, or unset it: `unset {name}`.",
    )


def words(name: str) -> tuple[str, ...]:
    """The shell words of a variable such as ``CXX`` or ``CFLAGS``; empty when unset.

    Raises:
        ConfigurationError: the quotes in the value don't balance.
    """
    try:
        return tuple(shlex.split(os.environ.get(name, "")))
    except ValueError as error:
        raise ConfigurationError(
            f"{name}={os.environ[name]!r} can't be split into words ({error}).",
            f"Balance its quotes, or unset it: `unset {name}`.",
        ) from None


def jit_allowed() -> bool:
    """``DS_JIT``: False forbids compiling on first use."""
    return switch("DS_JIT") is not False


def build_everything() -> bool:
    """``DS_BUILD_OPS``: build every compatible op while installing."""
    return switch("DS_BUILD_OPS") is True


def version_suffix() -> str:
    """``DS_BUILD_STRING``: appended to the version; empty when unset."""
    return os.environ.get("DS_BUILD_STRING", "").strip()


def job_limit() -> int | None:
    """``DS_BUILD_JOBS``, else ``MAX_JOBS``: the most compile jobs at a time; None when unset.

    Raises:
        ConfigurationError: the value is no whole number above 0.
    """
    for name in ("DS_BUILD_JOBS", "MAX_JOBS"):
        value = os.environ.get(name, "").strip()
        if not value:
            continue
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise ConfigurationError(
                f"{name}={value!r} is no whole number above 0.",
                f"Set how many compile jobs may run at once: `export {name}=4`.",
            )
        return int(value)
    return None


def folder(name: str) -> Path | None:
    """The folder that ``CUDA_HOME``, ``CUDA_PATH`` or ``CONDA_PREFIX`` names; None when unset."""
    value = os.environ.get(name, "").strip()
    return Path(value).absolute() if value else None


def cuda_architectures() -> str:
    """``TORCH_CUDA_ARCH_LIST``: what CUDA ops are compiled for; empty when unset."""
    return os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip()


def skip_cuda_check() -> bool:
    """``DS_SKIP_CUDA_CHECK``: let a toolkit of another CUDA than torch's through."""
    return switch("DS_SKIP_CUDA_CHECK") is True


def nvcc_environment() -> dict[str, str]:
    """What nvcc itself takes from the environment as options."""
    names = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def extensions_dir() -> Path | None:
    """``TORCH_EXTENSIONS_DIR``: where built ops are kept; None when unset."""
    value = os.environ.get("TORCH_EXTENSIONS_DIR", "")
    try:
        return Path(value).expanduser().absolute() if value else None
    except RuntimeError:  # ~nobody-of-that-name
        raise ConfigurationError(
            f"TORCH_EXTENSIONS_DIR={value!r} starts with the home of a user who doesn't exist.",
            "Name the folder by its full path: `export TORCH_EXTENSIONS_DIR=/path`.",
        ) from None


def cache_home() -> Path:
    """``XDG_CACHE_HOME``, else ``~/.cache``; relative values don't count (XDG rule)."""
    value = os.environ.get("XDG_CACHE_HOME", "")
    if value and os.path.isabs(value):
        return Path(value)
    home = os.path.expanduser("~")
    # A user without HOME and passwd entry has none; "/" then is a folder it can't write to.
    return Path(home if os.path.isabs(home) else "/") / ".cache"


def build_flags_in_force() -> dict[str, str]:
    """Every ``DS_*`` variable that is set, for the install record."""
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith("DS_") and v}
