"""Every command line that the documentation or DeepSpeed's users know, run as typed."""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.install.conftest import PIP_VERSIONS
from tests.install.environments import Environment, Result, files_of

pytestmark = pytest.mark.slow

BINARY = "deepspeed/ops/utils_op.abi3.so"
LOAD = """
from deepspeed.ops.op_builder import UtilsBuilder
builder = UtilsBuilder()
builder.self_check(builder.load())
print(builder.prebuilt())
print(builder.plan().sources[0])
"""


def succeeded(done: Result[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def load_utils(venv: Environment, **variables: str) -> tuple[str, str]:
    """Load and check op utils; the paths of its prebuilt binary ("None") and of its source."""
    prebuilt, source = succeeded(venv.python("-c", LOAD, **variables)).splitlines()
    return prebuilt, source


def only_wheel(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def binaries_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.endswith(".so"))


@pytest.mark.parametrize("pip", PIP_VERSIONS)
def test_plain_install_needs_no_torch_and_no_flag(source_tree, make_venv, pip):
    torchless = make_venv(torch=False, pip=pip)
    succeeded(torchless.pip("install", "--no-deps", ".", cwd=source_tree))
    report = json.loads(torchless.ds_report("--json").stdout)
    assert not any(op["installed"] for op in report["ops"].values())
    assert report["ops"]["utils"]["cause"] == "torch is not installed in this environment."


def test_plain_install_compiles_on_first_use(source_tree, venv):
    """With dependencies: what requirements.txt asks for is there already."""
    program = "from deepspeed.git_version_info import compatible_ops; print(compatible_ops)"
    succeeded(venv.pip("install", ".", cwd=source_tree))
    assert not files_of(source_tree, "*.o")
    # The isolated build does not see torch; the record is about the environment that has it.
    assert "'utils': True" in succeeded(venv.python("-c", program))
    prebuilt, source = load_utils(venv)
    assert prebuilt == "None"
    assert source == str(venv.site_packages / "deepspeed/ops/csrc/utils/flatten.cpp")
    listing = venv.ds_report("--cache").stdout
    assert re.search(r"^utils \.+ [0-9a-f]{32} ", listing, re.MULTILINE), listing


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--no-build-isolation"],
        ["-C--global-option=build_ext", "-C--global-option=-j8"],
    ],
    ids=" ".join,
)
def test_install_with_an_op(source_tree, venv, options):
    done = venv.pip("install", "-v", ".", *options, cwd=source_tree, DS_BUILD_UTILS="1")
    output = succeeded(done)
    assert not any("-j8" in option for option in options) or "with 8 jobs" in output
    assert load_utils(venv, DS_JIT="0")[0] == str(venv.site_packages / BINARY)
    assert files_of(venv.site_packages / "deepspeed", "*.so") == ["ops/utils_op.abi3.so"]


def test_install_with_global_options_of_an_older_pip(source_tree, make_venv):
    # --no-deps: with such options this pip takes requirements from source only.
    venv = make_venv(pip="23.2.1")
    options = ["--no-deps", "--global-option=build_ext", "--global-option=-j8"]
    succeeded(venv.pip("install", ".", *options, cwd=source_tree, DS_BUILD_UTILS="1"))
    assert load_utils(venv, DS_JIT="0")[0] == str(venv.site_packages / BINARY)


def test_setup_py_bdist_wheel(source_tree, venv):
    command = ["setup.py", "build_ext", "-j2", "bdist_wheel"]
    output = succeeded(venv.python(*command, cwd=source_tree, DS_BUILD_UTILS="1"))
    assert "building utils with 2 jobs" in output
    wheel = only_wheel(source_tree / "dist")
    assert "-cp310-abi3-linux_" in wheel.name
    assert binaries_in(wheel) == [BINARY]


def test_build_frontend_without_isolation(source_tree, venv):
    command = ["-m", "build", "--wheel", "--no-isolation"]
    succeeded(venv.python(*command, cwd=source_tree, DS_BUILD_UTILS="1"))
    assert binaries_in(only_wheel(source_tree / "dist")) == [BINARY]


def test_activated_environment_is_found_from_an_isolated_build_elsewhere(
    source_tree, venv, torchless
):
    """`python -m build` isolates with an interpreter of its own; VIRTUAL_ENV shows the way."""
    activated = {"VIRTUAL_ENV": str(venv.root)}
    command = ["-m", "build", "--wheel"]
    succeeded(torchless.python(*command, cwd=source_tree, DS_BUILD_UTILS="1", **activated))
    assert binaries_in(only_wheel(source_tree / "dist")) == [BINARY]


