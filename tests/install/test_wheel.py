"""What a wheel holds and promises: every Python from 3.10 on, every torch from 2.10 on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from email.parser import Parser
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.all_ops import BUILDERS

from tests.install.conftest import PIP_VERSIONS, Built
from tests.install.environments import files_of

pytestmark = pytest.mark.slow

# Those that every machine can build; test_cuda_wheel.py is about the others.
OPS = {b.NAME: b() for b in BUILDERS.values() if issubclass(b, TorchCPUOpBuilder)}
GPU_OPS = {b.NAME: b for b in BUILDERS.values() if not issubclass(b, TorchCPUOpBuilder)}
BINARIES = sorted(op.absolute_name().replace(".", "/") + ".abi3.so" for op in OPS.values())

LOAD_ALL = """
from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.all_ops import BUILDERS
for builder in BUILDERS.values():
    if not issubclass(builder, TorchCPUOpBuilder):
        continue
    op = builder()
    op.self_check(op.load())
    print(op.name, op.prebuilt())
"""


def metadata_of(built: Built) -> dict[str, list[str]]:
    (path,) = built.contents.glob("*.dist-info/METADATA")
    message = Parser().parsestr(path.read_text())
    return {key: message.get_all(key) for key in message}


def record_of(built: Built) -> dict[str, object]:
    values: dict[str, object] = {}
    exec((built.contents / "deepspeed/git_version_info_installed.py").read_text(), values)
    return values


def test_plain_wheel_is_for_every_machine_and_compiles_nothing(plain):
    assert plain.wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in plain.names() if name.endswith((".so", ".o"))]
    assert not files_of(plain.source, "*.o") and "deepspeed: building" not in plain.output


def test_plain_wheel_ships_what_compiles_ops_later(plain):
    names = plain.names()
    for kind in ("csrc/**/*", "op_builder/*.py"):
        for path in plain.source.glob(kind):
            if path.is_file():
                assert f"deepspeed/ops/{path.relative_to(plain.source)}" in names
    assert not [name for name in names if name.startswith(("tests", "op_builder", "csrc"))]


def test_plain_wheel_says_that_it_has_no_prebuilt_ops(plain):
    record = record_of(plain)
    every = {*OPS, *GPU_OPS}
    assert record["installed_ops"] == dict.fromkeys(every, False)
    assert set(record["compatible_ops"]) == every
    assert record["skipped_ops"] == dict.fromkeys(every, "not asked for")
    assert record["torch_info"]["version"] == "0.0"


def test_metadata_states_what_the_wheel_needs(plain, with_ops):
    for built in (plain, with_ops):
        needed = metadata_of(built)["Requires-Dist"]
        assert "torch>=2.10" in needed
        assert not [line for line in needed if re.match(r"torch\s*==", line)]
        assert metadata_of(built)["Requires-Python"] == [">=3.10"]


def test_wheel_with_ops_is_for_every_python_from_3_10_on(with_ops):
    assert re.search(r"-cp310-abi3-linux_(x86_64|aarch64)\.whl$", with_ops.wheel.name)


def test_wheel_with_ops_holds_one_binary_per_op(with_ops):
    assert sorted(name for name in with_ops.names() if name.endswith(".so")) == BINARIES


def test_build_prints_one_line_per_finished_step(with_ops):
    line = r"\[(\d+)/(\d+) [\d.]+s, (\d+) left\] (?:compile|link) \w+"
    steps = [tuple(map(int, step)) for step in re.findall(line, with_ops.output)]
    total = len(steps)
    assert total > 2 * len(OPS)
    assert steps == [(n, total, total - n) for n in range(1, total + 1)]


def test_no_flag_binds_a_binary_to_the_machine_that_built_it(with_ops):
    (ninja_file,) = with_ops.source.glob("build/temp*/build.ninja")
    assert "native" not in ninja_file.read_text()


def test_binaries_use_only_stable_interfaces(with_ops):
    audit = [sys.executable, "-m", "abi3audit", "--strict", "--summary", str(with_ops.wheel)]
    done = subprocess.run(audit, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(BINARIES)} extensions scanned" in done.stdout + done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="torch-abi-audit needs Python 3.11")
def test_binaries_need_no_torch_newer_than_2_10(with_ops):
    audit = [str(Path(sys.executable).with_name("torch-abi-audit")), "--check", "both", "--json"]
    done = subprocess.run(
        [*audit, *(str(with_ops.contents / name) for name in BINARIES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    minimums = re.findall(r'"min_torch_version": "([^"]+)"', done.stdout)
    assert len(minimums) == len(BINARIES) and set(minimums) == {"2.10.0"}, done.stdout


@pytest.mark.parametrize(
    "tool",
    [["auditwheel", "show"], ["check-wheel-contents"], ["twine", "check", "--strict"]],
    ids=" ".join,
)
def test_wheel_passes_what_an_index_checks(plain, with_ops, tool):
    program = str(Path(sys.executable).with_name(tool[0]))
    for built in (with_ops,) if tool[0] == "auditwheel" else (plain, with_ops):
        argv = [program, *tool[1:], str(built.wheel)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_binaries_name_no_folder_to_search_and_no_python(with_ops):
    for name in BINARIES:
        argv = ["readelf", "--dynamic", "--wide", str(with_ops.contents / name)]
        listing = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", listing)
        assert "RPATH" not in listing and "RUNPATH" not in listing
        assert "libtorch_cpu.so" in needed
        assert not [library for library in needed if "python" in library or "c10" in library]


def test_binaries_hold_no_path_of_the_machine_that_built_them(with_ops):
    for name in BINARIES:
        content = (with_ops.contents / name).read_bytes()
        for folder in (with_ops.source.parent, Path(sys.prefix), Path.home()):
            assert str(folder).encode() + b"/" not in content, (name, folder)


def test_every_symbol_of_every_binary_resolves(with_ops, venv):
    program = "import ctypes, os, sys, torch; [ctypes.CDLL(p, os.RTLD_NOW) for p in sys.argv[1:]]"
    done = venv.python("-c", program, *(with_ops.contents / name for name in BINARIES))
    assert done.returncode == 0, done.stderr


def test_record_says_with_which_torch_and_flags_the_ops_were_built(with_ops):
    import torch

    record = record_of(with_ops)
    off = {builder.BUILD_VAR: "0" for builder in GPU_OPS.values()}
    assert record["installed_ops"] == {**dict.fromkeys(OPS, True), **dict.fromkeys(GPU_OPS, False)}
    assert record["skipped_ops"] == {n: f"{b.BUILD_VAR}=0" for n, b in GPU_OPS.items()}
    assert record["op_architectures"] == {name: [] for name in OPS}
    assert record["build_flags"] == {"DS_BUILD_OPS": "1", **off}
    assert torch.__version__.startswith(record["torch_info"]["version"])
    assert record["version"] == metadata_of(with_ops)["Version"][0]


@pytest.mark.parametrize("pip", PIP_VERSIONS)
def test_installed_wheel_loads_every_op_without_compiling(with_ops, make_venv, pip):
    venv = make_venv(pip=pip)
    done = venv.pip("install", "--no-deps", with_ops.wheel)
    assert done.returncode == 0, done.stderr
    # No compiler either: PATH is empty.
    done = venv.python("-c", LOAD_ALL, DS_JIT="0", PATH="")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert str(venv.site_packages) in line
    report = json.loads(venv.ds_report("--json").stdout)
    rows = [report["ops"][name] for name in OPS]
    assert all(row["installed"] and row["compatible"] for row in rows)
    assert "torch 2." in report["environment"]["deepspeed wheel compiled w."]


def test_truncated_prebuilt_binary_is_replaced_just_in_time(with_ops, venv):
    assert venv.pip("install", "--no-deps", with_ops.wheel).returncode == 0
    binary = venv.site_packages / "deepspeed/ops/utils_op.abi3.so"
    binary.write_bytes(binary.read_bytes()[:5000])
    program = (
        "from deepspeed.ops.op_builder import UtilsBuilder as B; b = B(); b.self_check(b.load())"
    )
    done = venv.python("-c", program, DS_JIT="0")
    assert done.returncode == 1 and "truncated (5000 bytes)" in done.stderr
    done = venv.python("-c", program)
    assert done.returncode == 0 and done.stderr.count("was built just in time instead") == 1
    row = json.loads(venv.ds_report("--json").stdout)["ops"]["utils"]
    assert not row["installed"] and "truncated" in row["not_installed_because"]
