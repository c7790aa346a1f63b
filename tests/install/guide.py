"""docs/install.md taken apart, what its commands run in, and the hosts that they reach by ssh."""

from __future__ import annotations

import ast
import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.install.environments import Environment

PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")

#: Title → the blocks of commands below it.
SECTIONS = {
    title: re.findall(r"^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}

_PROSE, _, _TABLE = re.sub(r"^```sh\n.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL).partition(
    "## Troubleshooting"
)
_COMMAND = re.compile(
    r"`((?:[A-Z_]+=\S+ )*(?:pip|python|uv|ds_report|auditwheel|export|unset|git|ssh|scp|apt-get)"
    r" [^`]+)`"
)

#: The messages that the table of troubles quotes, and the commands in its text and the page's.
MESSAGES = re.findall(r"^\| `(.*?)`", _TABLE, re.MULTILINE)
MENDS = list(dict.fromkeys(_COMMAND.findall(_TABLE)))
COMMANDS_IN_TEXT = _COMMAND.findall(_PROSE)

_SFTP_SERVERS = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec")


def run(environment: Environment, commands: str, source: Path, **changes: str) -> str:
    """What ``commands`` print, run as they are by a shell in which ``environment`` is active."""
    temporary = source.with_name("temporary")
    temporary.mkdir(exist_ok=True)
    # Nothing is installed outside the environment, whatever PATH turns out to be, and no wheel that
    # uv made of another checkout in this place counts.
    fences = {
        "PIP_REQUIRE_VIRTUALENV": "1",
        "TMPDIR": str(temporary),
        "UV_CACHE_DIR": str(temporary / "uv"),
    }
    argv = ["bash", "-euxo", "pipefail", "-c", commands]
    variables = {**environment.activated(), **fences, **changes}
    done = environment.run(*argv, cwd=source, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def follow(
    title: str,
    environment: Environment,
    source: Path,
    check: Callable[[int, str], None],
    **changes: str,
) -> None:
    """Run every block of a section; after each, ``check`` sees its number and its output."""
    for number, block in enumerate(SECTIONS[title]):
        check(number, run(environment, block, source, **changes))


def texts_of(folder: Path) -> Iterator[str]:
    """Every text in the sources below ``folder``, with "…" for formatted values."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def hosts(folder: Path, environments: dict[str, Environment | None]) -> Iterator[str]:
    """Hosts of these names, each with its environment active in every command; None is a host that
    is down. Gives the folder of an ``ssh`` and a ``scp`` that know them."""
    folder.mkdir()
    for name in ("host_key", "key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(argv, check=True)
    ports = {name: _free_port() for name in environments}
    config = [f"Host {name}\n Port {port}\n" for name, port in ports.items()]
    config.append(
        f"Host *\n HostName 127.0.0.1\n User {getpass.getuser()}\n IdentityFile {folder}/key\n"
        " StrictHostKeyChecking no\n LogLevel ERROR\n UserKnownHostsFile /dev/null\n"
    )
    (folder / "config").write_text("".join(config))
    programs = folder / "programs"
    programs.mkdir()
    for program in ("ssh", "scp"):
        # ssh takes its user's folder from the list of users, not from HOME: this stands for the
        # ~/.ssh/config that the page's reader has.
        real = shutil.which(program)
        assert real, f"the test needs {program}"
        _write_program(programs / program, f'exec {real} -F "{folder}/config" "$@"\n')
    with ExitStack() as stack:
        for name, environment in environments.items():
            if environment is not None:
                stack.enter_context(_sshd(folder, name, ports[name], environment))
        yield str(programs)


def _write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


@contextmanager
def _sshd(folder: Path, name: str, port: int, environment: Environment) -> Iterator[None]:
    """A real sshd on 127.0.0.1 for as long as the context lasts."""
    daemon = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
    sftp = next(filter(os.path.exists, (f"{at}/sftp-server" for at in _SFTP_SERVERS)), None)
    assert daemon and sftp, "the test needs openssh-server"
    variables = {
        **environment.activated(),
        "TORCH_EXTENSIONS_DIR": environment.variables["TORCH_EXTENSIONS_DIR"],
        "PIP_REQUIRE_VIRTUALENV": "1",
    }
    settings = " ".join(f"'{key}={value}'" for key, value in variables.items())
    command = folder / f"{name}.command"
    # Last of all: the user's shell may read files that set PATH, also for a command.
    _write_program(
        command,
        f'case "$SSH_ORIGINAL_COMMAND" in {sftp}) exec {sftp} ;; esac\n'
        f'exec env {settings} sh -c "$SSH_ORIGINAL_COMMAND"\n',
    )
    (folder / f"{name}.config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        f"PermitRootLogin yes\nForceCommand {command}\nSubsystem sftp {sftp}\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        argv = [daemon, "-D", "-e", "-f", folder / f"{name}.config"]
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        _wait_until_it_answers(server, port)
        yield
    finally:
        server.terminate()
        server.wait()


def _wait_until_it_answers(server: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "sshd does not start"