@pytest.mark.parametrize("isolation", [[], ["--no-build-isolation"]], ids=str)
@pytest.mark.parametrize("flags", [{}, {"DS_BUILD_UTILS": "1"}], ids=["plain", "with an op"])
def test_editable_install_resolves_sources_and_ops(source_tree, venv, flags, isolation):
    options = ["--no-deps", *isolation, "-e", "."]
    succeeded(venv.pip("install", *options, cwd=source_tree, **flags))
    prebuilt, source = load_utils(venv)
    assert prebuilt == (str(source_tree / BINARY) if flags else "None")
    assert source == str(source_tree / "csrc/utils/flatten.cpp")
    report = json.loads(venv.ds_report("--json").stdout)
    assert report["ops"]["utils"]["installed"] is bool(flags)


def test_plain_editable_install_drops_binaries_of_an_earlier_one(source_tree, venv):
    options = ["--no-deps", "--no-build-isolation", "-e", "."]
    succeeded(venv.pip("install", *options, cwd=source_tree, DS_BUILD_UTILS="1"))
    assert files_of(source_tree / "deepspeed", "*.so") == ["ops/utils_op.abi3.so"]
    succeeded(venv.pip("install", *options, cwd=source_tree))
    assert not files_of(source_tree / "deepspeed", "*.so")


def test_sdist_holds_what_a_build_needs_and_builds(source_tree, venv, tmp_path):
    # What an editable install wrote is this machine's business.
    (source_tree / "deepspeed/git_version_info_installed.py").write_text("version = 'mine'\n")
    succeeded(venv.python("setup.py", "-q", "sdist", cwd=source_tree))
    (sdist,) = (source_tree / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {Path(*Path(m.name).parts[1:]): m for m in archive.getmembers()}
    names = set(map(str, members))
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert "deepspeed/git_version_info_installed.py" not in names
    needed = ["setup.py", "pyproject.toml", "version.txt", "LICENSE", "README.md"]
    for pattern in ("csrc/**/*", "op_builder/*.py", "requirements/*", "deepspeed/**/*.py", "bin/*"):
        needed += [
            str(p.relative_to(source_tree)) for p in source_tree.glob(pattern) if p.is_file()
        ]
    needed.remove("deepspeed/git_version_info_installed.py")
    assert set(needed) <= names
    options = ["wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", sdist]
    succeeded(venv.pip(*options, DS_BUILD_UTILS="1"))
    assert binaries_in(only_wheel(tmp_path / "dist")) == [BINARY]


def test_wheel_holds_only_the_ops_asked_for_whatever_was_built_before(source_tree, venv):
    for flags, expected in (
        ({"DS_BUILD_UTILS": "1"}, [BINARY]),
        ({"DS_BUILD_CPU_LION": "1"}, ["deepspeed/ops/lion/cpu_lion_op.abi3.so"]),
        ({}, []),
    ):
        succeeded(venv.python("setup.py", "bdist_wheel", cwd=source_tree, **flags))
        wheel = only_wheel(source_tree / "dist")
        assert binaries_in(wheel) == expected
        wheel.unlink()
        assert ("py3-none-any" in wheel.name) is not bool(expected)


def test_second_build_recompiles_only_what_changed(source_tree, venv):
    def build() -> list[str]:
        command = ["setup.py", "build_ext"]
        output = succeeded(venv.python(*command, cwd=source_tree, DS_BUILD_CPU_LION="1"))
        return sorted(re.findall(r"left\] ((?:compile|link) .*)", output))

    everything = build()
    assert len(everything) == 3
    assert build() == []
    os.utime(source_tree / "csrc/lion/cpu_lion_kernels.cpp")
    assert build() == ["compile cpu_lion: cpu_lion_kernels.cpp", "link cpu_lion"]


def test_no_gpu_is_asked_and_no_architecture_list_is_tripped_over(source_tree, venv):
    """A CPU op is built where a CUDA image was prepared, without a device."""
    # Whatever asks a GPU, in whichever process of the build, ends that process.
    (venv.site_packages / "no_gpu.py").write_text(
        "import sys\n"
        "def forbid(event, arguments):\n"
        "    name = str(arguments[0]) if event in ('open', 'ctypes.dlopen') else ''\n"
        "    if name.startswith('/dev/nvidia') or 'libcuda.so' in name:\n"
        "        sys.exit(f'a GPU was asked: {event} {arguments}')\n"
        "sys.addaudithook(forbid)\n"
    )
    (venv.site_packages / "no_gpu.pth").write_text("import no_gpu\n")
    done = venv.python(
        *("setup.py", "bdist_wheel"),
        cwd=source_tree,
        DS_BUILD_UTILS="1",
        CUDA_VISIBLE_DEVICES="",
        TORCH_CUDA_ARCH_LIST="5.2 6.0 9.0a 12.0+PTX;",
    )
    succeeded(done)
    assert binaries_in(only_wheel(source_tree / "dist")) == [BINARY]
