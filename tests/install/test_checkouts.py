"""Checkouts of every kind, and what happens when two builds meet in one."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.install.environments import Environment, copy_project, files_of
from tests.install.test_ways_to_install import (
    BINARY,
    binaries_in,
    load_utils,
    only_wheel,
    succeeded,
)

pytestmark = pytest.mark.slow

LION_BINARY = "deepspeed/ops/lion/cpu_lion_op.abi3.so"


def start(venv: Environment, source: Path, *arguments: object, **changes: str) -> subprocess.Popen:
    """A build going on in ``source``; what it prints is one pipe."""
    return subprocess.Popen(
        [str(word) for word in (venv.interpreter, "setup.py", *arguments)],
        cwd=source,
        env={**venv.variables, "PYTHONUNBUFFERED": "1", **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_wheel_is_whole(wheel: Path) -> None:
    """Every file of ``wheel`` is in its RECORD, with the right hash."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(archive.namelist())
        for name in set(rows) - {record}:
            digest = hashlib.sha256(archive.read(name)).digest()
            expected = "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
            assert rows[name] == expected, name


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_archive_builds_and_has_no_commit_in_its_version(source_tree, venv, tmp_path):
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=some@body"]
    (source_tree / "build.txt").unlink(missing_ok=True)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=source_tree, env=venv.variables, check=True)
    archive = tmp_path / "archive.tar"
    subprocess.run(["git", "archive", "-o", archive, "HEAD"], cwd=source_tree, check=True)
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(archive, unpacked)
    options = ["wheel", "--no-deps", "-w", tmp_path / "dist", "."]
    succeeded(venv.pip(*options, cwd=unpacked, DS_BUILD_UTILS="1"))
    wheel = only_wheel(tmp_path / "dist")
    assert binaries_in(wheel) == [BINARY]
    version = (unpacked / "version.txt").read_text().strip()
    assert wheel.name.startswith(f"deepspeed-{version}-cp310-abi3-")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("name", ["Projekt – größer/deep speed", "a$b 'c' & (d); #e"])
def test_checkout_with_a_difficult_name(tmp_path, venv, name, locale):
    source = copy_project(tmp_path / name)
    variables = {"LC_ALL": locale, "TORCH_EXTENSIONS_DIR": str(tmp_path / f"{name} cache")}
    succeeded(
        venv.pip("install", "--no-deps", ".", cwd=source, DS_BUILD_UTILS="1", **variables),
    )
    assert load_utils(venv, DS_JIT="0", **variables)[0] == str(venv.site_packages / BINARY)
    # And just in time, from the checkout itself.
    prebuilt, used = load_utils(venv, PYTHONPATH=str(source), **variables)
    assert (prebuilt, used) == ("None", str(source / "csrc/utils/flatten.cpp"))


@pytest.fixture
def read_only(source_tree, tmp_path):
    """The checkout, mounted so that nobody, root included, can write to it."""
    mounted = tmp_path / "read only"
    mounted.mkdir()
    bound = subprocess.run(["mount", "--bind", source_tree, mounted], capture_output=True)
    if bound.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mounted], check=True)
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


@pytest.mark.parametrize("flags", [{}, {"DS_BUILD_UTILS": "1"}], ids=["plain", "with an op"])
@pytest.mark.parametrize("isolation", [[], ["--no-build-isolation"]], ids=str)
def test_read_only_checkout_installs_and_stays_as_it_is(
    read_only, source_tree, venv, flags, isolation, tmp_path
):
    before = files_of(source_tree, "*")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = ["--no-deps", *isolation, "."]
    succeeded(venv.pip("install", *options, cwd=read_only, TMPDIR=str(temporary), **flags))
    assert load_utils(venv)[0] == (str(venv.site_packages / BINARY) if flags else "None")
    assert files_of(source_tree, "*") == before
    assert not list(temporary.iterdir())


