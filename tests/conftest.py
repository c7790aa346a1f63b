"""Fixtures every test shares: an empty cache, a small op of our own, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

STABLE_SOURCE = """\
#include "addend.h"
#include <torch/csrc/stable/library.h>

static int64_t add(int64_t x) { return x + kAddend; }
STABLE_TORCH_LIBRARY(deepspeed_mini, m) { m.def("add(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(deepspeed_mini, CompositeExplicitAutograd, m) {
  m.impl("add", TORCH_BOX(&add));
}
"""

# Python's own C interface instead of torch/extension.h: as classic, and compiled in a second.
CLASSIC_SOURCE = """\
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {}};
static PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "mini_classic", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_mini_classic() { return PyModule_Create(&module_def); }
"""

BUILDERS = '''\
"""A stable and a classic op, as another distribution would declare them."""

import os

from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.errors import SelfCheckError

HERE = os.path.dirname(os.path.abspath(__file__))


class MiniBuilder(TorchCPUOpBuilder):
    NAME = "mini"
    BUILD_VAR = "DS_BUILD_MINI"
    functions = ("add",)

    def absolute_name(self):
        return "mini_package.mini_op"

    def sources(self):
        return [os.path.join(HERE, "mini.cpp")]

    def include_paths(self):
        return [os.path.join(HERE, "include")]

    def self_check(self, op):
        if op.add(1) != 2:
            raise SelfCheckError("1 + 1 is not 2.")


class ClassicBuilder(TorchCPUOpBuilder):
    NAME = "mini_classic"
    BUILD_VAR = "DS_BUILD_MINI_CLASSIC"

    def absolute_name(self):
        return "mini_package.mini_classic_op"

    def sources(self):
        return [os.path.join(HERE, "classic.cpp")]

    def self_check(self, op):
        if op.answer() != 42:
            raise SelfCheckError("The answer is not 42.")
'''


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in force here and in every process a test starts."""
    root = tmp_path / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))
    monkeypatch.delenv("DS_JIT", raising=False)
    return root


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """A folder with ``mini_builders.py`` and the sources of the ops it declares."""
    folder = tmp_path / "mini project"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "addend.h").write_text("#include <cstdint>\nconst int64_t kAddend = 1;\n")
    (folder / "mini.cpp").write_text(STABLE_SOURCE)
    (folder / "classic.cpp").write_text(CLASSIC_SOURCE)
    (folder / "mini_builders.py").write_text(BUILDERS)
    return folder


@pytest.fixture
def python(mini: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a fresh interpreter that can import deepspeed and ``mini_builders``."""

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            env=process_environment(mini, **environment),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def process_environment(mini: Path, **changes: str) -> dict[str, str]:
    """This process's environment, with the checkout and ``mini_builders`` importable."""
    path = os.pathsep.join([str(mini), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **changes}


LOAD = "from mini_builders import MiniBuilder; print(MiniBuilder().load().add(1))"
