"""The version of a source tree: ``version.txt`` and what distinguishes this build of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .errors import ConfigurationError
from .process import ask

#: Keeps the suffix for trees without git, such as an unpacked source archive.
BUILD_FILE = "build.txt"

#: Set while git runs a hook; they would make it answer about the hook's repository.
_POINTS_ELSEWHERE = frozenset({"GIT_DIR", "GIT_WORK_TREE"})


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The version (PEP 440) and the commit it was made from; "unknown" without git."""

    version: str
    git_hash: str
    git_branch: str


def _git(root: Path, *arguments: str) -> str:
    """What git answers about ``root``; empty if it can't be asked."""
    # A checkout owned by somebody else (a bind mount in a container) is still this project.
    argv = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
    environ = {k: v for k, v in os.environ.items() if k not in _POINTS_ELSEWHERE}
    done = ask(argv, timeout=10, env=environ)
    return done.stdout.strip() if done.returncode == 0 else ""


def _commit(root: Path) -> tuple[str, str]:
    """(short hash, branch) of the checkout ``root``; empty where ``root`` is not its top folder,
    so that a source archive unpacked inside another project doesn't take that one's commit."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return "", ""
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD")
    return _short_hash(root), branch


def _short_hash(root: Path) -> str:
    short = _git(root, "rev-parse", "--short", "HEAD")
    if not short.isdigit():
        return short
    # PEP 440 reads digits as a number and drops leading zeros: go on to the first letter.
    full = _git(root, "rev-parse", "HEAD")
    return full[: len(full) - len(full.lstrip("0123456789")) + 1]


def join_version(base: str, build_string: str) -> str:
    """``base`` with ``build_string`` appended, in PEP 440's normal form.

    A string that is no suffix as it stands becomes a local version: ``cu130`` → ``+cu130``. So
    does one that would continue ``base``'s last number: ``2`` → ``+2``.

    Raises:
        ConfigurationError: no valid version comes of it.
    """
    from packaging.version import InvalidVersion, Version

    as_local = f"{base}+{build_string}"
    continues = build_string[:1].isdigit()
    for candidate in (as_local,) if continues else (base + build_string, as_local):
        try:
            return str(Version(candidate))
        except InvalidVersion:
            continue
    raise ConfigurationError(
        f"{build_string!r} (DS_BUILD_STRING, else build.txt) makes no valid version after "
        f"{base!r} (PEP 440).",
        "Use a suffix such as `+cu130` or `.dev1`: `export DS_BUILD_STRING=+cu130`.",
    )


def source_version(root: Path) -> SourceVersion:
    """The version of the source tree ``root``.

    ``version.txt``, then the first of: ``DS_BUILD_STRING`` (also kept in ``build.txt``, so that a
    source archive carries it), ``build.txt``, ``+<git short hash>``, nothing.
    """
    base = (root / "version.txt").read_text(encoding="utf-8").strip()
    git_hash, branch = _commit(root)
    build_file = root / BUILD_FILE
    build_string = environment.version_suffix()
    if build_string:
        _keep(build_file, build_string)
    elif build_file.is_file():
        build_string = build_file.read_text(encoding="utf-8").strip()
    else:
        build_string = f"+{git_hash}" if git_hash else ""
    version = join_version(base, build_string)
    return SourceVersion(version, git_hash or "unknown", branch or "unknown")


def _keep(build_file: Path, build_string: str) -> None:
    try:
        build_file.write_text(build_string + "\n", encoding="utf-8")
    except OSError as error:  # a read-only tree: this build has its version all the same
        print(f"warning: {build_file} was not written ({error.strerror})")
