"""docs/install.md: every command on it is run as it stands there, and every message exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.all_ops import BUILDERS

from tests.install.environments import ROOT, Environment, copy_project, files_of
from tests.install.guide import (
    COMMANDS_IN_TEXT,
    MENDS,
    MESSAGES,
    PAGE,
    SECTIONS,
    follow,
    hosts,
    run,
    texts_of,
)
from tests.install.test_requirements import EXTRAS
from tests.install.test_uv import installed_ops
from tests.install.test_ways_to_install import binaries_in, only_wheel

#: Those that every machine can build.
ALL = {b.NAME for b in BUILDERS.values() if issubclass(b, TorchCPUOpBuilder)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guide") / "source"


@pytest.fixture
def checkout(place: Path) -> Path:
    """A fresh copy of the project in one place for all sections, so that of an earlier section's
    build what the compiler made serves this one too; nothing else of it is left."""
    kept = place.with_name("build")
    if (place / "build").exists():
        (place / "build").rename(kept)
    shutil.rmtree(place, ignore_errors=True)
    copy_project(place)
    if kept.exists():
        kept.rename(place / "build")
    return place


def ops_in(environment: Environment) -> set[str]:
    return {name for name, installed in installed_ops(environment).items() if installed} & ALL


def verified(output: str) -> list[str]:
    """The ops that ``ds_report --verify`` found in order, each as often as it did."""
    found = re.findall(r"^(\w+) \.+ \[OKAY\] loaded and checked", output, re.MULTILINE)
    return sorted(name for name in found if name in ALL)


def test_every_section_with_commands_has_a_test():
    tested = re.findall(r'follow\(\s*"(.*?)"', Path(__file__).read_text(encoding="utf-8"))
    assert sorted(tested) == sorted(title for title, blocks in SECTIONS.items() if blocks)
    # Nothing but blocks of commands in sections, so none was overlooked.
    assert PAGE.count("```") == 2 * sum(map(len, SECTIONS.values()))


def test_every_command_in_the_text_is_one_of_a_block():
    blocks = "\n".join(block for blocks in SECTIONS.values() for block in blocks)
    assert COMMANDS_IN_TEXT
    assert [command for command in COMMANDS_IN_TEXT if command not in blocks] == []


def test_flags_and_extras_are_those_there_are():
    flags = re.findall(r"^\| `(DS_BUILD_\w+)` \| `(\w+)`(?: \(GPU\))? \|$", PAGE, re.MULTILINE)
    assert set(flags) == {(b.BUILD_VAR, b.NAME) for b in BUILDERS.values()}
    assert all(flag == f"DS_BUILD_{op.upper()}" for flag, op in flags)
    listed = PAGE.partition("The extras are ")[2].partition(" of them")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(EXTRAS)


def test_quick_start(checkout, venv):
    def check(number: int, output: str) -> None:
        assert verified(output) == sorted(ALL)
        assert not files_of(venv.site_packages, "*_op*.so")

    follow("Quick start", venv, checkout, check)


def test_just_in_time(checkout, venv):
    def check(number: int, output: str) -> None:
        assert re.search(r"\[2/2 [\d.]+s, 0 left\] link utils", output), output
        assert ops_in(venv) == set()

    follow("Just in time", venv, checkout, check)


def test_ahead_of_time(checkout, venv):
    expected = [ALL, {"cpu_adam", "utils"}, ALL - {"cpu_lion"}]

    def check(number: int, output: str) -> None:
        assert ops_in(venv) == expected[number]
        if number == 0:
            assert re.search(r"^flags while installing \.+ DS_BUILD_OPS=1$", output, re.MULTILINE)

    follow("Ahead of time", venv, checkout, check)
    report = json.loads(venv.ds_report("--json").stdout)
    assert report["ops"]["cpu_lion"]["not_installed_because"] == "DS_BUILD_CPU_LION=0"


def test_parallel_builds(checkout, venv):
    asked = []

    def check(number: int, output: str) -> None:
        jobs = re.findall(r"deepspeed: building .* with (\d+) jobs", output)
        # A command that comes after `build_ext -j4` finds everything built.
        asked.extend(jobs[:1] if number else jobs)
        assert number == 2 or ops_in(venv) == ALL

    # Or pip would hide what the builds print.
    follow("Parallel builds", venv, checkout, check, PIP_VERBOSE="1")
    # Fewer than 4 where memory is short, but the same for every way to say it.
    assert len(asked) == 4 and len(set(asked)) == 1 and 1 <= int(asked[0]) <= 4, asked
    assert len(binaries_in(only_wheel(checkout / "dist"))) >= len(ALL)


def test_build_isolation(checkout, venv):
    def check(number: int, output: str) -> None:
        assert ops_in(venv) == ALL, output

    follow("Build isolation", venv, checkout, check)


def test_build_isolation_with_uv(checkout, uv_environment):
    def check(number: int, output: str) -> None:
        assert ops_in(uv_environment) == ALL and "Built deepspeed" in output, output

    follow("Build isolation with uv", uv_environment, checkout, check)


def test_one_wheel_for_many_machines(checkout, venv):
    assert venv.pip("install", "--no-deps", ".", cwd=checkout).returncode == 0

    def check(number: int, output: str) -> None:
        if number == 0:
            assert "-cp310-abi3-linux_" in only_wheel(checkout / "dist").name
            assert re.search(r'"(many|musl)linux_\d+_\d+_', " ".join(output.split())), output
        else:
            # Although this version was there, without ops.
            assert verified(output) == sorted(ALL) and ops_in(venv) == ALL

    follow("One wheel for many machines", venv, checkout, check)


def test_an_index_of_your_own(checkout, venv):
    def check(number: int, output: str) -> None:
        names = {name.split("-")[0] for name in files_of(checkout / "wheels", "*.whl")}
        assert names == {"deepspeed", "ninja", "packaging", "psutil", "py_cpuinfo", "filelock"}
        assert ops_in(venv) == ALL if number else not files_of(venv.site_packages, "deepspeed*")

    follow("An index of your own, and machines without a network", venv, checkout, check)


def test_from_source(checkout, venv):
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=some@body"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=checkout, env=venv.variables, check=True)
    base = (checkout / "version.txt").read_text().strip()
    has_utils = [True, False, False, True, False]
    is_editable = [False, False, True, True, False]
    commit = r"\+[0-9a-f]+"
    versions = [f"({commit})?", "", commit, commit, r"\+cu130"]

    def check(number: int, output: str) -> None:
        assert ("utils" in ops_in(venv)) is has_utils[number]
        program = "import deepspeed; print(deepspeed.__version__, deepspeed.__file__)"
        version, file = venv.python("-c", program).stdout.split(maxsplit=1)
        assert re.fullmatch(re.escape(base) + versions[number], version)
        assert file.startswith(f"{checkout}/") is is_editable[number]

    follow("From source", venv, checkout, check)
    assert (checkout / "build.txt").read_text().strip() == "+cu130"


def test_several_nodes(checkout, venv, make_venv, tmp_path):
    nodes = {"node-1": make_venv(), "node-2": make_venv(), "node-3": None}
    (checkout / "hosts").write_text("\n".join(nodes) + "\n")

    def check(number: int, output: str) -> None:
        # Node 3 is down: the others are served all the same, and it is named.
        assert re.findall(r"^FAILED: (.*)", output, re.MULTILINE) == ["node-3"], output
        assert verified(output) == sorted([*ALL, *ALL])
        assert ops_in(nodes["node-1"]) == ops_in(nodes["node-2"]) == ALL
        folders = re.findall(r"^\+ folder=(/.*)$", output, re.MULTILINE)
        assert len(folders) == 2 and not any(map(os.path.exists, folders))
        assert not files_of(venv.site_packages, "deepspeed*")

    with hosts(tmp_path / "hosts", nodes) as programs:
        path = venv.activated(programs)["PATH"]
        follow("Several nodes", venv, checkout, check, PATH=path)


def test_the_cache(checkout, venv):
    def check(number: int, output: str) -> None:
        entries = re.findall(r"^(\w+) \.+ [0-9a-f]{32} ", output, re.MULTILINE)
        assert set(entries) >= ALL and verified(output) == sorted(ALL)
        assert f"removed {len(entries)} built ops" in output
        assert not files_of(checkout / "extensions", "*.so")

    follow("The cache", venv, checkout, check)


def test_dependencies_and_extras(checkout, venv):
    def check(number: int, output: str) -> None:
        assert venv.python("-c", "import tabulate, pytest").returncode == 0, output

    follow("Dependencies and extras", venv, checkout, check)


def test_removing(checkout, venv):
    def check(number: int, output: str) -> None:
        assert "Successfully uninstalled deepspeed" in output
        assert not files_of(venv.site_packages, "deepspeed*")

    follow("Removing", venv, checkout, check)


def test_troubleshooting(checkout, venv):
    """Every message quoted is one of ours or pip's, and every command in the table runs."""
    wheel = "pip wheel --no-deps -w dist ."
    install = "pip install dist/deepspeed-*.whl"
    printed = run(venv, f"DS_BUILD_OPS=1 {wheel}\n{install}\n{install}\nds_report", checkout)
    other = "deepspeed-1-cp310-abi3-linux_other.whl"
    printed += run(venv, f"touch {other}; ! pip install {other}", checkout)
    texts = [printed, *texts_of(ROOT / "op_builder"), *texts_of(ROOT / "deepspeed")]
    assert len(MESSAGES) > 20
    for message in MESSAGES:
        pattern = re.compile(".*".join(map(re.escape, message.split("…"))))
        assert any(map(pattern.search, texts)), message
    assert len(MENDS) > 8
    for command in MENDS:
        run(venv, command, checkout)
