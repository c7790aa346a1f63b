"""Just in time: a plan's binary out of the cache, built into it first if need be.

The order that makes it safe: look for the entry; take the lock of its fingerprint; look again;
build in a private staging folder; publish by rename; drop the lock. The kernel drops the lock of
a process that dies, so nobody waits for the dead; where locks don't work, two processes may both
build, and the rename still lets readers see only whole entries.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import cache, environment
from .binary_note import read_note
from .cuda_arch import uncovered
from .errors import BuildError, CacheError, LoadError, ToolchainError
from .fingerprint import Fingerprint, fingerprint
from .gpus import visible_capabilities
from .jobs import compile_jobs
from .plan import BuildPlan

if TYPE_CHECKING:
    import filelock

_POLL_SECONDS = 0.05
_SAY_AFTER_SECONDS = 5.0


def obtain(plan: BuildPlan, verbose: bool = False) -> Path:
    """The binary of ``plan``: published before, or built now.

    Raises:
        ToolchainError: it must be built and a tool is missing.
        BuildError: the compiler failed.
        CacheError: no folder for it can be written to, or the disk is full.
        LoadError: it is not there and ``DS_JIT=0`` forbids building it.
    """
    print_ = fingerprint(plan)
    entry = _published(plan, print_)
    if entry is None:
        _require_permission(plan)
        try:
            plan.require_tools()
            entry = _build_under_lock(plan, print_, verbose)
        except ToolchainError as error:
            cause = f"Op {plan.op} can't be built: {error.cause}"
            raise ToolchainError(cause, error.mend) from None
    return entry.binary


def is_published(plan: BuildPlan) -> bool:
    """Whether :func:`obtain` would find ``plan``'s binary without building it."""
    return _published(plan, fingerprint(plan)) is not None


def _published(plan: BuildPlan, print_: Fingerprint) -> cache.Entry | None:
    entry = cache.find(plan.op, print_.key)
    if entry is None and not plan.can_be_built:
        # Nothing can be compiled here, so whoever compiled it elsewhere is good enough.
        entry = cache.find_portable(plan.op, print_.portable_key, _fits_gpus)
    return entry


def _fits_gpus(entry: cache.Entry) -> bool:
    note = read_note(entry.binary)
    if note is None or not note.architectures:
        return True
    return not uncovered(note.architectures, visible_capabilities())


def _require_permission(plan: BuildPlan) -> None:
    if not environment.jit_allowed():
        raise LoadError(
            f"Op {plan.op} is not built, and DS_JIT=0 forbids building it on first use.",
            f"Build it beforehand: `DS_JIT=1 ds_report --verify {plan.op}` into the same "
            f"TORCH_EXTENSIONS_DIR, or install with DS_BUILD_OPS=1.",
        )


def _build_under_lock(plan: BuildPlan, print_: Fingerprint, verbose: bool) -> cache.Entry:
    folder = cache.writable_op_folder(plan.op)
    with _lock(plan.op, folder, print_.key):
        entry = cache.find(plan.op, print_.key)
        return entry or _build(plan, print_, folder, verbose)


@contextmanager
def _lock(op: str, folder: Path, key: str) -> Iterator[None]:
    """Hold the lock of ``key``, unless it gets published while waiting for it."""
    import filelock

    lock = _kernel_lock(folder / f"{key}.lock")
    owner = folder / f"{key}.owner"
    started, told = time.monotonic(), False
    while not lock.is_locked and cache.find(op, key) is None:
        try:
            lock.acquire(timeout=_POLL_SECONDS, poll_interval=_POLL_SECONDS)
        except filelock.Timeout:
            if not told and time.monotonic() - started > _SAY_AFTER_SECONDS:
                _say(f"waiting for op {op}, which {_owner_text(owner)} is building")
                told = True
        except (OSError, NotImplementedError):
            break  # No locks on this file system: go on; publishing by rename is still safe.
    try:
        if lock.is_locked:
            _write_owner(owner)
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                owner.unlink(missing_ok=True)
            lock.release()


def _kernel_lock(path: Path) -> filelock.FileLock:
    """A lock the kernel drops when its holder dies.

    A fresh object each time: threads of one process exclude each other like processes do.
    """
    import filelock

    try:
        # Where the kernel can't lock, go without rather than by a file that outlives its owner.
        return filelock.FileLock(str(path), thread_local=False, fallback_to_soft=False)
    except TypeError:  # a release without that fallback
        return filelock.FileLock(str(path), thread_local=False)


def _write_owner(path: Path) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # only a courtesy to those who wait
        path.write_text(text, encoding="utf-8")


def _owner_text(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _say(text: str) -> None:
    print(f"deepspeed: {text}", file=sys.stderr, flush=True)


def _build(plan: BuildPlan, print_: Fingerprint, folder: Path, verbose: bool) -> cache.Entry:
    """Compile ``plan`` in a staging folder and publish it."""
    from . import ninja_build
    from .progress import Progress
    from .toolchain import version_text

    if verbose:
        _say(f"building op {plan.op} in {folder / print_.key}")
    cache.remove_abandoned(folder)
    failed_log = folder / f"{print_.key}.failed.log"
    staging = log = None
    try:
        staging = cache.new_staging(folder, print_.key)
        log = staging / "build.log"
        ninja_build.write_ninja_file([plan], [staging], staging / "build.ninja")
        progress = Progress(sys.stderr) if verbose else None
        jobs = compile_jobs(plan.bytes_per_job)
        threads = ninja_build.nvcc_threads([plan], jobs)
        ninja_build.run_ninja(staging, jobs, log, progress, threads=threads)
        compiler = version_text(plan.require_compiler())
        manifest = {**print_.manifest, "compiler_version": compiler}
        entry = cache.publish(staging, plan.op, print_.key, manifest)
        failed_log.unlink(missing_ok=True)
        return entry
    except BuildError as error:
        raise _explain(plan, error, log, failed_log) from None
    except OSError as error:
        raise CacheError(
            f"Op {plan.op} can't be built in {folder}: {error.strerror or error}.",
            "Free space there, or name another folder: `export TORCH_EXTENSIONS_DIR=/path`.",
        ) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        # Again: a compiler that outlived its killed builder was still writing the first time.
        cache.remove_abandoned(folder)


def _explain(plan: BuildPlan, error: BuildError, log: Path, failed_log: Path) -> BuildError:
    """The error a user gets for a failed build: op, first diagnostics, log, mend."""
    try:
        shutil.copyfile(log, failed_log)
    except OSError:
        failed_log = None
    if "No space left" in error.details:
        return CacheError(
            f"Op {plan.op} can't be built in {log.parent.parent}: No space left on device.",
            "Free space there, or name another folder: `export TORCH_EXTENSIONS_DIR=/path`.",
        )
    where = f"the whole output is in {failed_log}" if failed_log else "its output could not be kept"
    return BuildError(
        f"Op {plan.op} failed to compile with {plan.compiler}; {where}.",
        "Mend what it names below, or choose another compiler with CXX, and load the op again.",
        error.details,
    )
