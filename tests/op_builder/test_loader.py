"""Prebuilt binaries that are wrong on purpose: refused with cause and mend, and built anew."""

import os
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import ninja_build
from deepspeed.ops.op_builder.binary_note import read_note

from tests.install.environments import fake_torch
from tests.op_builder.test_gpus import make_driver

LOAD_TWICE = """
from mini_builders import MiniBuilder
for _ in range(2):
    print(MiniBuilder().load().add(1))
"""
PREBUILT = "from mini_builders import MiniBuilder; print(MiniBuilder().prebuilt())"


@pytest.fixture
def prebuilt(mini, cache_root, python, monkeypatch) -> Path:
    """The installed binary of op mini, as good as it was built; nothing is cached."""
    package = mini / "mini_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    binary = package / "mini_op.abi3.so"
    build(mini, binary, monkeypatch)
    done = python(LOAD_TWICE, DS_JIT="0")
    assert done.stdout == "2\n2\n" and not done.stderr, done.stderr
    return binary


def build(mini: Path, binary: Path, monkeypatch, architectures: tuple[str, ...] = ()) -> None:
    monkeypatch.syspath_prepend(str(mini))
    from mini_builders import MiniBuilder

    folder = mini / "build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    builder = MiniBuilder()
    builder.sources = lambda: [str(mini / "mini.cpp")]
    builder.include_paths = lambda: [str(mini / "include")]
    plan = replace(builder.plan(), architectures=architectures)
    ninja_build.write_ninja_file([plan], [folder], folder / "build.ninja")
    ninja_build.run_ninja(folder, 2, folder / "log")
    shutil.copy(folder / plan.binary_name, binary)


def change(binary: Path, old: bytes, new: bytes) -> None:
    content = binary.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    binary.write_bytes(content.replace(old, new))


def refused_then_built(python, *causes: str, **variables: str) -> None:
    """The op is refused for ``causes`` where nothing may be built; else it is built, and said so
    once."""
    done = python(LOAD_TWICE, DS_JIT="0", **variables)
    assert done.returncode == 1 and "can't be loaded: " in done.stderr, done.stderr
    for cause in (*causes, "DS_JIT=0 forbids", "`DS_JIT=1 ds_report --verify mini`"):
        assert cause in done.stderr
    assert python(PREBUILT, **variables).stdout == "None\n"
    done = python(LOAD_TWICE, **variables)
    assert done.stdout == "2\n2\n", done.stderr
    assert done.stderr.count("was built just in time instead") == 1
    for cause in causes:
        assert cause in done.stderr


def test_a_binary_for_a_newer_torch_is_refused_naming_both(prebuilt, python):
    import torch

    change(prebuilt, b"0x020a000000000000", b"0x0263000000000000")
    assert read_note(prebuilt).torch_target == (2, 99)
    refused_then_built(python, f"built for torch 2.99 and newer, and torch {torch.__version__} is")


def test_a_target_that_the_users_flags_raised_is_the_one_that_counts(mini, prebuilt, monkeypatch):
    flags = "-UTORCH_TARGET_VERSION -DTORCH_TARGET_VERSION=0x020b000000000000"
    monkeypatch.setenv("CXXFLAGS", flags)
    build(mini, prebuilt, monkeypatch)
    assert read_note(prebuilt).torch_target == (2, 11)


def test_a_binary_for_another_machine_is_refused_naming_both(prebuilt, python):
    content = bytearray(prebuilt.read_bytes())
    content[18:20] = {"x86_64": 183, "aarch64": 62}[platform.machine()].to_bytes(2, "little")
    prebuilt.write_bytes(content)
    refused_then_built(python, "x86_64", "aarch64")


def test_a_truncated_binary_is_refused_with_its_size(prebuilt, python):
    os.truncate(prebuilt, 4999)
    refused_then_built(python, "is truncated (4999 bytes)")


def test_a_binary_without_code_for_the_gpu_is_refused_before_any_launch(
    mini, prebuilt, python, monkeypatch, tmp_path
):
    build(mini, prebuilt, monkeypatch, architectures=("sm_75", "sm_80"))
    with_gpus = make_driver(tmp_path / "driver", [(8, 6), (9, 0)])
    refused_then_built(python, "built for sm_75, sm_80,", "capability 9.0.", **with_gpus)


@pytest.mark.parametrize("gpus", [[], [(8, 6)], [(7, 5), (8, 9)]], ids=str)
def test_a_binary_with_code_for_every_visible_gpu_is_loaded(
    mini, prebuilt, python, monkeypatch, tmp_path, gpus
):
    build(mini, prebuilt, monkeypatch, architectures=("sm_75", "sm_80"))
    with_gpus = make_driver(tmp_path / "driver", gpus)
    done = python(LOAD_TWICE, DS_JIT="0", **with_gpus)
    assert done.stdout == "2\n2\n" and not done.stderr


def test_torch_2_9_is_refused_whatever_is_installed(mini, prebuilt, python, tmp_path):
    old = fake_torch(tmp_path / "old", "2.9.1+cpu")
    program = f"import sys; sys.path.insert(0, {str(old)!r})\n" + LOAD_TWICE
    done = python(program)
    assert done.returncode == 1
    assert "torch 2.9.1+cpu is older than 2.10, the oldest this op runs with." in done.stderr
    assert "pip install 'torch>=2.10'" in done.stderr


def test_a_binary_of_another_build_system_has_no_note_and_is_loaded(prebuilt, python, tmp_path):
    argv = ["objcopy", "--remove-section", ".deepspeed", str(prebuilt), str(tmp_path / "bare.so")]
    subprocess.run(argv, check=True)
    shutil.move(tmp_path / "bare.so", prebuilt)
    assert read_note(prebuilt) is None
    assert python(LOAD_TWICE, DS_JIT="0").stdout == "2\n2\n"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"torch_target": 7, "abi": []}', b"\xff\xfe"])
def test_a_damaged_note_is_no_note(prebuilt, content):
    note = prebuilt.with_name("note")
    note.write_bytes(content.ljust(16, b"\0"))
    argv = ["objcopy", "--update-section", f".deepspeed={note}", str(prebuilt)]
    subprocess.run(argv, check=True)
    assert read_note(prebuilt) is None


def test_a_binary_without_any_code_for_gpus_is_refused_where_it_is_wanted(prebuilt, python):
    """An op for both that was built on a machine without a GPU."""
    wanting = (
        "from deepspeed.ops.op_builder.builder import OpBuilder\n"
        "OpBuilder.wants_gpu_code = lambda self, ahead_of_time=False: True\n"
    )
    done = python(wanting + LOAD_TWICE, DS_JIT="0")
    assert done.returncode == 1
    assert f"{prebuilt} holds no code for GPUs, and there is one here." in done.stderr
