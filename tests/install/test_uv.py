"""uv, which hides the environment from an isolated build and tells it nothing of its place."""

from __future__ import annotations

import json
import re
import shlex
import sysconfig
from pathlib import Path

import pytest

from tests.install.environments import Environment, Result, make_environment
from tests.install.test_ways_to_install import BINARY, binaries_in, only_wheel, succeeded

pytestmark = pytest.mark.slow

UV = Path(sysconfig.get_path("scripts"), "uv")


def uv(environment: Environment, *arguments: object, cwd: Path, **flags: str) -> Result[str]:
    return environment.run(UV, *arguments, cwd=cwd, **flags)


def installed_ops(environment: Environment) -> dict[str, bool]:
    report = json.loads(environment.ds_report("--json").stdout)
    return {name: op["installed"] for name, op in report["ops"].items()}


@pytest.mark.parametrize("way", ["activated", "found", "named"])
def test_isolated_build_gives_the_command_that_works(source_tree, uv_environment, way):
    """Whichever way uv knows the environment: its builds see another VIRTUAL_ENV, uv's own."""
    environment, options = uv_environment, []
    if way != "activated":
        variables = {k: v for k, v in environment.variables.items() if k != "VIRTUAL_ENV"}
        environment = Environment(environment.root, variables)
    if way == "found":
        (source_tree / ".venv").symlink_to(environment.root)
    elif way == "named":
        options = ["--python", str(environment.interpreter)]
    flags = {"DS_BUILD_UTILS": "1", "DS_BUILD_CPU_ADAM": "0"}
    done = uv(environment, "pip", "install", *options, ".", cwd=source_tree, **flags)
    error = " ".join(done.stderr.split())
    assert done.returncode and "Traceback" not in error
    assert "Pre-compiling ops needs torch, and none is installed" in error
    quoted = re.findall(r"`([^`]*)`", error)
    first, second = (text for text in quoted if "pip install" in text)
    assert first.startswith("uv pip install 'torch>=2.10' ninja")
    assert second == "DS_BUILD_CPU_ADAM=0 DS_BUILD_UTILS=1 uv pip install --no-build-isolation ."
    for command in (first, second):
        # An environment that was named has to be named again.
        command = command.replace("pip install", shlex.join(["pip", "install", *options]))
        succeeded(environment.run("sh", "-c", command, cwd=source_tree))
    assert installed_ops(environment)["utils"]
    assert (environment.site_packages / BINARY).is_file()


def test_plain_install_needs_no_flag_and_no_torch(source_tree, tmp_path):
    environment = make_environment(tmp_path / "env", [])
    options = ["pip", "install", "--python", environment.interpreter, "--no-deps", "."]
    succeeded(uv(environment, *options, cwd=source_tree))
    assert (environment.site_packages / "deepspeed/ops/csrc/utils/flatten.cpp").is_file()
    (tags,) = environment.site_packages.glob("deepspeed-*.dist-info/WHEEL")
    assert re.findall("^Tag: (.*)$", tags.read_text(), re.MULTILINE) == ["py3-none-any"]
    program = "from deepspeed.git_version_info import installed_ops as o; print(any(o.values()))"
    assert succeeded(environment.python("-c", program)) == "False\n"


def test_options_for_the_build_are_passed_on(source_tree, uv_environment):
    options = ["--no-build-isolation", "--no-deps", "-v"]
    settings = ["-C--global-option=build_ext", "-C--global-option=-j3"]
    done = uv(
        uv_environment,
        *("pip", "install", *options, *settings, "."),
        cwd=source_tree,
        DS_BUILD_UTILS="1",
    )
    assert "building utils with 3 jobs" in succeeded(done)


def test_uv_build_makes_the_same_wheel_without_isolation(source_tree, uv_environment):
    command = ["build", "--wheel", "--python", uv_environment.interpreter]
    done = uv(uv_environment, *command, cwd=source_tree, DS_BUILD_UTILS="1")
    error = " ".join(done.stderr.split())
    assert done.returncode and "Traceback" not in error
    assert "`DS_BUILD_UTILS=1 uv pip install --no-build-isolation .`" in error
    command.append("--no-build-isolation")
    succeeded(uv(uv_environment, *command, cwd=source_tree, DS_BUILD_UTILS="1"))
    assert binaries_in(only_wheel(source_tree / "dist")) == [BINARY]
