"""``import deepspeed``: silent, cheap and safe, with or without torch, installed or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.environments import Environment, Result, files_of

Python = Callable[..., Result[str]]

#: Ends the process as soon as it starts another one, or opens a GPU's device file or library.
WATCH = """
import sys
def forbid(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system"):
        sys.exit(f"a process was started: {event} {arguments}")
    name = str(arguments[0]) if event in ("open", "ctypes.dlopen") else ""
    if name.startswith("/dev/nvidia") or "libcuda.so" in name:
        sys.exit(f"a GPU was touched: {event} {arguments}")
sys.addaudithook(forbid)
"""

EXPENSIVE = (
    *("torch", "torch.utils.cpp_extension", "setuptools", "distutils", "ninja", "filelock"),
    *("subprocess", "multiprocessing", "deepspeed.ops.op_builder.toolchain"),
)


@pytest.fixture
def python(variables: dict[str, str], tmp_path: Path) -> Python:
    """Runs a program that can import the bare checkout."""

    def run(program: str, *options: str, **changes: str) -> Result[str]:
        return subprocess.run(
            [sys.executable, *options, "-c", program],
            env={**variables, **changes},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def silent(done: Result[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def error_line(done: Result[str]) -> str:
    assert done.returncode == 1 and done.stdout == "", done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("options", [[], ["-S"]], ids=["with torch", "without torch"])
def test_import_is_silent_and_starts_nothing(python, options):
    silent(python(f"{WATCH}\nimport deepspeed, deepspeed.ops", "-W", "error", *options))


def test_import_brings_in_neither_torch_nor_compiler_code(python):
    program = f"import sys, deepspeed, deepspeed.ops; print(set({EXPENSIVE!r}) & set(sys.modules))"
    assert python(program).stdout == "set()\n"


def test_import_of_all_builders_starts_nothing(python):
    """Where a probe at import would warn, fail, or touch CUDA before a fork."""
    program = f"{WATCH}\nfrom deepspeed.ops.op_builder import ALL_OPS, CPUAdamBuilder"
    # Without a toolkit too: what a machine lacks is an error of load(), not of import.
    for changes in ({}, {"CUDA_HOME": "", "PATH": ""}):
        silent(python(program, "-W", "error", **changes))


def test_compatibility_of_every_op_touches_no_gpu(python):
    program = f"{WATCH}\nimport deepspeed.ops as ops; print(ops.__compatible_ops__)"
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert "'utils': True" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("name", ["initialize", "init_inference", "zero", "comm", "moe"])
def test_name_of_the_training_engine_raises_one_sentence(python, name):
    line = error_line(python(f"import deepspeed; deepspeed.{name}"))
    assert line == (
        f"AttributeError: deepspeed.{name} belongs to DeepSpeed's training engine, which this "
        "distribution of the ops does not contain. Install the engine in an environment of its "
        "own: `pip install deepspeed` from PyPI."
    )


def test_any_other_name_is_a_plain_typo(python):
    line = error_line(python("import deepspeed; deepspeed.initialise"))
    assert line == "AttributeError: module 'deepspeed' has no attribute 'initialise'"
    assert python("import deepspeed; print(hasattr(deepspeed, 'zero'))").stdout == "False\n"


def test_engine_class_can_be_asked_about_but_not_made(python):
    program = """
import deepspeed
from deepspeed import DeepSpeedEngine
print(isinstance(object(), deepspeed.DeepSpeedEngine), isinstance(1, (int, DeepSpeedEngine)))
try:
    DeepSpeedEngine(model=None)
except NotImplementedError as error:
    print(error)
"""
    first, second = python(program).stdout.splitlines()
    assert first == "False True"
    assert second.startswith("deepspeed.DeepSpeedEngine belongs to DeepSpeed's training engine")


def test_version_and_commit_are_attributes(python, checkout):
    program = (
        "import deepspeed as d; print(d.__version__, d.__git_hash__, d.__git_branch__, "
        "'__version__' in d.__all__)"
    )
    version = (checkout / "version.txt").read_text().strip()
    assert python(program).stdout == f"{version} unknown unknown True\n"


DAMAGED = {
    "empty": b"",
    "cut": b"version = '0.1.0'\ninstalled_ops = {'utils': Tr",
    "zeros": b"\0" * 512,
    "not utf-8": b"version = '\xff\xfe'\n",
    "raising": b"import a_module_that_is_gone\n",
    "of other types": b"version = 3\ninstalled_ops = None\ntorch_info = 'x'\nskipped_ops = []\n",
    "incomplete": b"version = '0.1.0'\ntorch_info = {}\ninstalled_ops = {'utils': True}\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_install_record_is_survived(python, source_tree, content):
    (source_tree / "deepspeed/git_version_info_installed.py").write_bytes(content)
    program = (
        "import deepspeed; from deepspeed import git_version_info as g; "
        "from deepspeed.env_report import main; main(); "
        "assert isinstance(g.version, str) and isinstance(g.installed_ops, dict); "
        "assert g.torch_info['version'] == '0.0'; print(deepspeed.__version__)"
    )
    done = python(program, "-W", "error", PYTHONPATH=str(source_tree))
    assert (done.returncode, done.stderr) == (0, "")
    version = (source_tree / "version.txt").read_text().strip()
    assert done.stdout.splitlines()[-1] == version


def test_builder_names_are_constants(python):
    program = """
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder import builder_names
from deepspeed.ops.op_builder.builder_names import CPUAdamBuilder
assert CPUAdamBuilder == "CPUAdamBuilder"
for name in builder_names.__all__:
    assert getattr(op_builder, name).__name__ == getattr(builder_names, name) == name
print(len(builder_names.__all__) == len(op_builder.ALL_OPS) > 4, name in dir(op_builder))
"""
    assert python(program).stdout == "True True\n"


LAYOUT = """
import deepspeed
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder.all_ops import ALL_OPS
print(deepspeed.__file__)
print(op_builder.__file__)
for op in ALL_OPS.values():
    for source in op.plan().sources:
        print(source)
"""


def test_bare_checkout_finds_builders_and_sources(python, checkout):
    lines = python(LAYOUT).stdout.splitlines()
    assert lines[:2] == [f"{checkout}/deepspeed/__init__.py", f"{checkout}/op_builder/__init__.py"]
    assert len(lines) > 6 and all(line.startswith(f"{checkout}/csrc/") for line in lines[2:])


@pytest.mark.slow
def test_installed_wheel_finds_builders_and_sources(source_tree, venv: Environment):
    done = venv.pip("install", "--no-deps", "--no-build-isolation", ".", cwd=source_tree)
    assert done.returncode == 0, done.stderr
    package = venv.site_packages / "deepspeed"
    lines = venv.python("-W", "error", "-c", LAYOUT).stdout.splitlines()
    assert lines[:2] == [f"{package}/__init__.py", f"{package}/ops/op_builder/__init__.py"]
    assert all(line.startswith(f"{package}/ops/csrc/") for line in lines[2:])
    silent(venv.python("-W", "error", "-c", f"{WATCH}\nimport deepspeed"))
    assert not files_of(package, "*.so")
