"""Ahead of time: what ``setup.py`` needs to compile ops while a package is built.

Which ops to build comes from the ``DS_BUILD_*`` flags; how, from the same plans as just in time.
Commands that only ask for metadata compile nothing, need no torch, and never fail for an op.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

from . import environment, ninja_build, source_tree, target_env, toolchain
from .builder import OpBuilder
from .compatibility import check
from .errors import BuildError, ConfigurationError, ToolchainError
from .install_record import FILE_NAME, InstallRecord, describe_torch
from .jobs import compile_jobs
from .layout import prebuilt_candidates
from .process import ask
from .progress import Progress
from .version import BUILD_FILE, SourceVersion

_METADATA_COMMANDS = frozenset({"egg_info", "dist_info"})
_BUILD_COMMANDS = frozenset(
    {
        "build",
        "build_ext",
        "bdist",
        "bdist_wheel",
        "develop",
        "editable_wheel",
        "install",
    }
)

_NO_SWITCHES = frozenset({"DS_BUILD_STRING", "DS_BUILD_JOBS"})

# Says which op comes next, so that the last line names the one that stopped it.
_SMOKE_TEST = """\
import ctypes, json, os, sys, torch
for op, binary, namespace, functions in json.loads(sys.argv[1]):
    print(op, flush=True)
    ctypes.CDLL(binary, os.RTLD_NOW)
    missing = [f for f in functions if not hasattr(getattr(torch.ops, namespace), f)]
    if missing:
        sys.exit(f"It does not register {namespace}: {', '.join(missing)}.")
