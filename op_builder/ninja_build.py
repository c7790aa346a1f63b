"""Plans in, binaries out: one ninja file for any number of ops, the only place that compiles.

JIT hands it one plan and a staging folder, an install all plans and its build folder; ninja runs
one pool of jobs over all of them, longest first, and recompiles only what changed.

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
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .binary_note import note_header
from .errors import BuildError, ToolchainError
from .fingerprint import bytes_to_compile
from .plan import CUDA_SUFFIX, BuildPlan
from .progress import NINJA_STATUS, Progress, parse_step
from .toolchain import find_ninja, host_compiler

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

#: How much longer nvcc takes than g++, for each architecture.
_NVCC_COST = 4

#: From here on nvcc can work with several threads.
_SPLITTING_NVCC = (12, 6)

_FAILED = re.compile(r"FAILED: (?:\[code=\d+\] )?(.+?)\s*$")


def _path(path: Path | str) -> str:
    """``path`` as ninja reads it in a build line."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def _edge(
    rule: str, output: Path, inputs: Sequence[Path], name: str, *commands: Sequence[object]
) -> str:
    """A step of ninja's file; of ``commands``, each next one is run if those before it failed."""
    # ninja expands "$" in values, and hands the rest to a shell.
    command = " || ".join(shlex.join(map(str, argv)) for argv in commands)
    # Inputs are named through variables: what stands in a value needs no escape but that of "$".
    values = {f"in{i}": str(path) for i, path in enumerate(inputs)}
    values |= {"argv": command, "name": name}
    named = " ".join(f"$in{i}" for i in range(len(inputs)))
    lines = "".join(f"  {key} = {value.replace('$', '$$')}\n" for key, value in values.items())
    return f"build {_path(output)}: {rule} {named}\n{lines}"


@dataclass(frozen=True, slots=True)
class _Edge:
    """A step as ninja reads it, and how long it takes compared with others."""

    text: str
    cost: int


def _plan_edges(plan: BuildPlan, folder: Path, note: Path) -> Iterable[_Edge]:
    """One compile edge a source, and the link edge, which costs nothing beside them."""
    compiler = plan.require_compiler().command
    cxx = [*compiler, *_cxx_options(plan)]
    nvcc = _nvcc_command(plan) if plan.cuda else []
    noted = next((s for s in plan.sources if s.suffix != CUDA_SUFFIX), None)
    objects = []
    for position, source in enumerate(plan.sources):
        output = folder / f"{position}-{source.stem}.o"
        objects.append(output)
        options = ["-include", note] if source == noted else []
        argv = [*(nvcc if source.suffix == CUDA_SUFFIX else cxx), *options]
        argv += ["-MMD", "-MF", f"{output}.d", "-c", source, "-o", output]
        text = _edge("compile", output, [source], _step_name(plan, source), argv)
        yield _Edge(text, _cost(plan, source))
    binary = folder / plan.binary_name
    libraries = [f"-L{plan.cuda.require_toolkit().library_dir}"] if plan.cuda else []
    link_options = [*plan.environment_link_flags, *libraries, *plan.link_flags]
    argv = [*compiler, "-shared", *objects, "-o", binary, *link_options]
    # A compiler that was moved, or was built for one linker, can fail with another.
    faster = [[*argv, *plan.linker]] if plan.linker else []
    yield _Edge(_edge("link", binary, objects, plan.op, *faster, argv), 0)


def _cost(plan: BuildPlan, source: Path) -> int:
    """A guess at the time ``source`` takes, in bytes of C++ for one target."""
    size = bytes_to_compile(plan, source)
    return _NVCC_COST * len(plan.architectures) * size if source.suffix == CUDA_SUFFIX else size


def _include_options(plan: BuildPlan) -> list[str]:
    return [word for path in plan.include_dirs for word in ("-I", str(path))]


def _cxx_options(plan: BuildPlan) -> list[str]:
    # Messages name files by project folder: a binary says nothing of the machine that built it.
    folders = sorted({*plan.include_dirs, *(source.parent for source in plan.sources)})
    prefixes = [f"-ffile-prefix-map={path}={path.name}" for path in folders]
    return [*plan.flags, *_include_options(plan), *plan.environment_flags, *prefixes]


def _nvcc_command(plan: BuildPlan) -> list[str]:
    """nvcc with everything but the source: no header of torch is in reach of a kernel file."""
    toolkit = plan.cuda.require_toolkit()
    host = host_compiler(plan.require_compiler())
    return [
        *(str(toolkit.nvcc), "-ccbin", host),
        *(*plan.cuda.flags, *plan.cuda.gencode, *_include_options(plan)),
    ]


