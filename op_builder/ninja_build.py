"""Plans in, binaries out: one ninja file for any number of ops, the only place that compiles.

JIT hands it one plan and a staging folder, an install all plans and its build folder; ninja runs
one pool of jobs over all of them and recompiles only what changed.

Why not ``torch.utils.cpp_extension.load``: it guards its folder with a file that a killed process
leaves behind, adds Python's headers and torch_python to every link, has no switch for the stable
ABI, and drops its own architecture flags when any flag contains the letters "arch". Here every
compiler gets exactly the flags of the plan.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from .errors import BuildError, ToolchainError
from .plan import BuildPlan
from .toolchain import find_ninja

_RULES = """\
ninja_required_version = 1.5
rule compile
  command = $argv
  depfile = $out.d
  deps = gcc
  description = compile $name
rule link
  command = $argv
  description = link $name
"""

_DIAGNOSTIC = re.compile(r"(\b(fatal )?error\b|undefined reference|cannot find -l|No space left)")
_SHOWN_DIAGNOSTICS = 8


def _path(path: Path | str) -> str:
    """``path`` as ninja reads it in a build line."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def _edge(
    rule: str, output: Path, inputs: Sequence[Path], argv: Sequence[object], name: str
) -> str:
    # ninja expands "$" in values, and hands the rest to a shell.
    command = shlex.join(map(str, argv)).replace("$", "$$")
    return (
        f"build {_path(output)}: {rule} {' '.join(map(_path, inputs))}\n"
        f"  argv = {command}\n"
        f"  name = {name.replace('$', '$$')}\n"
    )


def _plan_edges(plan: BuildPlan, folder: Path) -> Iterable[str]:
    """One compile edge a source, and the link edge."""
    compiler = plan.require_compiler().command
    folders = sorted({*plan.include_dirs, *(source.parent for source in plan.sources)})
    # Messages name files by project folder: a binary says nothing of the machine that built it.
    options = [
        *plan.flags,
        *(word for path in plan.include_dirs for word in ("-I", str(path))),
        *plan.environment_flags,
        *(f"-ffile-prefix-map={path}={path.name}" for path in folders),
    ]
    objects = []
    for position, source in enumerate(plan.sources):
        output = folder / f"{position}-{source.stem}.o"
        objects.append(output)
        argv = [*compiler, "-MMD", "-MF", f"{output}.d", *options, "-c", source, "-o", output]
        yield _edge("compile", output, [source], argv, f"{plan.op}: {source.name}")
    binary = folder / plan.binary_name
    link_options = [*plan.environment_link_flags, *plan.link_flags]
    argv = [*compiler, "-shared", *objects, "-o", binary, *link_options]
    yield _edge("link", binary, objects, argv, plan.op)


def write_ninja_file(plans: Sequence[BuildPlan], folders: Sequence[Path], path: Path) -> None:
    """Write the ninja file that builds each plan's binary in its folder, below ``path``'s."""
    # Outputs are relative to the ninja file: its format can't hold every character of a path.
    relative = [folder.relative_to(path.parent) for folder in folders]
    edges = [edge for plan, folder in zip(plans, relative) for edge in _plan_edges(plan, folder)]
    path.write_bytes((_RULES + "".join(edges)).encode("utf-8", "surrogateescape"))


def first_diagnostics(output: str) -> str:
    """The first lines of ``output`` in which a compiler or linker says what is wrong."""
    lines = [line for line in output.splitlines() if not line.startswith("FAILED:")]
    telling = list(dict.fromkeys(line for line in lines if _DIAGNOSTIC.search(line)))
    return "\n".join((telling or lines[-_SHOWN_DIAGNOSTICS:])[:_SHOWN_DIAGNOSTICS])


def _ninja_environment() -> dict[str, str]:
    # [finished/total elapsed] in front of each finished step.
    return {**os.environ, "NINJA_STATUS": "[%f/%t %es] ", "LC_ALL": "C.UTF-8"}


def failed_folders(output: str) -> list[str]:
    """The names of the folders whose step failed: the ops, where each has a folder."""
    steps = re.findall(r"^FAILED: (?:\[code=\d+\] )?(.+?)\s*$", output, re.MULTILINE)
    return sorted({Path(step).parent.name for step in steps})


def run_ninja(folder: Path, jobs: int, log: Path, echo: bool = False) -> None:
    """Run ``folder/build.ninja``; its output goes to ``log``, with ``echo`` to the terminal too.

    Raises:
        BuildError: a compiler or linker failed; its details are the first diagnostics.
        ToolchainError: ninja is missing or does not start.
    """
    argv = [find_ninja(), "-C", str(folder), "-j", str(jobs)]
    with open(log, "wb") as stream:
        code = _wait(argv, stream, echo)
    if code:
        output = log.read_text(encoding="utf-8", errors="replace")
        raise BuildError(f"ninja exited with {code}.", details=first_diagnostics(output))


def _wait(argv: list[str], log: BinaryIO, echo: bool) -> int:
    """Run ``argv`` in a session of its own, so that an interrupt ends all its compilers."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ninja_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ToolchainError(
            f"ninja can't be run: {argv[0]}: {error.strerror}.",
            "Reinstall it: `pip install --force-reinstall ninja`.",
        ) from None
    with process:
        try:
            for line in process.stdout:
                log.write(line)
                if echo:
                    print(line.decode("utf-8", "replace"), end="", flush=True)
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
