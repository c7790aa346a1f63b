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
from contextlib import suppress
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
from tests.op_builder.test_jit import StuckCompiler

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


#: Letters beyond ASCII, and what means something to a shell, to make, to ninja or in PATH.
FOREIGN = "Projekt – größer/deep speed"
SPECIAL = "a$b 'c' & (d): #e \\ \"f\""
#: ninja doesn't understand these in a list of headers, and compiles again rather than too little.
UNREADABLE = "a;b <c> *?[d] `e`"


@pytest.mark.parametrize(
    ("name", "locale"),
    [(FOREIGN, "C.UTF-8"), (FOREIGN, "C"), (SPECIAL, "C"), (UNREADABLE, "C"), ("a|b", "C")],
)
def test_checkout_with_a_difficult_name(tmp_path, venv, name, locale):
    source = copy_project(tmp_path / name)
    variables = {"LC_ALL": locale, "TORCH_EXTENSIONS_DIR": str(tmp_path / f"{name} cache")}
    succeeded(
        venv.pip("install", "--no-deps", ".", cwd=source, DS_BUILD_UTILS="1", **variables),
    )
    assert load_utils(venv, DS_JIT="0", **variables)[0] == str(venv.site_packages / BINARY)
    # And just in time, from the checkout itself; PYTHONPATH could not hold every name.
    prebuilt, used = load_utils(venv, cwd=source, **variables)
    assert (prebuilt, used) == ("None", str(source / "csrc/utils/flatten.cpp"))


@pytest.mark.parametrize("name", [FOREIGN, SPECIAL])
def test_second_build_in_a_checkout_with_a_difficult_name_compiles_nothing(tmp_path, venv, name):
    source = copy_project(tmp_path / name)

    def build() -> list[str]:
        command = ["setup.py", "build_ext"]
        return compiled(succeeded(venv.python(*command, cwd=source, DS_BUILD_UTILS="1")))

    assert build() == ["utils: flatten.cpp"] and build() == []
    os.utime(source / "csrc/common/registration.h")
    assert build() == ["utils: flatten.cpp"]


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


@pytest.mark.parametrize("built", [False, True], ids=["never built", "built by its owner"])
@pytest.mark.parametrize("flags", [{}, {"DS_BUILD_UTILS": "1"}], ids=["plain", "with an op"])
def test_checkout_without_write_permission_installs(source_tree, venv, flags, built):
    """As in an image whose sources belong to somebody else."""
    if built:
        command = ["setup.py", "-q", "bdist_wheel"]
        succeeded(venv.python(*command, cwd=source_tree, DS_BUILD_CPU_LION="1"))
    before = files_of(source_tree, "*")
    argv = [venv.interpreter, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "."]
    if os.getuid() == 0:
        # root writes everywhere by this capability.
        argv = ["setpriv", "--bounding-set", "-dac_override", *argv]
    subprocess.run(["chmod", "-R", "a-w", source_tree], check=True)
    try:
        succeeded(venv.run(*argv, cwd=source_tree, **flags))
    finally:
        subprocess.run(["chmod", "-R", "u+w", source_tree], check=True)
    found = files_of(venv.site_packages / "deepspeed", "*.so")
    assert found == (["ops/utils_op.abi3.so"] if flags else [])
    assert files_of(source_tree, "*") == before


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


def read_until(process: subprocess.Popen, *words: str) -> str:
    """The first line that ``process`` prints with one of ``words`` in it."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if any(word in line for word in words):
            return line
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("victim", ["the one that builds", "the one that waits"])
def test_a_build_goes_on_when_the_other_one_is_killed(source_tree, venv, tmp_path, victim):
    folders = [tmp_path / "first", tmp_path / "second"]
    flags = [{"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_LION": "1"}, {"DS_BUILD_UTILS": "1"}]
    ops = [[LION_BINARY, BINARY], [BINARY]]
    builds = []
    for folder, asked, sign in zip(folders, flags, ("building", "waiting for another build")):
        builds.append(start(venv, source_tree, "bdist_wheel", "-d", folder, **asked))
        read_until(builds[-1], f"deepspeed: {sign}")
    killed = 0 if victim == "the one that builds" else 1
    builds[killed].send_signal(signal.SIGKILL)
    builds[killed].communicate()
    output = builds[1 - killed].communicate(timeout=300)[0]
    assert builds[1 - killed].returncode == 0, output
    wheel = only_wheel(folders[1 - killed])
    assert binaries_in(wheel) == ops[1 - killed]
    assert_wheel_is_whole(wheel)


def test_a_compiler_that_outlives_its_killed_build_spoils_no_other(source_tree, venv, tmp_path):
    """It still writes to the folder of objects, by the flags of the build that is gone."""
    stuck = StuckCompiler(tmp_path)
    first = start(venv, source_tree, "build_ext", DS_BUILD_UTILS="1", CXX=str(stuck.path))
    compiler = stuck.wait_until_it_runs(first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start(venv, source_tree, "build_ext", DS_BUILD_UTILS="1")
    line = read_until(second, "waiting for another build", "deepspeed: building")
    outlived = Path(f"/proc/{compiler}").exists()
    with suppress(ProcessLookupError):
        os.kill(compiler, signal.SIGKILL)
    output = second.communicate(timeout=300)[0]
    assert second.returncode == 0, output
    assert "waiting" in line or not outlived


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
    # Longest first: this one is compiled before the other.
    noisy = source_tree / "csrc/lion/cpu_lion.cpp"
    noisy.write_text('#warning "an error of no consequence"\n' + noisy.read_text())
    broken = source_tree / "csrc/utils/flatten.cpp"
    broken.write_text(broken.read_text() + "int broken( { }\n")
    flags = {"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_LION": "1"}
    done = venv.python("setup.py", "build_ext", "-j1", cwd=source_tree, **flags)
    output = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in output
    assert "error: Unable to pre-compile utils: " in output
    assert re.search(r"utils/flatten\.cpp:\d+:\d+: error: expected", output)
    assert "cpu_lion: cpu_lion.cpp" in compiled(output) and "of no consequence" not in output
    (log,) = source_tree.glob("build/temp*/build.log")
    assert "of no consequence" in log.read_text()
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
