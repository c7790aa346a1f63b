"""docs/install.md: every command on it is run as it stands there, and every message exists."""

from __future__ import annotations

import ast
import getpass
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.install.environments import Environment, files_of
from tests.install.test_uv import installed_ops
from tests.install.test_ways_to_install import binaries_in, only_wheel

PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
SECTIONS = {
    title: re.findall(r"^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}

ALL = {"cpu_adam", "cpu_adagrad", "cpu_lion", "utils"}

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path, source_tree: Path) -> Iterator[dict[str, str]]:
    """A host, this one, that `ssh` reaches by two names, and the file `hosts` that lists them."""
    daemon = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
    assert daemon, "the test needs openssh-server"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("host_key", "key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(argv, check=True)
    tmp_path.chmod(0o700)
    (tmp_path / "ssh_config").write_text(
        f"Host *\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {tmp_path}/key\n StrictHostKeyChecking no\n LogLevel ERROR\n"
        f" UserKnownHostsFile /dev/null\n"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("ssh", "scp"):
        # The page's commands rely on ~/.ssh/config; this is that file, without touching it.
        wrapper = programs / program
        wrapper.write_text(
            f'#!/bin/sh\nexec {shutil.which(program)} -F "{tmp_path}/ssh_config" "$@"\n'
        )
        wrapper.chmod(0o755)
    (source_tree / "hosts").write_text("node-1\nnode-2\n")
    yield {"daemon": daemon, "port": str(port), "programs": str(programs)}


def serve(nodes: dict[str, str], folder: Path, variables: dict[str, str]) -> subprocess.Popen:
    """Start the host's sshd; its commands see ``variables``, whatever the user's shell sets."""
    settings = " ".join(f"'{name}={value}'" for name, value in variables.items())
    command = folder / "command"
    command.write_text(
        '#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in\n'
        "    */sftp-server) exec $SSH_ORIGINAL_COMMAND ;;\nesac\n"
        f'exec env {settings} sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    command.chmod(0o755)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{nodes['port']}\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        f"PermitRootLogin yes\nForceCommand {command}\n"
        f"Subsystem sftp /usr/lib/openssh/sftp-server\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([nodes["daemon"], "-D", "-e", "-f", folder / "sshd_config"])
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(nodes["port"]))).close()
            return server
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "sshd does not start"


def follow(
    title: str,
    environment: Environment,
    source: Path,
    check: Callable[[int, str], None],
    *folders: str,
) -> None:
    """Run the blocks of a section in the activated environment, ``folders`` on its PATH too;
    ``check`` sees each block's output."""
    for number, block in enumerate(SECTIONS[title]):
        argv = ["bash", "-euxo", "pipefail", "-c", block]
        done = environment.run(*argv, cwd=source, **environment.activated(*folders))
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        check(number, output)


def test_every_section_with_commands_has_a_test():
    tested = set(re.findall(r'follow\(\s*"(.*?)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {title for title, blocks in SECTIONS.items() if blocks}
    assert PAGE.count("```") == 2 * sum(map(len, SECTIONS.values()))


def test_quick_start(source_tree, venv):
    def check(number: int, output: str) -> None:
        assert output.count("[OKAY]") >= len(ALL) and not files_of(venv.site_packages, "*_op*.so")

    follow("Quick start", venv, source_tree, check)


def test_just_in_time(source_tree, venv):
    def check(number: int, output: str) -> None:
        assert re.search(r"\[2/2 [\d.]+s, 0 left\] link utils", output), output

    follow("Just in time", venv, source_tree, check)


def test_ahead_of_time(source_tree, venv):
    expected = [ALL, ALL - {"cpu_lion"}]

    def check(number: int, output: str) -> None:
        installed = {name for name, is_there in installed_ops(venv).items() if is_there}
        assert installed == expected[number]

    follow("Ahead of time", venv, source_tree, check)


def test_parallel_builds(source_tree, venv):
    def check(number: int, output: str) -> None:
        assert all(installed_ops(venv).values())
        # pip hides the output of the others; the last is setup.py's own.
        assert "building cpu_adagrad, cpu_adam, cpu_lion, utils with 4 jobs" in output
        assert len(binaries_in(only_wheel(source_tree / "dist"))) == len(ALL)

    follow("Parallel builds", venv, source_tree, check)


def test_build_isolation(source_tree, venv):
    follow(
        "Build isolation",
        venv,
        source_tree,
        lambda number, output: all(installed_ops(venv).values()) or pytest.fail(output),
    )


def test_build_isolation_with_uv(source_tree, uv_environment):
    follow(
        "Build isolation with uv",
        uv_environment,
        source_tree,
        lambda number, output: all(installed_ops(uv_environment).values()) or pytest.fail(output),
    )


def test_one_wheel_for_many_machines(source_tree, venv):
    def check(number: int, output: str) -> None:
        if number == 0:
            assert "-cp310-abi3-linux_" in only_wheel(source_tree / "dist").name
            assert "is consistent with" in output
        else:
            assert output.count("[OKAY]") >= len(ALL) and all(installed_ops(venv).values())

    follow("One wheel for many machines", venv, source_tree, check)


def test_an_index_of_your_own(source_tree, venv):
    follow(
        "An index of your own, and machines without a network",
        venv,
        source_tree,
        lambda number, output: all(installed_ops(venv).values()) or pytest.fail(output),
    )


def test_from_source(source_tree, venv):
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=some@body"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=source_tree, env=venv.variables, check=True)
    utils_installed = [True, False, True, False]

    def check(number: int, output: str) -> None:
        assert installed_ops(venv)["utils"] is utils_installed[number]
        editable = files_of(source_tree / "deepspeed", "*.abi3.so")
        assert editable == (["ops/utils_op.abi3.so"] if number >= 2 else [])
        if number == 3:
            program = "import deepspeed; print(deepspeed.__version__)"
            assert venv.python("-c", program).stdout.endswith("+cu130\n")

    follow("From source", venv, source_tree, check)


def test_several_nodes(source_tree, venv, nodes, tmp_path):
    extensions = {"TORCH_EXTENSIONS_DIR": str(venv.root / "extensions")}
    server = serve(nodes, tmp_path, {**venv.activated(), **extensions})

    def check(number: int, output: str) -> None:
        assert "FAILED:" not in re.sub(r"^\+.*", "", output, flags=re.MULTILINE), output
        assert output.count("[OKAY]") >= 2 * len(ALL)
        assert all(installed_ops(venv).values())
        assert not Path("/tmp", only_wheel(source_tree / "dist").name).exists()

    try:
        follow("Several nodes", venv, source_tree, check, nodes["programs"])
    finally:
        server.terminate()
        server.wait()


def test_the_cache(source_tree, venv):
    def check(number: int, output: str) -> None:
        entries = re.findall(r"^(\w+) \.+ [0-9a-f]{32} ", output, re.MULTILINE)
        assert set(entries) == ALL
        assert not files_of(source_tree / "extensions", "*.so")

    follow("The cache", venv, source_tree, check)


def test_extras(source_tree, venv):
    follow(
        "Extras",
        venv,
        source_tree,
        lambda number, output: (
            venv.python("-c", "import tabulate").returncode == 0 or pytest.fail(output)
        ),
    )


def test_removing(source_tree, venv):
    def check(number: int, output: str) -> None:
        assert "Successfully uninstalled deepspeed" in output
        assert not files_of(venv.site_packages, "deepspeed*")

    follow("Removing", venv, source_tree, check)


def strings_of(folder: Path) -> Iterator[str]:
    """Every text in the sources below ``folder``, formatted values cut out."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_message_in_the_troubleshooting_table_is_one_of_ours():
    texts = [*strings_of(ROOT / "op_builder"), *strings_of(ROOT / "deepspeed")]
    table = PAGE.partition("## Troubleshooting")[2]
    messages = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    assert len(messages) > 15
    for message in messages:
        pieces = [piece.strip(" ,.") for piece in message.split("…")]
        assert any(all(piece in text for piece in pieces) for text in texts), message
