"""The DS_BUILD_* flags: which ops are skipped, which stop the install, and in what words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.install.environments import (
    Environment,
    Result,
    fake_torch,
    files_of,
    path_with_only,
)

pytestmark = pytest.mark.slow

#: What pip and git-less Python builds run besides compilers.
_FEW_TOOLS = ("sh",)


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """Variables under which no compiler is found."""
    return {"PATH": path_with_only(tmp_path / "few tools", *_FEW_TOOLS)}


@pytest.fixture
def failing_compiler(tmp_path: Path) -> dict[str, str]:
    """Variables under which the compiler objects to every file."""
    program = tmp_path / "failing-g++"
    program.write_text('#!/bin/sh\necho "any.cpp:7:1: error: I dislike this line" >&2\nexit 1\n')
    program.chmod(0o755)
    return {"CXX": str(program)}


def bdist_wheel(venv: Environment, source: Path, **flags: str) -> Result[str]:
    return venv.python("setup.py", "bdist_wheel", cwd=source, **flags)


def binaries_of(source: Path) -> list[str]:
    (package,) = source.glob("build/lib*/deepspeed")
    return [Path(name).name.split(".")[0] for name in files_of(package, "*.abi3.so")]


def error_of(done: Result[str]) -> str:
    """The text of setup.py's own error, which must end the output and be no traceback."""
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    error = re.search(r"^error: (.*)", done.stderr, re.MULTILINE | re.DOTALL)
    assert error, done.stderr
    return error[1]


def test_all_ops_without_torch_say_how_to_get_it(source_tree, torchless):
    flags = {"DS_BUILD_OPS": "1", "DS_BUILD_UTILS": "0"}
    done = torchless.pip("install", "--no-deps", ".", cwd=source_tree, **flags)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "Pre-compiling ops needs torch, and none is installed" in output
    assert "`pip install 'torch>=2.10' ninja" in output
    command = "`DS_BUILD_OPS=1 DS_BUILD_UTILS=0 pip install --no-build-isolation .`"
    assert command in output
    assert not files_of(torchless.site_packages, "deepspeed*")
    # uv hides the environment for good; its users have no pip.
    done = bdist_wheel(torchless, source_tree, DS_BUILD_CPU_ADAM="1", UV="/usr/bin/uv")
    assert "`DS_BUILD_CPU_ADAM=1 uv pip install --no-build-isolation .`" in error_of(done)


def test_one_op_without_a_compiler_stops_the_build(source_tree, venv, no_compiler):
    done = bdist_wheel(venv, source_tree, DS_BUILD_CPU_ADAM="1", **no_compiler)
    text = error_of(done)
    assert text.startswith("Unable to pre-compile cpu_adam: No C++ compiler was found")
    assert "g++" in text and "install" in text and "DS_BUILD_CPU_ADAM=0" in text
    assert not (source_tree / "dist").exists()


def test_compiler_error_is_shown_with_op_log_and_mend(source_tree, venv, failing_compiler):
    done = bdist_wheel(venv, source_tree, DS_BUILD_CPU_ADAM="1", **failing_compiler)
    text = error_of(done)
    assert text.startswith(f"Unable to pre-compile cpu_adam: {failing_compiler['CXX']} failed")
    assert "set DS_BUILD_CPU_ADAM=0 to skip it" in text
    assert "\n    any.cpp:7:1: error: I dislike this line\n" in text
    log = Path(re.search(r"whole output is in (\S+build\.log)\.", text)[1])
    assert "I dislike this line" in log.read_text()
    assert not (source_tree / "dist").exists()


def test_compiler_output_that_the_log_cant_hold_is_no_traceback(source_tree, venv, tmp_path):
    program = tmp_path / "failing-g++"
    program.write_text("#!/bin/sh\necho 'any.cpp:1: error: expected ‘;’' >&2\nexit 1\n")
    program.chmod(0o755)
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    flags = {"DS_BUILD_UTILS": "1", "CXX": str(program), **ascii_only}
    assert "error: expected \\u2018;\\u2019" in error_of(bdist_wheel(venv, source_tree, **flags))


def test_failed_install_leaves_the_older_version_working(source_tree, venv, failing_compiler):
    options = ["install", "--no-deps", "--no-build-isolation", "."]
    assert venv.pip(*options, cwd=source_tree, DS_BUILD_STRING="+older").returncode == 0
    done = venv.pip(*options, cwd=source_tree, DS_BUILD_CPU_ADAM="1", **failing_compiler)
    assert done.returncode == 1
    assert "Unable to pre-compile cpu_adam" in done.stdout + done.stderr
    assert "I dislike this line" in done.stdout + done.stderr
    report = venv.ds_report("--json")
    assert report.returncode == 0, report.stderr
    assert "+older" in json.loads(report.stdout)["environment"]["deepspeed info"]


def test_all_ops_without_a_compiler_install_and_the_reasons_stay(source_tree, venv, no_compiler):
    options = ["install", "-v", "--no-deps", "--no-build-isolation", "."]
    done = venv.pip(*options, cwd=source_tree, DS_BUILD_OPS="1", **no_compiler)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for op in ("cpu_adam", "cpu_adagrad", "cpu_lion", "utils"):
        assert f"skipping op {op}: No C++ compiler was found" in output
    # pip shows this with -v only, so the report has to know.
    report = json.loads(venv.ds_report("--json").stdout)
    assert "No C++ compiler was found" in report["ops"]["utils"]["not_installed_because"]
    assert report["environment"]["flags while installing"] == "DS_BUILD_OPS=1"
    text = venv.ds_report().stdout
    assert "not installed: No C++ compiler was found" in text
    assert re.search(r"^flags while installing \.+ DS_BUILD_OPS=1$", text, re.MULTILINE)