def _step_name(plan: BuildPlan, source: Path) -> str:
    return f"{plan.op}: {source.name}"


def write_ninja_file(plans: Sequence[BuildPlan], folders: Sequence[Path], path: Path) -> None:
    """Write the ninja file that builds each plan's binary in its folder, below ``path``'s."""
    edges: list[_Edge] = []
    for plan, folder in zip(plans, folders):
        note = folder / "note.h"
        _write_if_changed(note, note_header(plan.abi, plan.architectures))
        # Outputs are relative to the ninja file: its format can't hold every character of a path.
        relative = folder.relative_to(path.parent)
        edges += _plan_edges(plan, relative, relative / note.name)
    # ninja starts what is ready in the order of the file: the last jobs to end should be short.
    edges.sort(key=lambda edge: -edge.cost)
    text = _RULES + "".join(edge.text for edge in edges)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def _write_if_changed(path: Path, text: str) -> None:
    """An unchanged file keeps its time, so that nothing is recompiled for it."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except OSError:
        pass
    path.write_text(text, encoding="utf-8")


def first_diagnostics(output: str) -> str:
    """The first lines of ``output`` in which a compiler or linker says what is wrong."""
    lines = [line for line in output.splitlines() if line.strip()]
    telling = list(dict.fromkeys(line for line in lines if _DIAGNOSTIC.search(line)))
    return "\n".join((telling or lines[-_SHOWN_DIAGNOSTICS:])[:_SHOWN_DIAGNOSTICS])


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step whose program failed: the folder of its output, and what it printed."""

    folder: str
    output: str


def failed_steps(log: str) -> list[FailedStep]:
    """The steps that failed in a build whose output was ``log``, without the words of others."""
    steps: list[FailedStep] = []
    lines = iter(log.splitlines())
    for line in lines:
        failed = _FAILED.match(line)
        if not failed:
            continue
        next(lines, None)  # the command
        words = []
        for line in lines:
            if parse_step(line) or line.startswith("ninja: "):
                break
            words.append(line)
        steps.append(FailedStep(Path(failed[1]).parent.name, "\n".join(words)))
    return steps


def nvcc_threads(plans: Sequence[BuildPlan], jobs: int) -> int:
    """How many threads each nvcc may use where ``plans`` have fewer kernel files than ``jobs``."""
    cuda = [plan for plan in plans if plan.cuda is not None]
    if any((plan.cuda.require_toolkit().version or (0, 0)) < _SPLITTING_NVCC for plan in cuda):
        return 1
    sources = [source for plan in cuda for source in plan.sources if source.suffix == CUDA_SUFFIX]
    return max(1, jobs // max(1, len(sources)))


def run_ninja(
    folder: Path,
    jobs: int,
    log: Path,
    progress: Progress | None = None,
    inherited: Sequence[int] = (),
    threads: int = 1,
) -> None:
    """Run ``folder/build.ninja``; its output goes to ``log``, its finished steps to ``progress``.

    ``inherited``: file descriptors that stay open as long as a compiler runs. ``threads``: for
    each nvcc.

    Raises:
        BuildError: a compiler or linker failed; its details are the first diagnostics.
        ToolchainError: ninja is missing or does not start.
    """
    argv = [find_ninja(), "-C", str(folder), "-j", str(jobs)]
    with open(log, "wb") as stream:
        code = _wait(argv, stream, progress, inherited, _environment(threads))
    if code:
        output = log.read_text(encoding="utf-8", errors="replace")
        own = "\n".join(step.output for step in failed_steps(output))
        raise BuildError(f"ninja exited with {code}.", details=first_diagnostics(own or output))


def _environment(threads: int) -> dict[str, str]:
    environ = {**os.environ, "NINJA_STATUS": NINJA_STATUS, "LC_ALL": "C.UTF-8"}
    if threads > 1:
        # Not on the command line: another number of jobs is no reason to compile again.
        own = os.environ.get("NVCC_PREPEND_FLAGS", "")
        environ["NVCC_PREPEND_FLAGS"] = f"--split-compile={threads} {own}".rstrip()
    return environ


def _wait(
    argv: list[str],
    log: BinaryIO,
    progress: Progress | None,
    inherited: Sequence[int],
    environ: dict[str, str],
) -> int:
    """Run ``argv`` in a session of its own, so that an interrupt ends all its compilers."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
            pass_fds=tuple(inherited),
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
                if progress is not None:
                    progress.show(line.decode("utf-8", "replace"))
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        finally:
            if progress is not None:
                progress.close()
