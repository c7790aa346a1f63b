"""The ninja file, and what is read out of a failed build."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import CPUAdamBuilder, UtilsBuilder, binary_note, ninja_build
from deepspeed.ops.op_builder.errors import BuildError

LOG = """\
[1/4 0.1s] compile good: a.cpp
a.cpp:3:1: warning: this error is none
[2/4 0.2s] compile bad: b.cpp
FAILED: [code=1] bad/0-b.o
g++ -c b.cpp -o bad/0-b.o
b.cpp:1:1: error: expected unqualified-id
  and where
[3/4 0.3s] compile good: c.cpp
c.cpp:9:9: warning: another error that is none
ninja: build stopped: subcommand failed.
"""


def test_a_failed_step_is_told_from_the_words_of_others():
    (step,) = ninja_build.failed_steps(LOG)
    assert step.folder == "bad"
    assert step.output == "b.cpp:1:1: error: expected unqualified-id\n  and where"


def test_older_ninjas_name_no_exit_code():
    (step,) = ninja_build.failed_steps(LOG.replace("[code=1] ", "").replace("\n", " \n"))
    assert step.folder == "bad" and step.output.startswith("b.cpp:1:1: error")


def test_a_log_without_a_failed_step_has_none():
    assert ninja_build.failed_steps("") == []
    assert ninja_build.failed_steps("ninja: error: loading 'build.ninja'\n") == []


def build_file(tmp_path: Path) -> str:
    plans = [UtilsBuilder().plan(), CPUAdamBuilder().plan()]
    folders = [tmp_path / plan.op for plan in plans]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    ninja_build.write_ninja_file(plans, folders, tmp_path / "build.ninja")
    return (tmp_path / "build.ninja").read_text()


def test_the_longest_compilation_of_all_ops_comes_first(tmp_path):
    names = re.findall(r"name = (.*)", build_file(tmp_path))
    compilations = [name for name in names if ": " in name]
    assert compilations[0] == "cpu_adam: cpu_adam.cpp"
    assert compilations[-1] == "utils: flatten.cpp"


def test_the_same_plans_give_the_same_files(tmp_path):
    first = build_file(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/note.h")}
    assert build_file(tmp_path) == first and len(times) == 2
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_binary_says_what_it_was_built_for(tmp_path):
    plan = replace(UtilsBuilder().plan(), architectures=("sm_80", "compute_90"))
    ninja_build.write_ninja_file([plan], [tmp_path], tmp_path / "build.ninja")
    ninja_build.run_ninja(tmp_path, 2, tmp_path / "log")
    note = binary_note.read_note(tmp_path / "utils.so")
    assert note == binary_note.BinaryNote((2, 10), plan.abi, ("sm_80", "compute_90"))


def test_the_diagnostics_of_an_error_are_those_of_the_step_that_failed(tmp_path):
    broken, noisy = tmp_path / "broken.cpp", tmp_path / "noisy.cpp"
    broken.write_text("#warning a broken error\nint f( { return 0; }\n")
    noisy.write_text("#warning a noisy error\nint g() { return 0; }\n")
    plans = [
        replace(UtilsBuilder().plan(), op=path.stem, sources=(path,)) for path in (noisy, broken)
    ]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    ninja_build.write_ninja_file(plans, folders, tmp_path / "build.ninja")
    with pytest.raises(BuildError) as error:
        ninja_build.run_ninja(tmp_path, 1, tmp_path / "log")
    assert "broken.cpp:2" in error.value.details
    assert "noisy" not in error.value.details


def test_a_faster_linker_that_fails_gives_way_to_the_default_one(tmp_path):
    """As with a compiler that was moved: another linker doesn't find its libraries."""
    plan = replace(UtilsBuilder().plan(), linker=("-fuse-ld=no-such-linker",))
    ninja_build.write_ninja_file([plan], [tmp_path], tmp_path / "build.ninja")
    ninja_build.run_ninja(tmp_path, 2, tmp_path / "log")
    assert "no-such-linker" in (tmp_path / "log").read_text()
    assert binary_note.read_note(tmp_path / "utils.so") is not None