def test_an_op_switched_off_is_left_out_of_all_ops(source_tree, venv):
    off = {f"DS_BUILD_{op}": "off" for op in ("CPU_ADAM", "CPU_ADAGRAD", "CPU_LION", "QUANTIZER")}
    done = bdist_wheel(venv, source_tree, DS_BUILD_OPS="yes", **off)
    assert done.returncode == 0, done.stderr
    assert binaries_of(source_tree) == ["utils_op"]
    record = next(source_tree.glob("build/lib*/deepspeed/git_version_info_installed.py"))
    assert "'cpu_adam': 'DS_BUILD_CPU_ADAM=0'" in record.read_text()


def test_nothing_is_built_by_empty_flags(source_tree, venv):
    done = bdist_wheel(venv, source_tree, DS_BUILD_OPS="", DS_BUILD_UTILS=" ")
    assert done.returncode == 0, done.stderr
    assert binaries_of(source_tree) == []


@pytest.mark.parametrize("flag", ["DS_BUILD_OPS", "DS_BUILD_UTILS"])
def test_a_value_that_is_neither_on_nor_off_is_quoted(source_tree, venv, flag):
    text = error_of(bdist_wheel(venv, source_tree, **{flag: "maybe"}))
    assert text.startswith(f"{flag}='maybe' is neither on nor off. Use one of 0/1/true/false")


def test_an_op_that_does_not_exist_is_not_passed_over(source_tree, venv):
    text = error_of(bdist_wheel(venv, source_tree, DS_BUILD_UTILS="1", DS_BUILD_UTIL="1"))
    assert text.startswith("DS_BUILD_UTIL=1 asks for an op this version does not have.")
    assert "DS_BUILD_UTILS" in text
    assert bdist_wheel(venv, source_tree, DS_BUILD_UTIL="0").returncode == 0


def test_a_source_missing_from_an_op_is_caught_by_the_build(source_tree, venv):
    file = source_tree / "op_builder/cpu_lion.py"
    text = file.read_text()
    file.write_text(text.replace(', "csrc/lion/cpu_lion_kernels.cpp"', ""))
    assert file.read_text() != text
    flags = {"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_LION": "1"}
    message = error_of(bdist_wheel(venv, source_tree, **flags))
    assert message.startswith("Unable to pre-compile cpu_lion: its binary was built but can't be")
    assert "undefined symbol" in message and "DS_BUILD_CPU_LION=0" in message


def test_linker_error_is_the_one_shown(source_tree, venv):
    flags = {"DS_BUILD_UTILS": "1", "LDFLAGS": "-lno-such-library"}
    message = error_of(bdist_wheel(venv, source_tree, **flags))
    assert message.startswith("Unable to pre-compile utils: ")
    assert "no-such-library" in message


@pytest.mark.parametrize(
    ("version", "hip", "cause"),
    [
        ("2.9.1+cu128", None, "torch 2.9.1+cu128 is older than 2.10"),
        ("2.13.0+rocm7.1", "7.1.0", "torch 2.13.0+rocm7.1 is a ROCm build (HIP 7.1.0)"),
    ],
)
def test_a_torch_that_does_not_do_is_named(source_tree, torchless, tmp_path, version, hip, cause):
    path = str(fake_torch(tmp_path / "fake", version, hip=hip))
    one = bdist_wheel(torchless, source_tree, DS_BUILD_UTILS="1", PYTHONPATH=path)
    assert error_of(one).startswith(f"Unable to pre-compile utils: {cause}")
    everything = bdist_wheel(torchless, source_tree, DS_BUILD_OPS="1", PYTHONPATH=path)
    assert everything.returncode == 0, everything.stderr
    assert f"skipping op utils: {cause}" in everything.stdout
    assert binaries_of(source_tree) == []


METADATA_COMMANDS = [
    ["egg_info"],
    ["dist_info"],
    ["build_ext", "-j8", "egg_info"],
    ["build_ext", "-j8", "dist_info"],
]


@pytest.mark.parametrize("command", METADATA_COMMANDS, ids=" ".join)
def test_metadata_needs_no_torch_no_compiler_and_no_network(
    source_tree, torchless, no_compiler, command
):
    done = torchless.python(
        *("setup.py", *command),
        cwd=source_tree,
        DS_BUILD_OPS="1",
        DS_BUILD_CPU_ADAM="1",
        PIP_NO_INDEX="1",
        **no_compiler,
    )
    assert done.returncode == 0, done.stderr
    assert not (source_tree / "build").exists() and not files_of(source_tree, "*.o")
    assert not (source_tree / ".eggs").exists()
    assert files_of(source_tree, "PKG-INFO") or files_of(source_tree, "METADATA")


def test_metadata_hooks_of_frontends_compile_nothing(source_tree, torchless, no_compiler, tmp_path):
    program = """
import sys
from setuptools import build_meta
settings, folder = {"--global-option": ["build_ext", "-j8"]}, sys.argv[1]
needed = build_meta.get_requires_for_build_wheel(settings)
build_meta.prepare_metadata_for_build_wheel(folder, settings)
print("needed:", needed)
"""
    # An isolated build has to bring ninja where none is, if ops are asked for.
    for flag, needed in (("1", "['ninja']"), ("", "[]")):
        flags = {**no_compiler, "DS_BUILD_OPS": flag}
        done = torchless.python("-c", program, tmp_path, cwd=source_tree, **flags)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"needed: {needed}"
    assert files_of(tmp_path, "METADATA") and not files_of(source_tree, "*.o")
