"""The programs that build an op: finding them, naming them, and probing what they can do.

Finding a tool runs no program: its identity is its resolved path, size and mtime. Version texts
and probes do run one, each question once per process. Nothing here knows about ops.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .errors import ToolchainError
from .process import ask

#: Programs that run the compiler named after them.
_WRAPPERS = frozenset({"ccache", "sccache", "distcc", "icecc"})

_CANDIDATES = ("g++", "c++", "clang++")

#: What turns a C compiler's name into that of the C++ compiler beside it, first match.
_CXX_OF_CC = (("gcc", "g++"), ("clang", "clang++"), ("cc", "c++"))

_FAST_LINKERS = ("lld", "gold")

#: How each package manager installs a package, and the package that brings a C++ compiler.
_INSTALL = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "apk": "apk add",
    "pacman": "pacman -S",
    "zypper": "zypper install",
}
_COMPILER_PACKAGE = {
    "apt-get": "g++",
    "dnf": "gcc-c++",
    "apk": "g++",
    "pacman": "gcc",
    "zypper": "gcc-c++",
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A program as it is run (wrappers and fixed options included) and what identifies it."""

    command: tuple[str, ...]
    identity: tuple[str, ...]

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, judged by the names it is called by and resolves to."""
        words = (*self.command, *(word.split(" ")[0] for word in self.identity))
        return any("clang" in Path(word).name for word in words if not word.startswith("-"))

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether a test program compiled and linked, and what the tools printed."""

    ok: bool
    output: str


def identify(path: str) -> str:
    """``path`` resolved, with the size and mtime that change when the program does."""
    resolved = os.path.realpath(path)
    status = os.stat(resolved)
    return f"{resolved} {status.st_size} {status.st_mtime_ns}"


def install_command(packages: dict[str, str]) -> str:
    """The command that installs a package here, ``packages`` naming it by package manager."""
    for manager, package in packages.items():
        if shutil.which(manager):
            return f"{_INSTALL[manager]} {package}"
    return f"{_INSTALL['apt-get']} {packages['apt-get']}"


def _asked_compiler() -> tuple[str, tuple[str, ...]]:
    """The variable that asks for a compiler, and its words: ``CXX``, else ``CC``'s C++ sibling."""
    asked = environment.words("CXX")
    if asked:
        return "CXX", asked
    asked = environment.words("CC")
    for position, word in enumerate(asked):
        folder, name = os.path.split(word)
        for cc, cxx in _CXX_OF_CC:
            if name in _WRAPPERS or cxx in name or cc not in name:
                continue
            sibling = os.path.join(folder, name.replace(cc, cxx, 1))
            return "CC", (*asked[:position], sibling, *asked[position + 1 :])
    return "CC", asked


def find_compiler() -> Tool:
    """The C++ compiler: ``CXX`` (wrappers and options included), else ``CC``'s C++ sibling, else
    the usual names on PATH.

    Raises:
        ToolchainError: there is none, or the variable names a program that does not exist.
    """
    variable, asked = _asked_compiler()
    for command in [asked] if asked else [(name,) for name in _CANDIDATES]:
        programs = command[:2] if Path(command[0]).name in _WRAPPERS else command[:1]
        found = [path for path in map(shutil.which, programs) if path]
        if len(found) == len(programs):
            options = command[len(programs) :]
            return Tool((*found, *options), (*map(identify, found), *options))
    if asked:
        raise ToolchainError(
            f"{variable} asks for the C++ compiler {' '.join(asked)!r}, which does not exist here.",
            f"Correct it, or `unset {variable}` to use the compiler on PATH.",
        )
    raise ToolchainError(
        f"No C++ compiler was found ({', '.join(_CANDIDATES)} are not on PATH).",
        f"Install one: `{install_command(_COMPILER_PACKAGE)}`, or set CXX to its path.",
    )


def host_compiler(compiler: Tool) -> str:
    """The program nvcc hands host code to: ``CUDAHOSTCXX``, else ``compiler`` without wrappers."""
    asked = environment.words("CUDAHOSTCXX")
    if asked:
        return asked[0]
    programs = (word for word in compiler.command if Path(word).name not in _WRAPPERS)
    return next(programs, compiler.command[0])


def find_ninja() -> str:
    """The ninja program: the installed ``ninja`` package's, else the one on PATH.

    Raises:
        ToolchainError: there is neither.
    """
    spec = importlib.util.find_spec("ninja")
    if spec is not None and spec.origin:
        import ninja

        bundled = Path(getattr(ninja, "BIN_DIR", ""), "ninja")
        if bundled.is_file() and os.access(bundled, os.X_OK):
            return str(bundled)
    on_path = shutil.which("ninja") or shutil.which("ninja-build")
    if on_path:
        return on_path
    raise ToolchainError("ninja was not found.", "Install it: `pip install ninja`.")


def linker_options(flags: Sequence[str]) -> tuple[str, ...]:
    """The option that picks a faster linker than the default, if there is one on PATH.

    The default one reads all of libtorch's symbols at every link, which takes half a second. It
    is left alone where ``flags`` choose a linker, or ask for link-time optimization: another one
    may take the compiler's intermediate code for empty objects.
    """
    if any(flag.startswith(("-fuse-ld", "-flto")) for flag in flags):
        return ()
    for name in _FAST_LINKERS:
        if shutil.which(f"ld.{name}"):
            return (f"-fuse-ld={name}",)
    return ()


@functools.cache
def version_text(tool: Tool) -> str:
    """The first line ``tool --version`` prints; empty if it prints none within 10 s."""
    lines = ask([*tool.command, "--version"], timeout=10).stdout.splitlines()
    return next((line for line in lines if line.strip()), "")


@functools.cache
def _probe(command: tuple[str, ...], suffix: tuple[str, ...], source: str) -> ProbeResult:
    with tempfile.TemporaryDirectory(prefix="deepspeed-probe-") as folder:
        program = Path(folder, "probe.cpp")
        program.write_text(source, encoding="utf-8")
        argv = [*command, str(program), "-o", str(Path(folder, "probe")), *suffix]
        done = ask(argv, timeout=60)
        return ProbeResult(done.returncode == 0, done.stderr.replace(folder + os.sep, ""))


def compile_and_link(source: str, libraries: Sequence[str] = ()) -> ProbeResult:
    """Try to build ``source`` as a program against ``libraries``, honouring CFLAGS and LDFLAGS.

    Compiles in a private temporary folder, prints nothing, and asks each question once per
    process.
    """
    try:
        compiler = find_compiler()
    except ToolchainError as error:
        return ProbeResult(False, str(error))
    flags = (*environment.words("CPPFLAGS"), *environment.words("CFLAGS"))
    suffix = (*environment.words("LDFLAGS"), *(f"-l{name}" for name in libraries))
    return _probe((*compiler.command, *flags), suffix, source)


def platform_cause() -> str:
    """Why no op can be built or run on this platform; empty if it can."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        return ""
    return f"{system} {machine} is not supported: the ops are for Linux x86_64 and aarch64."
