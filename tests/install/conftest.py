"""Fixtures of the tests that install: source trees, environments, and wheels built once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.all_ops import BUILDERS

from tests.install.environments import (
    Environment,
    clean_variables,
    copy_project,
    is_build_tool,
    link_packages,
    make_environment,
)

#: Long on purpose: gcc names a header by its resolved path where that is shorter, so that folders
#: of links would give away the real one. No path of any kind may get into a binary.
_LINKED = "-".join(["packages-of-the-environment-that-runs-the-tests"] * 3)

#: The oldest pip that Python 3.11 and 3.12 bring, and what `pip install --upgrade pip` gives.
PIP_VERSIONS = ("23.2.1", "newest")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders that environments see: made on first use, then the same for all of them."""
    folder = tmp_path_factory.mktemp("visible")

    def get(name: str, make: Callable[[Path], object]) -> Path:
        if not (folder / name).exists():
            make(folder / name)
        return folder / name

    return get


def _install_pip(version: str) -> Callable[[Path], object]:
    requirement = "pip" if version == "newest" else f"pip=={version}"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", requirement]
    return lambda folder: subprocess.run(
        [*install, "--target", str(folder)], env=clean_variables(), check=True
    )


@pytest.fixture(scope="session")
def make_venv(shared, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes a fresh environment: with or without torch, and with the pip one likes."""

    def make(torch: bool = True, pip: str = "newest", *others: Path) -> Environment:
        tools = shared(f"pip-{pip}", _install_pip(pip))
        packages = (
            shared(_LINKED, lambda folder: link_packages(folder, lambda name: True))
            if torch
            else shared("build-tools", lambda folder: link_packages(folder, is_build_tool))
        )
        root = tmp_path_factory.mktemp("environment") / "env"
        environment = make_environment(root, [*others, tools, packages])
        environment.add_program("pip", "pip")
        return environment

    return make


@pytest.fixture
def venv(make_venv) -> Environment:
    """A fresh environment with torch and the newest pip."""
    return make_venv()


@pytest.fixture
def torchless(make_venv) -> Environment:
    """A fresh environment that has setuptools but no torch."""
    return make_venv(torch=False)


@pytest.fixture
def uv_environment(make_venv, tmp_path) -> Environment:
    """An activated environment whose packages uv takes for installed, torch among them."""
    environment = make_venv()
    for record in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        # The packages themselves are visible already; uv looks for these.
        if not record.name.startswith("deepspeed"):
            shutil.copytree(record, environment.site_packages / record.name)
    (environment.root / "bin" / "uv").symlink_to(Path(sysconfig.get_path("scripts"), "uv"))
    return Environment(environment.root, {**environment.variables, **environment.activated()})


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """A copy of this project that was never built."""
    return copy_project(tmp_path / "source")


@dataclass(frozen=True)
class Built:
    """A wheel, the source tree it was built in, its contents unpacked, and what was printed."""

    wheel: Path
    source: Path
    contents: Path
    output: str

    def names(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()


def build_wheel(environment: Environment, source: Path, **flags: str) -> Built:
    """The wheel that ``pip wheel .``, as typed, makes of ``source``."""
    folder = source.parent / "dist"
    done = environment.pip("wheel", "-v", "--no-deps", "-w", folder, ".", cwd=source, **flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    contents = source.parent / "contents"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(contents)
    return Built(wheel, source, contents, done.stdout + done.stderr)


@pytest.fixture(scope="session")
def plain(make_venv, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What an environment without torch builds when nothing is asked for."""
    source = copy_project(tmp_path_factory.mktemp("plain") / "source")
    return build_wheel(make_venv(torch=False), source)


@pytest.fixture(scope="session")
def with_ops(make_venv, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What `DS_BUILD_OPS=1 pip wheel .` builds, in pip's isolation, of the ops for CPUs."""
    source = copy_project(tmp_path_factory.mktemp("ops") / "source")
    gpu_ops = [b for b in BUILDERS.values() if not issubclass(b, TorchCPUOpBuilder)]
    off = {builder.BUILD_VAR: "0" for builder in gpu_ops}
    return build_wheel(make_venv(), source, DS_BUILD_OPS="1", **off)
