"""The checkout a build runs in: one build at a time, and a place to write if it is read-only.

setuptools keeps its files in the checkout, ``build/`` and ``deepspeed.egg-info/``. Two builds at
once would put each other's binaries into their wheels, and a read-only checkout could not be built.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_held: list[int] = []


@contextmanager
def only_build_in(root: Path) -> Iterator[None]:
    """Have the checkout ``root`` for this build alone, once other builds there have ended.

    The kernel drops the lock when the last process dies that has :func:`lock_descriptors`: this
    one, and compilers that outlive it, since they still write there. On file systems without
    locks builds go unprotected, as those of other projects do.
    """
    # The folder itself is locked, so that nothing is left in it; filelock needs a file of its own.
    descriptor = os.open(root, os.O_RDONLY)
    try:
        with suppress(OSError):
            _lock(descriptor, root)
        _held.append(descriptor)
        yield
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def lock_descriptors() -> list[int]:
    """The locks this process holds."""
    return list(_held)


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"deepspeed: waiting for another build of this checkout ({root})", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def scratch_options(root: Path) -> dict[str, dict[str, str]]:
    """Options that make setuptools write elsewhere, if it can't write to the checkout ``root``."""
    written = (root, root / "build", root / "deepspeed.egg-info")
    if all(os.access(path, os.W_OK) for path in written if path.exists()):
        return {}
    scratch = tempfile.mkdtemp(prefix="deepspeed-build-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return {"egg_info": {"egg_base": scratch}, "build": {"build_base": f"{scratch}/build"}}