def test_checkout_without_write_permission_builds(source_tree, venv, tmp_path):
    """As in an image whose sources belong to somebody else."""
    as_anyone = []
    if os.getuid() == 0:
        # root writes everywhere by this capability.
        as_anyone = ["setpriv", "--bounding-set", "-dac_override"]
    command = ["setup.py", "bdist_wheel", "-d", tmp_path / "dist"]
    folders = [source_tree, *(path for path in source_tree.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        argv = [*as_anyone, venv.interpreter, *command]
        succeeded(venv.run(*argv, cwd=source_tree, DS_BUILD_UTILS="1"))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert binaries_in(only_wheel(tmp_path / "dist")) == [BINARY]
    assert not (source_tree / "build").exists()


def test_two_builds_of_one_checkout_take_turns(source_tree, venv, tmp_path):
    builds = {
        "DS_BUILD_UTILS": (BINARY, tmp_path / "utils"),
        "DS_BUILD_CPU_LION": (LION_BINARY, tmp_path / "lion"),
    }
    for _ in range(3):
        running = [
            start(venv, source_tree, "bdist_wheel", "-d", folder, **{flag: "1"})
            for flag, (_, folder) in builds.items()
        ]
        outputs = [process.communicate(timeout=300)[0] for process in running]
        assert [process.returncode for process in running] == [0, 0], outputs
        waited = [output.count("waiting for another build of this checkout") for output in outputs]
        assert sorted(waited) == [0, 1], outputs
        for binary, folder in builds.values():
            wheel = only_wheel(folder)
            assert binaries_in(wheel) == [binary]
            assert_wheel_is_whole(wheel)
            wheel.unlink()


def test_a_build_that_waits_for_one_that_is_killed_goes_on(source_tree, venv, tmp_path):
    first = start(venv, source_tree, "bdist_wheel", "-d", tmp_path / "first", DS_BUILD_OPS="1")
    for line in first.stdout:
        if "deepspeed: building" in line:
            break
    second = start(venv, source_tree, "bdist_wheel", "-d", tmp_path / "second", DS_BUILD_UTILS="1")
    for line in second.stdout:
        if "waiting for another build" in line:
            break
    first.send_signal(signal.SIGKILL)
    first.communicate()
    output = second.communicate(timeout=300)[0]
    assert second.returncode == 0, output
    wheel = only_wheel(tmp_path / "second")
    assert binaries_in(wheel) == [BINARY]
    assert_wheel_is_whole(wheel)


def compiled(output: str) -> list[str]:
    return sorted(re.findall(r"left\] compile (.*)", output))


def test_a_touched_header_recompiles_what_includes_it_and_nothing_else(source_tree, venv):
    def build() -> list[str]:
        flags = {"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_LION": "1"}
        return compiled(succeeded(venv.python("setup.py", "build_ext", cwd=source_tree, **flags)))

    assert len(build()) == 3 and build() == []
    os.utime(source_tree / "csrc/common/segments.h")
    assert build() == ["cpu_lion: cpu_lion.cpp", "cpu_lion: cpu_lion_kernels.cpp"]
    os.utime(source_tree / "csrc/common/registration.h")
    assert build() == ["cpu_lion: cpu_lion.cpp", "utils: flatten.cpp"]


def test_an_op_that_fails_shows_its_own_diagnostics_alone(source_tree, venv):
    noisy = source_tree / "csrc/utils/flatten.cpp"
    noisy.write_text('#warning "an error of no consequence"\n' + noisy.read_text())
    broken = source_tree / "csrc/lion/cpu_lion_kernels.cpp"
    broken.write_text("int broken( { }\n" + broken.read_text())
    flags = {"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_LION": "1"}
    done = venv.python("setup.py", "build_ext", "-j1", cwd=source_tree, **flags)
    output = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in output
    assert "error: Unable to pre-compile cpu_lion: " in output
    assert re.search(r"lion/cpu_lion_kernels\.cpp:1:\d+: error: expected", output)
    assert "of no consequence" not in output
    assert not files_of(source_tree / "build", "*.abi3.so")


def test_an_incompatible_op_is_skipped_by_all_and_stops_its_own_flag(source_tree, venv):
    file = source_tree / "op_builder/cpu_lion.py"
    refusal = (
        "    def compatibility(self):\n"
        "        from .compatibility import Compatibility\n\n"
        '        return Compatibility(False, "It needs a lion.", "Run `get lion`.")\n\n'
    )
    text = file.read_text()
    file.write_text(text.replace("    def absolute_name", refusal + "    def absolute_name", 1))
    options = ["install", "-v", "--no-deps", "--no-build-isolation", "."]
    output = succeeded(venv.pip(*options, cwd=source_tree, DS_BUILD_OPS="1"))
    assert "skipping op cpu_lion: It needs a lion. Run `get lion`." in output
    ops = json.loads(venv.ds_report("--json").stdout)["ops"]
    assert ops["cpu_adam"]["installed"] and not ops["cpu_lion"]["installed"]
    assert "It needs a lion." in ops["cpu_lion"]["not_installed_because"]
    done = venv.pip(*options, cwd=source_tree, DS_BUILD_CPU_LION="1")
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "Unable to pre-compile cpu_lion: It needs a lion. Run `get lion`." in output
    assert "set DS_BUILD_CPU_LION=0 to skip it" in output