"""

_SHOWN_LINES = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """The ops to build, and why each other one is not."""

    enabled: tuple[OpBuilder, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


def compiles(argv: Sequence[str]) -> bool:
    """Whether the ``setup.py`` command line ``argv`` builds something.

    ``build_ext -j8 egg_info`` does not: pip puts a user's global options in front of its own
    request for metadata.
    """
    commands = [word for word in argv if word in _METADATA_COMMANDS | _BUILD_COMMANDS]
    return bool(commands) and commands[-1] not in _METADATA_COMMANDS


def select(builders: Iterable[OpBuilder]) -> Selection:
    """Choose ops by the flags: ``DS_BUILD_<OP>`` first, then ``DS_BUILD_OPS``.

    Raises:
        OpBuilderError: an op asked for by its own flag can't be built.
    """
    builders = list(builders)
    _require_known_flags(builders)
    asked = {builder.name: environment.switch(builder.BUILD_VAR) for builder in builders}
    all_of_them = environment.build_everything()
    if all_of_them or any(asked.values()):
        target_env.require_torch()
    enabled, skipped = [], {}
    for builder in builders:
        wanted = asked[builder.name]
        if wanted is False:
            skipped[builder.name] = f"{builder.BUILD_VAR}=0"
        elif wanted is None and not all_of_them:
            skipped[builder.name] = "not asked for"
        else:
            compatible = builder.buildable()
            if compatible:
                enabled.append(builder)
            elif wanted:
                raise _unable(builder, compatible.cause, compatible.mend)
            else:
                skipped[builder.name] = compatible.reason
                print(f"deepspeed: skipping op {builder.name}: {compatible.reason}")
    return Selection(tuple(enabled), skipped)


def _flags_switched_on() -> list[str]:
    flags = [name for name in sorted(os.environ) if name.startswith("DS_BUILD_")]
    return [name for name in flags if name not in _NO_SWITCHES and environment.switch(name)]


def _require_known_flags(builders: Sequence[OpBuilder]) -> None:
    """Nobody may believe that an op was built which does not exist here."""
    known = ["DS_BUILD_OPS", *(builder.BUILD_VAR for builder in builders)]
    unknown = [name for name in _flags_switched_on() if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]}={os.environ[unknown[0]]} asks for an op this version does not have.",
            f"Run `unset {unknown[0]}`; the flags there are: {', '.join(known)}.",
        )


def build_requirements(argv: Sequence[str]) -> list[str]:
    """What an isolated build has to install first: ninja, if ops are asked for and none is here.

    Only a frontend such as pip asks, in the same breath as for metadata. setuptools would answer a
    direct ``setup.py egg_info`` by downloading it.
    """
    asked_by_frontend = "setuptools.build_meta" in sys.modules and not compiles(argv)
    if not asked_by_frontend or not _flags_switched_on():
        return []
    target_env.make_importable()
    try:
        toolchain.find_ninja()
    except ToolchainError:
        return ["ninja"]
    return []


def _unable(builder: OpBuilder, cause: str, mend: str, details: str = "") -> BuildError:
    skip = f"Or set {builder.BUILD_VAR}=0 to skip it."
    return BuildError(
        f"Unable to pre-compile {builder.name}: {cause}", f"{mend} {skip}".strip(), details
    )


def setup_arguments(
    argv: Sequence[str], builders: Iterable[OpBuilder], source: SourceVersion, root: Path
) -> dict[str, object]:
    """The arguments of ``setuptools.setup`` for the checkout ``root`` that have to do with ops."""
    builders = list(builders)
    _accept_every_character()
    selection = select(builders) if compiles(argv) else Selection()
    options = source_tree.scratch_options(root)
    if selection.enabled:
        # Stable ops fit every Python from 3.10 on.
        options["bdist_wheel"] = {"py_limited_api": "cp310"}
    return {
        "ext_modules": [builder.builder() for builder in selection.enabled],
        "cmdclass": {
            "build_ext": BuildOps,
            "build_py": _recording_build_py(builders, selection, source),
            "sdist": _versioned_sdist(source),
        },
        "options": options,
    }


def _accept_every_character() -> None:
    """Let a log in ASCII get substitutes for the quotes of a compiler rather than no build."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class BuildOps(build_ext):
    """Compiles all ops in one pool of jobs, and loads each once to prove that it can be."""

    def run(self) -> None:
        if not self.extensions:
            return
        _accept_every_character()  # setuptools has undone it
        temporary = Path(self.build_temp).absolute()
        builders = [extension.op for extension in self.extensions]
        binaries = _compile(builders, temporary, self.parallel)
        _smoke_test(builders, binaries, temporary / "loaded")
        for extension, binary in zip(self.extensions, binaries):
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(binary, target)

    def get_ext_filename(self, fullname: str) -> str:
        folder = os.path.join(*fullname.split("."))
        extension = self.ext_map.get(fullname)
        if extension is not None and extension.py_limited_api:
            return folder + ".abi3.so"
        return super().get_ext_filename(fullname)


