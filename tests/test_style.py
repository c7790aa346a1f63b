"""The sources read as one hand wrote them: ruff and clang-format, in the pinned versions."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CXX_SOURCES = sorted(
    path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh")
)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("command", [["check"], ["format", "--check", "--diff"]], ids=" ".join)
def test_python(command):
    done = run(sys.executable, "-m", "ruff", *command, ".", "bin/ds_report")
    assert done.returncode == 0, done.stdout + done.stderr


def test_cxx():
    assert CXX_SOURCES
    program = Path(sys.executable).with_name("clang-format")
    done = run(str(program), "--dry-run", "-Werror", *map(str, CXX_SOURCES))
    assert done.returncode == 0, done.stderr


def test_modules_stay_readable():
    long = {
        str(path.relative_to(ROOT)): length
        for folder in ("op_builder", "deepspeed", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cpp", ".cu")
        and (length := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long, f"split these: {long}"
