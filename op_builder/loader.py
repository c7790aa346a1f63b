"""One place that brings an op's binary into the process, prebuilt or just in time.

A stable op's functions are ``torch.ops.<namespace>.<function>``. A namespace can be registered
once per process, so torch is asked first whether it is there: a second copy of an op would end
the process. A classic op is imported as a Python module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from . import elf, environment, jit
from .binary_note import read_note
from .cuda_arch import uncovered
from .errors import LoadError, OpBuilderError
from .gpus import visible_capabilities
from .layout import prebuilt_candidates
from .torch_install import find_torch

with suppress(ImportError):  # an isolated build, which loads nothing, may have none
    # Before our fork handlers: those registered later run earlier, and filelock's hold a lock that
    # a load in another thread may need to finish.
    import filelock  # noqa: F401

if TYPE_CHECKING:
    from .builder import OpBuilder

_loaded: dict[str, object] = {}
_loading: set[str] = set()
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()
    _loading.clear()


# A fork waits for a load in another thread: its child would inherit half-done imports and the
# build's lock, and wait forever for a thread it does not have.
os.register_at_fork(
    before=lambda: _lock.acquire(),
    after_in_parent=lambda: _lock.release(),
    after_in_child=_renew_lock,
)


def load(builder: OpBuilder, verbose: bool = False) -> object:
    """The op's module-like object: from this process, else prebuilt, else just in time.

    Raises:
        OpBuilderError: it can't be had; the message says why and what mends it.
    """
    return _once(builder, lambda: _load(builder, verbose))


def load_jit(builder: OpBuilder, verbose: bool = False) -> object:
    """Like :func:`load`, but passing over a prebuilt binary."""
    return _once(builder, lambda: _open(builder, jit.obtain(builder.plan(), verbose)))


def _once(builder: OpBuilder, make: Callable[[], object]) -> object:
    """What ``make`` returned for this op the first time."""
    name = builder.absolute_name()
    with _lock:
        if name in _loading:
            # A signal handler, or the op's own builder: waiting would be waiting for itself.
            raise LoadError(
                f"Op {builder.name} is being loaded by this very thread.",
                "Load it before installing handlers that use it.",
            )
        if name not in _loaded:
            _loading.add(name)
            try:
                _loaded[name] = make()
            finally:
                _loading.discard(name)
        return _loaded[name]


def _load(builder: OpBuilder, verbose: bool) -> object:
    builder.require_runtime()
    if builder.functions and _is_registered(builder):
        return builder.bind(_functions(builder))
    refusals = []
    for path in prebuilt_candidates(builder.absolute_name()):
        try:
            return _open(builder, path)
        except LoadError as refusal:
            refusals.append(refusal)
    try:
        module = _open(builder, jit.obtain(builder.plan(), verbose))
    except OpBuilderError as error:
        if refusals:
            error.cause = f"{refusals[0].cause} And just in time: {error.cause}"
        raise error from None
    if refusals:
        warnings.warn(
            f"{refusals[0]} Op {builder.name} was built just in time instead.", stacklevel=4
        )
    return module


def prebuilt_status(builder: OpBuilder) -> tuple[Path | None, str]:
    """The prebuilt binary that would be loaded, and the reason the first one is refused.

    Looks at files only; loads nothing.
    """
    cause = ""
    for path in prebuilt_candidates(builder.absolute_name()):
        refused = _refusal(builder, path)
        if not refused:
            return path, ""
        cause = cause or refused
    return None, cause


def _refusal(builder: OpBuilder, path: Path) -> str:
    """Why the binary ``path`` can't be used here; empty if its file raises no objection."""
    if not builder.functions and not _has_module_suffix(path):
        return f"{path} was built for another Python."
    return elf.cause_of_refusal(path) or _refusal_by_note(builder, path)


def _refusal_by_note(builder: OpBuilder, path: Path) -> str:
    note, torch = read_note(path), find_torch()
    if note is None or torch is None:
        return ""
    if note.torch_target and note.torch_target > torch.release:
        target = ".".join(map(str, note.torch_target))
        return f"{path} was built for torch {target} and newer, and torch {torch.version} is here."
    here = () if builder.functions else builder.plan(torch).abi
    if here and note.abi != here:
        return f"{path} was built for {', '.join(note.abi)}, and here is {', '.join(here)}."
    if not note.architectures and builder.wants_gpu_code():
        return f"{path} holds no code for GPUs, and there is one here."
    missing = uncovered(note.architectures, visible_capabilities()) if note.architectures else []
    if missing:
        gpus = " and ".join(f"{major}.{minor}" for major, minor in missing)
        return (
            f"{path} was built for {', '.join(note.architectures)}, and the GPU here has "
            f"capability {gpus}."
        )
    return ""


def _has_module_suffix(path: Path) -> bool:
    stem = path.name.split(".", 1)[0]
    return path.name[len(stem) :] in importlib.machinery.EXTENSION_SUFFIXES


def _open(builder: OpBuilder, path: Path) -> object:
    cause = _refusal(builder, path)
    if cause:
        raise LoadError(f"Op {builder.name} can't be loaded: {cause}", _mend(builder))
    if not builder.functions:
        return _import(builder, path)
    if not _is_registered(builder):
        _load_library(builder, path)
    return builder.bind(_functions(builder))


def _mend(builder: OpBuilder) -> str:
    if environment.jit_allowed():
        return "Reinstall the package that provides it, or run `ds_report --cache clear`."
    return "Reinstall the package that provides it, or unset DS_JIT to build it on first use."


def _is_registered(builder: OpBuilder) -> bool:
    import torch

    return hasattr(getattr(torch.ops, builder.namespace), builder.functions[0])


def _load_library(builder: OpBuilder, path: Path) -> None:
    import torch

    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        # torch wraps the reason the dynamic linker gave.
        reason = str(error.__cause__ or error)
        raise LoadError(f"Op {builder.name} can't be loaded: {reason}.", _mend(builder)) from None


def _functions(builder: OpBuilder) -> SimpleNamespace:
    import torch

    namespace = getattr(torch.ops, builder.namespace)
    missing = [name for name in builder.functions if not hasattr(namespace, name)]
    if missing:
        raise LoadError(
            f"torch.ops.{builder.namespace} lacks {', '.join(missing)}: the binary of op "
            f"{builder.name} does not register it, or another copy was loaded before.",
            "Keep one installation per process (`pip list | grep -i deepspeed`), and the builder's "
            "functions equal to what its sources register.",
        )
    return SimpleNamespace(**{name: getattr(namespace, name) for name in builder.functions})


def _import(builder: OpBuilder, path: Path) -> ModuleType:
    import torch  # noqa: F401  (its libraries must be in the process before the module's)

    loader = importlib.machinery.ExtensionFileLoader(builder.name, str(path))
    spec = importlib.util.spec_from_file_location(builder.name, path, loader=loader)
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LoadError(f"Op {builder.name} can't be loaded: {error}.", _mend(builder)) from None
    sys.modules.setdefault(builder.absolute_name(), module)
    return module
