"""What can be told of a shared object before loading it."""

import os
import platform
import shutil
import subprocess

import pytest
from deepspeed.ops.op_builder import elf


@pytest.fixture
def binary(tmp_path):
    path = tmp_path / "op.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(path)], check=True)
    return path


def test_a_binary_for_this_machine_raises_no_objection(binary):
    assert elf.cause_of_refusal(binary) == ""


def test_a_binary_for_another_machine_is_refused_naming_both(binary):
    other = {"x86_64": 183, "aarch64": 62}[platform.machine()]
    data = bytearray(binary.read_bytes())
    data[18:20] = other.to_bytes(2, "little")
    binary.write_bytes(data)
    cause = elf.cause_of_refusal(binary)
    assert "x86_64" in cause and "aarch64" in cause


@pytest.mark.parametrize("keep", [0, 3, 40, 64, 0.5, -1])
def test_a_truncated_binary_is_refused(binary, keep):
    size = binary.stat().st_size
    length = int(size * keep) if isinstance(keep, float) else keep % (size + 1)
    if keep == -1:
        length = size - 1
    os.truncate(binary, length)
    assert elf.cause_of_refusal(binary) != ""


def test_a_text_file_and_a_missing_file_are_refused(tmp_path):
    text = tmp_path / "op.so"
    text.write_text("not a binary " * 20)
    assert "not a shared object" in elf.cause_of_refusal(text)
    shutil.rmtree(tmp_path)
    assert "can't be read" in elf.cause_of_refusal(text)
