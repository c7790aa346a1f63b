"""Fresh virtual environments and clean copies of this project, cheap enough for every test.

An environment is a real one, with an interpreter and a site-packages folder of its own. What it
shall hold besides (torch, setuptools, one pip or another) it sees through a ``.pth`` file, so that
nothing is downloaded or copied twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT

#: Of the environment the tests run in, nobody may see these: each test has its own.
_NEVER_SHARED = ("deepspeed", "__editable__", "pip")

#: What remains of it for an environment without torch: what ``setup.py`` itself needs.
_BUILD_TOOLS = ("setuptools", "_distutils_hack", "wheel", "packaging", "build", "pyproject_hooks")

_COMPILER_VARIABLES = ("CC", "CXX", "CPPFLAGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "MAX_JOBS")
_PREFIXES = ("DS_", "PYTHON", "TORCH_", "CUDA", "GIT_", "VIRTUAL_ENV", "CONDA", "UV")

Result = subprocess.CompletedProcess


def clean_variables() -> dict[str, str]:
    """This process's environment variables without any that steer a build."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIXES) and name not in _COMPILER_VARIABLES
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the variables its programs run with."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def interpreter(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / version / "site-packages"

    def run(self, *argv: object, cwd: Path | None = None, **changes: str) -> Result[str]:
        """Run a program; by default from a folder in which nothing can be imported."""
        return subprocess.run(
            [str(word) for word in argv],
            cwd=cwd or self.root,
            env={**self.variables, **changes},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def python(self, *arguments: object, cwd: Path | None = None, **changes: str) -> Result[str]:
        return self.run(self.interpreter, *arguments, cwd=cwd, **changes)

    def pip(self, *arguments: object, cwd: Path | None = None, **changes: str) -> Result[str]:
        return self.python("-m", "pip", *arguments, cwd=cwd, **changes)

    def add_program(self, name: str, module: str) -> None:
        """Let ``name``, called from this environment, run ``module``."""
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{self.interpreter}" -m {module} "$@"\n')
        path.chmod(0o755)

    def activated(self, *folders: str) -> dict[str, str]:
        """Variables as its ``activate`` sets them. Of other programs only the system's are on
        PATH, and those in ``folders``: a command of a guide must not reach another Python."""
        path = [str(self.root / "bin"), *folders, "/usr/local/bin", "/usr/bin", "/bin"]
        return {"VIRTUAL_ENV": str(self.root), "PATH": os.pathsep.join(path)}

    def ds_report(self, *arguments: object, **changes: str) -> Result[str]:
        return self.run(self.root / "bin" / "ds_report", *arguments, **changes)


def link_packages(folder: Path, wanted: Callable[[str], bool]) -> Path:
    """A folder of links to the packages of the running environment that ``wanted`` names."""
    folder.mkdir()
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(source).iterdir():
            hidden = path.name.startswith(_NEVER_SHARED) or path.suffix == ".pth"
            if wanted(path.name) and not hidden:
                (folder / path.name).symlink_to(path)
    return folder


def is_build_tool(name: str) -> bool:
    """Whether ``name`` in site-packages belongs to what ``setup.py`` needs without torch."""
    return name.split("-")[0] in _BUILD_TOOLS


def make_environment(root: Path, visible: Iterable[Path]) -> Environment:
    """A new virtual environment at ``root`` that also sees the folders ``visible``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    environment = Environment(
        root,
        # Nothing built on first use lands in, or comes out of, the developer's own cache.
        {**clean_variables(), "TORCH_EXTENSIONS_DIR": str(root / "extensions")},
    )
    lines = "".join(f"{folder}\n" for folder in visible)
    (environment.site_packages / "visible.pth").write_text(lines)
    ninja = Path(sysconfig.get_path("scripts"), "ninja")
    if ninja.exists():
        (root / "bin" / "ninja").symlink_to(ninja)
    return environment


def _project_files() -> list[str]:
    """The project's own files: what git knows or would add; without git, all but leftovers."""
    argv = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        done = None
    if done is not None and done.returncode == 0:
        return [name for name in done.stdout.split("\0") if (ROOT / name).is_file()]
    leftovers = {"build", "dist", "__pycache__", "git_version_info_installed.py"}
    return [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.is_file()
        and path.suffix not in (".so", ".o")
        and not any(
            part in leftovers or part.startswith(".") or part.endswith(".egg-info")
            for part in path.relative_to(ROOT).parts
        )
    ]


def copy_project(target: Path) -> Path:
    """A copy of this project's files in the new folder ``target``, without any earlier build."""
    for name in _project_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


def path_with_only(folder: Path, *programs: str) -> str:
    """A value of PATH on which only ``programs`` are found."""
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(shutil.which(program))
    return str(folder)


def files_of(folder: Path, pattern: str) -> list[str]:
    """The files below ``folder`` that match ``pattern``, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(pattern))


def fake_torch(folder: Path, version: str, cuda: str | None = None, hip: str | None = None) -> Path:
    """A torch as far as its files tell."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("")
    values = {"__version__": version, "cuda": cuda, "hip": hip}
    text = "".join(f"{name}: Optional[str] = {value!r}\n" for name, value in values.items())
    (folder / "torch/version.py").write_text("from typing import Optional\n" + text)
    return folder
