"""What a built op's name in the cache is made of.

The fingerprint covers everything that decides what the binary is: the contents of the op's
sources and of every project header they include, the flags, the compiler's identity, and what
the binary is bound to (:attr:`BuildPlan.abi`). Deliberately not in it: where the project, torch
and Python lie on this machine, so that two environments share what is equal; and headers of the
system and of torch, which stand for themselves through the compiler and the ABI target.

The same inputs, in clear, are the manifest kept beside the binary.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .errors import ToolchainError
from .plan import BuildPlan
from .toolchain import Tool

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)

#: Raised when the layout of an entry or the meaning of its manifest changes.
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``key`` names the cache entry. ``portable_key`` leaves out who compiled it and for which
    GPUs: an entry with the same one serves a machine that has no compiler, if its GPUs fit."""

    key: str
    portable_key: str
    manifest: dict[str, object]


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _included(text: bytes, folder: Path, include_dirs: Iterable[Path]) -> Iterable[Path]:
    """The project files that ``text``, a file in ``folder``, includes."""
    for name in _INCLUDE.findall(text):
        for base in (folder, *include_dirs):
            candidate = base / name.decode("utf-8", "surrogateescape")
            if candidate.is_file():
                yield candidate.resolve()
                break


def _reached(sources: Iterable[Path], include_dirs: Sequence[Path]) -> dict[Path, bytes]:
    """``sources`` and every project header they reach, with their contents.

    Conditional compilation is ignored: a header behind an ``#if`` counts.
    """
    contents: dict[Path, bytes] = {}
    queue = [source.resolve() for source in sources]
    while queue:
        path = queue.pop()
        if path not in contents:
            contents[path] = path.read_bytes()
            queue += _included(contents[path], path.parent, include_dirs)
    return contents


def project_files(plan: BuildPlan) -> dict[str, str]:
    """Every source and every project header it reaches, with the SHA-256 of its contents.

    Names are relative to the folder all files share, so that a copy elsewhere has the same ones.
    """
    contents = _reached(plan.sources, plan.include_dirs)
    return {
        _relative(path, contents): hashlib.sha256(text).hexdigest()
        for path, text in sorted(contents.items())
    }


def bytes_to_compile(plan: BuildPlan, source: Path) -> int:
    """The project's code that ``source`` makes the compiler read: a guess at its time."""
    return sum(map(len, _reached([source], plan.include_dirs).values()))


def _relative(path: Path, paths: Iterable[Path]) -> str:
    parents = [set(other.parents) for other in paths]
    shared = max(set.intersection(*parents), key=lambda parent: len(parent.parts))
    return path.relative_to(shared).as_posix()


def fingerprint(plan: BuildPlan) -> Fingerprint:
    """The fingerprint of ``plan``. Reads the project's files; runs nothing."""
    portable = {
        "format": _FORMAT,
        "op": plan.op,
        "abi": list(plan.abi),
        "files": project_files(plan),
        "source_order": [source.name for source in plan.sources],
        "flags": list(plan.flags),
        "link_flags": list(plan.link_flags),
    }
    bound: dict[str, object] = {"compiler": _identity(plan.compiler)}
    if plan.cuda is not None:
        portable["nvcc_flags"] = [*plan.cuda.flags, *plan.cuda.environment]
        toolkit = plan.cuda.toolkit
        bound["nvcc"] = None if isinstance(toolkit, ToolchainError) else list(toolkit.tool.identity)
        bound["host_compiler"] = list(environment.words("CUDAHOSTCXX"))
    bound["architectures"] = list(plan.architectures)
    portable_key = _digest(portable)
    manifest = {**portable, **bound, "portable_key": portable_key}
    return Fingerprint(_digest(manifest)[:32], portable_key, manifest)


def _identity(compiler: Tool | ToolchainError) -> list[str] | None:
    return list(compiler.identity) if isinstance(compiler, Tool) else None
