"""What decides an entry's name, and what deliberately does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import ALL_OPS
from deepspeed.ops.op_builder.fingerprint import fingerprint, project_files
from deepspeed.ops.op_builder.plan import BuildPlan
from deepspeed.ops.op_builder.toolchain import Tool


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    return make_plan(tmp_path / "one")


def make_plan(root: Path) -> BuildPlan:
    (root / "csrc" / "op").mkdir(parents=True)
    (root / "csrc" / "common").mkdir()
    source = root / "csrc" / "op" / "op.cpp"
    source.write_text('#include "near.h"\n  #  include <far.h>\n#include <vector>\n')
    (root / "csrc" / "op" / "near.h").write_text('#include "../common/deep.h"\n')
    (root / "csrc" / "common" / "far.h").write_text('#include "deep.h"\n')
    (root / "csrc" / "common" / "deep.h").write_text('#include "near.h"\n')  # a cycle, and absent
    return BuildPlan(
        op="op",
        stable=True,
        sources=(source,),
        include_dirs=(root / "csrc" / "common",),
        flags=("-O3",),
        link_flags=("-lm",),
        environment_flags=("-isystem", str(root)),
        environment_link_flags=(f"-L{root}",),
        abi=("linux", "x86_64", "torch>=2.10 stable ABI"),
        compiler=Tool(("/usr/bin/g++",), ("/usr/bin/g++ 1 2",)),
    )


def test_every_project_header_reached_counts(plan):
    assert set(project_files(plan)) == {"op/op.cpp", "op/near.h", "common/far.h", "common/deep.h"}


def test_the_same_project_elsewhere_has_the_same_fingerprint(plan, tmp_path):
    assert fingerprint(plan).key == fingerprint(make_plan(tmp_path / "two" / "deeper")).key


@pytest.mark.parametrize("name", ["op/op.cpp", "op/near.h", "common/far.h", "common/deep.h"])
def test_changing_any_of_its_files_changes_it(plan, tmp_path, name):
    before = fingerprint(plan).key
    with open(tmp_path / "one" / "csrc" / name, "a") as stream:
        stream.write("// changed\n")
    assert fingerprint(plan).key != before


@pytest.mark.parametrize(
    "change",
    [
        {"flags": ("-O2",)},
        {"link_flags": ("-lz",)},
        {"op": "other"},
        {"abi": ("linux", "aarch64", "torch>=2.10 stable ABI")},
        {"compiler": Tool(("/usr/bin/g++",), ("/usr/bin/g++ 1 3",))},
        {"architectures": ("sm_90",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changing_what_decides_the_binary_changes_it(plan, change):
    assert fingerprint(replace(plan, **change)).key != fingerprint(plan).key


def test_where_torch_lies_does_not_change_a_stable_op(plan):
    moved = replace(plan, environment_flags=("-isystem", "/x"), environment_link_flags=("-L/x",))
    moved = replace(moved, linker=("-fuse-ld=lld",))
    assert fingerprint(moved).key == fingerprint(plan).key


def test_the_portable_key_leaves_out_only_the_compiler_and_the_gpus(plan):
    other = replace(plan, compiler=Tool(("/usr/bin/clang++",), ("/usr/bin/clang++ 5 6",)))
    other = replace(other, architectures=("sm_90", "compute_90"))
    assert fingerprint(other).portable_key == fingerprint(plan).portable_key
    changed = replace(plan, flags=("-O2",))
    assert fingerprint(changed).portable_key != fingerprint(plan).portable_key


def test_a_binary_tied_to_this_cpu_says_so(monkeypatch):
    builder = ALL_OPS["utils"]
    portable = builder.plan().abi
    monkeypatch.setenv("CFLAGS", "-march=native")
    assert len(builder.plan().abi) > len(portable)
