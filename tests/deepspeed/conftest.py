"""Fixtures of the package's tests: a bare checkout, its report, and an added distribution."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.conftest import make_venv, shared, source_tree, torchless, venv  # noqa: F401
from tests.install.environments import Result, clean_variables, copy_project

Report = Callable[..., Result[str]]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that was never installed or built. Nobody writes to it."""
    return copy_project(tmp_path_factory.mktemp("checkout") / "source")


@pytest.fixture
def variables(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """What a process needs to import ``checkout``, with a cache of this test's own."""
    own = {"PYTHONPATH": str(checkout), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    return {**clean_variables(), **own}


@pytest.fixture
def report(variables: dict[str, str], tmp_path: Path) -> Report:
    """Runs the report on the bare checkout, its output not a terminal."""

    def run(*arguments: str, path: Path | None = None, **changes: str) -> Result[str]:
        environ = {**variables, **changes}
        if path is not None:
            environ["PYTHONPATH"] = f"{path}:{environ['PYTHONPATH']}"
        return subprocess.run(
            [sys.executable, "-m", "deepspeed.env_report", *arguments],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=300,
        )

    return run


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., Path]:
    """Makes another distribution, which adds builders through its entry points."""

    def make(module: str, **entry_points: str) -> Path:
        folder = tmp_path / "other distribution"
        information = folder / "other-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / "other_ops.py").write_text(module)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        lines = [f"{name} = {target}\n" for name, target in entry_points.items()]
        (information / "entry_points.txt").write_text(
            "".join(["[deepspeed.op_builders]\n", *lines])
        )
        return folder

    return make
