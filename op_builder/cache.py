"""The folder that keeps built ops: finding entries, publishing them whole, and cleaning up.

Layout below a root::

    <op>/<fingerprint>/            an entry: <op>.so, manifest.json, build.log; never changed
    <op>/<fingerprint>.lock        held by the process that builds this entry
    <op>/<fingerprint>.owner       who holds it, for those who wait
    <op>/<fingerprint>.failed.log  what the compilers printed at the last failed build
    <op>/.staging-<fingerprint>-<host>.<namespace>-<pid>-<random>/   a build in progress

An entry appears by one rename of a folder whose files have reached the disk, so a reader sees
all of it or nothing, whatever was killed and wherever locks don't work. Nothing here knows how
a binary is built.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .errors import CacheError

_KEY = re.compile(r"[0-9a-f]{32}\Z")
_STAGING = re.compile(r"\.staging-[0-9a-f]{32}-(?P<place>.+)-(?P<pid>\d+)-[^-]+\Z")


@dataclass(frozen=True, slots=True)
class Entry:
    """A published build."""

    folder: Path
    op: str
    key: str

    @property
    def binary(self) -> Path:
        return self.folder / f"{self.op}.so"

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    def manifest(self) -> dict[str, object]:
        """The inputs of the fingerprint, in clear; empty if unreadable."""
        try:
            value = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def is_whole(self) -> bool:
        """Whether the binary has the size it was published with."""
        try:
            return self.binary.stat().st_size == self.manifest().get("binary_size")
        except OSError:
            return False

    def size(self) -> int:
        """Bytes on disk."""
        return sum(map(os.path.getsize, filter(os.path.isfile, self.folder.rglob("*"))))


def configured_root() -> Path:
    """``TORCH_EXTENSIONS_DIR``, else torch's own default, ``~/.cache/torch_extensions``."""
    return environment.extensions_dir() or environment.cache_home() / "torch_extensions"


def _fallback_root() -> Path | None:
    """A folder of this user's in the temporary folder; None where nothing at all is writable."""
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError:
        return None
    return temporary / f"deepspeed-{os.getuid()}" / "torch_extensions"


def _is_private(folder: Path) -> bool:
    """Whether ``folder`` is a real folder of this user that nobody else can write to."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def readable_roots() -> list[Path]:
    """Where published entries are looked for, first match wins."""
    fallback = _fallback_root()
    trusted = fallback is not None and _is_private(fallback.parent)
    return [configured_root(), *([fallback] if trusted else [])]


def _try_folder(folder: Path) -> OSError | None:
    """Make ``folder`` and write to it; the error that stopped it, or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error


def writable_op_folder(op: str) -> Path:
    """The folder of ``op`` new entries go to: below the configured root, else a private one in
    the temporary folder, with one warning.

    Raises:
        CacheError: neither can be written to, or the disk is full.
    """
    folder = configured_root() / op
    refused = _try_folder(folder)
    if refused is None:
        return folder
    mend = "Name a writable folder: `export TORCH_EXTENSIONS_DIR=/path/with/space`."
    fallback = _fallback_root()
    if fallback is None or not _is_permission(refused):
        raise CacheError(f"Op {op} can't be built: {folder}: {refused.strerror}.", mend)
    try:
        fallback.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        refused = error
    second = _try_folder(fallback / op) if _is_private(fallback.parent) else refused
    if second is not None:
        raise CacheError(
            f"Op {op} can't be built: neither {folder} ({refused.strerror}) nor "
            f"{fallback / op} ({second.strerror}) can be written to.",
            mend,
        )
    warnings.warn(
        f"{configured_root()} can't be written to ({refused.strerror}); built ops go to "
        f"{fallback}. Name a writable folder to keep them: `export TORCH_EXTENSIONS_DIR=…`.",
        stacklevel=2,
    )
    return fallback / op


def _is_permission(error: OSError) -> bool:
    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def find(op: str, key: str) -> Entry | None:
    """The whole entry ``key`` of ``op``, or None."""
    for root in readable_roots():
        entry = Entry(root / op / key, op, key)
        if entry.is_whole():
            return entry
    return None


def find_portable(op: str, portable_key: str, fits: Callable[[Entry], bool]) -> Entry | None:
    """A whole entry built from the same inputs by any compiler that ``fits``, or None."""
    for entry in entries():
        same = entry.op == op and entry.manifest().get("portable_key") == portable_key
        if same and entry.is_whole() and fits(entry):
            return entry
    return None


def entries() -> Iterator[Entry]:
    """Every entry below every root, whole or not."""
    for root in readable_roots():
        for folder in sorted(root.glob("*/*")):
            if _KEY.match(folder.name) and os.path.isfile(folder / "manifest.json"):
                yield Entry(folder, folder.parent.name, folder.name)


def _place() -> str:
    """What a pid is relative to: the host and, on it, the container."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return re.sub(r"[^\w.]", "_", f"{socket.gethostname()}.{namespace}")


def new_staging(op_folder: Path, key: str) -> Path:
    """A new folder of our own to build ``key`` in, with the permissions its entry shall have."""
    name = f".staging-{key}-{_place()}-{os.getpid()}-{secrets.token_hex(4)}"
    folder = op_folder / name
    folder.mkdir()
    return folder


def publish(staging: Path, op: str, key: str, manifest: dict[str, object]) -> Entry:
    """Make the folder ``staging``, with the binary and the log in it, the entry ``key``.

    It goes as a whole, in one step: a process killed at any moment leaves the entry or nothing
    beside it. If another process published it meanwhile, its entry is returned. A damaged entry
    that stands in the way is moved aside.
    """
    built, entry = Entry(staging, op, key), Entry(staging.parent / key, op, key)
    size = built.binary.stat().st_size
    text = json.dumps({**manifest, "binary_size": size}, indent=2, ensure_ascii=True)
    (staging / "manifest.json").write_text(text + "\n", encoding="utf-8")
    kept = {staging / "manifest.json", built.binary, built.log}
    for path in set(staging.iterdir()) - kept:
        path.unlink()
    for path in (*kept, staging):
        _sync(path)
    try:
        os.rename(staging, entry.folder)
    except OSError:
        if entry.is_whole():
            return entry
        aside = new_staging(staging.parent, key)
        os.rename(entry.folder, aside / "damaged")
        os.rename(staging, entry.folder)
        shutil.rmtree(aside, ignore_errors=True)
    _sync(entry.folder.parent)
    return entry


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(op_folder: Path) -> None:
    """Remove the staging folders whose process, of this host and container, is gone."""
    place = _place()
    for folder in op_folder.glob(".staging-*"):
        match = _STAGING.match(folder.name)
        if match and match["place"] == place and not _is_alive(int(match["pid"])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def clear() -> tuple[int, int]:
    """Remove every entry; the number removed and the bytes freed.

    Raises:
        CacheError: an entry can't be removed.
    """
    count = freed = 0
    for entry in list(entries()):
        size = entry.size()
        try:
            shutil.rmtree(entry.folder)
        except OSError as error:
            raise CacheError(
                f"The cached op {entry.folder} can't be removed: {error.strerror}.",
                f"Remove it as its owner: `rm -r {entry.folder}`.",
            ) from None
        for leftover in entry.folder.parent.glob(f"{entry.key}.*"):
            leftover.unlink(missing_ok=True)
        remove_abandoned(entry.folder.parent)
        count, freed = count + 1, freed + size
    return count, freed