def _replace(source: Path, target: Path) -> None:
    """Copy ``source`` over ``target`` by rename: a process that has the old one loaded keeps it."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, aside)
    os.replace(aside, target)


def _compile(builders: Sequence[OpBuilder], temporary: Path, parallel: object) -> list[Path]:
    """Compile all ops below ``temporary``; their binaries."""
    plans = [builder.plan(ahead_of_time=True) for builder in builders]
    folders = [temporary / builder.name for builder in builders]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    ninja_build.write_ninja_file(plans, folders, temporary / "build.ninja")
    requested = parallel if isinstance(parallel, int) else None
    jobs = compile_jobs(max(plan.bytes_per_job for plan in plans), requested)
    print(f"deepspeed: building {', '.join(b.name for b in builders)} with {jobs} jobs", flush=True)
    log = temporary / "build.log"
    try:
        locks = source_tree.lock_descriptors()
        threads = ninja_build.nvcc_threads(plans, jobs)
        ninja_build.run_ninja(temporary, jobs, log, Progress(sys.stdout), locks, threads)
    except BuildError as error:
        raise _failed(builders, error, log) from None
    return [folder / plan.binary_name for folder, plan in zip(folders, plans)]


def _failed(builders: Sequence[OpBuilder], error: BuildError, log: Path) -> BuildError:
    """The error of a failed build, once the output of the first step that failed is shown."""
    failed = ninja_build.failed_steps(log.read_text(encoding="utf-8", errors="replace"))
    names = [step.folder for step in failed]
    culprit = next((builder for builder in builders if builder.name in names), builders[0])
    for step in failed[:1]:
        # In full, as far as it can be read: pip removes the log's folder in the end.
        print("\n".join(step.output.splitlines()[:_SHOWN_LINES]), flush=True)
    cause = f"{culprit.plan(ahead_of_time=True).compiler} failed; the whole output is in {log}."
    return _unable(culprit, cause, "Mend what it names below.", error.details)


def _smoke_test(builders: Sequence[OpBuilder], binaries: Sequence[Path], stamp: Path) -> None:
    """Resolve every symbol of the binaries in a process of its own, as a first use would, unless
    ``stamp`` says that these very files were."""
    tested = repr([(str(path), path.stat().st_mtime_ns) for path in binaries])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == tested:
        return
    torch = builders[0].require_torch()
    environ = {**os.environ, "PYTHONPATH": str(torch.root.parent)}
    ops = [(b.name, str(p), b.namespace, b.functions) for b, p in zip(builders, binaries)]
    argv = [sys.executable, "-c", _SMOKE_TEST, json.dumps(ops)]
    done = ask(argv, timeout=300, env=environ, cwd="/")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        begun = done.stdout.splitlines()
        raise _unable(
            builders[max(len(begun) - 1, 0)],
            "its binary was built but can't be loaded.",
            "Check the libraries and sources it lists.",
            lines[-1] if lines else f"exit status {done.returncode}",
        )
    stamp.write_text(tested, encoding="utf-8")


def _recording_build_py(
    builders: Sequence[OpBuilder], selection: Selection, source: SourceVersion
) -> type[build_py]:
    """A ``build_py`` that leaves the install record beside the package's modules."""

    class BuildPy(build_py):
        def run(self) -> None:
            if self.editable_mode:
                self._remove_unasked()
                package = Path(self.get_package_dir("deepspeed"))
            else:
                self._remove_leftovers()
                package = Path(self.build_lib, "deepspeed")
            super().run()
            record = _record(builders, selection, source)
            (package / FILE_NAME).write_text(record, encoding="utf-8")

        def _remove_unasked(self) -> None:
            """Drop binaries that an earlier editable install left in the checkout."""
            for builder in builders:
                if builder not in selection.enabled:
                    for path in prebuilt_candidates(builder.absolute_name()):
                        path.unlink()

        def _remove_leftovers(self) -> None:
            """Drop what an earlier build with other flags left in the folder wheels are made of."""
            outputs = self.get_finalized_command("build_ext").get_outputs()
            current = {Path(output).absolute() for output in outputs}
            for path in Path(self.build_lib, "deepspeed").absolute().rglob("*"):
                if path.is_file() and path not in current:
                    path.unlink()

    return BuildPy


def _versioned_sdist(source: SourceVersion) -> type[sdist]:
    """An ``sdist`` whose archive, which has no git, makes the version it is named by."""

    class Sdist(sdist):
        def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
            super().make_release_tree(base_dir, files)
            build_file = Path(base_dir, BUILD_FILE)
            if source.git_hash != "unknown" and not build_file.exists():
                build_file.write_text(f"+{source.git_hash}\n", encoding="utf-8")

    return Sdist


def _record(builders: Sequence[OpBuilder], selection: Selection, source: SourceVersion) -> str:
    # What is compatible is a question about the environment being installed into.
    target_env.make_importable()
    torch = selection.enabled[0].require_torch() if selection.enabled else None
    return InstallRecord(
        source=source,
        torch_info=describe_torch(torch),
        installed_ops={builder.name: builder in selection.enabled for builder in builders},
        compatible_ops={builder.name: check(builder).ok for builder in builders},
        skipped_ops=selection.skipped,
        op_architectures={
            builder.name: list(builder.plan(ahead_of_time=True).architectures)
            for builder in selection.enabled
        },
        build_flags=environment.build_flags_in_force(),
    ).to_python()
