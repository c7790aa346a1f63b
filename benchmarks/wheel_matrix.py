r"""One wheel on every Python and torch: installs it on each pair and verifies every op.

For each interpreter and torch a fresh environment gets that torch, then the wheel. Nothing can be
compiled there: DS_JIT=0 forbids it and CXX names no compiler, so what `ds_report --verify` proves
are the binaries of the wheel. A pair whose torch the index does not have says so in its cell; a
torch older than the wheel asks for has to be refused, by pip and by each op.

Where interpreters live on several machines or in several containers, each writes its results to a
JSON file, and one page is made of all of them:

    python benchmarks/wheel_matrix.py --wheel dist/*.whl --python python3.10 --python python3.11 \
        --torch 2.10.0 --torch 2.13.0 --too-old 2.9.1 --json here.json
    python benchmarks/wheel_matrix.py --page docs/wheel_matrix.md here.json there.json
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

#: What the wheel needs besides torch (requirements/requirements.txt), and what --verify wants.
_OTHERS = ("ninja", "packaging", "psutil", "py-cpuinfo", "filelock", "numpy")

_NO_COMPILER = {"DS_JIT": "0", "CXX": "/nonexistent/g++", "NO_COLOR": "1"}

_NOT_THERE = "not on the index"
_REFUSED = "refused"

_LOAD = """
from deepspeed.ops.op_builder.all_ops import ALL_OPS
for builder in ALL_OPS.values():
    try:
        builder.load()
    except Exception as error:
        print(builder.name, type(error).__name__, error)
    else:
        print(builder.name, "LOADED")
"""

_INSTALLED = """
import json, torch
from deepspeed.env_report import op_status
from deepspeed.git_version_info import installed_ops
from deepspeed.ops.op_builder.all_ops import ALL_OPS
ops = {n: op_status(n, ALL_OPS[n]).installed for n, built in installed_ops.items() if built}
print(json.dumps({"torch": torch.__version__, "ops": ops}))
"""


class Failed(Exception):
    """A command that had to succeed didn't; its text is the end of what it printed."""


class Environment:
    """A fresh virtual environment of one interpreter."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        run([interpreter, "-m", "venv", str(folder)])
        self._python = str(folder / "bin" / "python")
        self._environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("DS_", "PYTHON"))},
            **_NO_COMPILER,
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        }

    def pip(self, *arguments: str) -> str:
        """Run its pip."""
        return run([self._python, "-m", "pip", *arguments], self._environ)

    def python(self, *arguments: str) -> str:
        """Run its interpreter, from a folder in which nothing can be imported."""
        return run([self._python, *arguments], self._environ)


def run(argv: list[str], environ: dict[str, str] | None = None) -> str:
    """Run ``argv``; its output.

    Raises:
        Failed: it ended with another status than 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            argv, env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    if done.returncode:
        raise Failed("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    return done.stdout


def verify(interpreter: str, torch: str, wheel: Path) -> dict[str, str]:
    """The cell of one pair: ``python`` and ``torch`` as they call themselves, and ``result``."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(interpreter, Path(folder, "env"))
        version = run([interpreter, "-c", "import platform; print(platform.python_version())"])
        cell = {"python": version.strip(), "torch": torch}
        try:
            environment.pip("install", "--quiet", f"torch=={torch}", *_OTHERS)
        except Failed as error:
            if "No matching distribution" in str(error):
                return {**cell, "result": _NOT_THERE}
            return {**cell, "result": f"FAILED: {error}"}
        try:
            environment.pip("install", "--quiet", "--no-deps", str(wheel))
            facts = json.loads(environment.python("-c", _INSTALLED).splitlines()[-1])
            missing = [op for op, installed in facts["ops"].items() if not installed]
            if missing:
                raise Failed(f"not prebuilt: {', '.join(missing)}")
            environment.python("-m", "deepspeed.env_report", "--verify")
            environment.pip("check")
        except Failed as error:
            return {**cell, "result": f"FAILED: {error}"}
        return {**cell, "torch": facts["torch"], "result": f"{len(facts['ops'])} ops"}


def refuse(interpreter: str, torch: str, wheel: Path) -> dict[str, str]:
    """The cell of a torch that is too old: pip must object, and so must every op."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(interpreter, Path(folder, "env"))
        version = run([interpreter, "-c", "import platform; print(platform.python_version())"])
        cell = {"python": version.strip(), "torch": torch}
        environment.pip("install", "--quiet", f"torch=={torch}", *_OTHERS)
        environment.pip("install", "--quiet", "--no-deps", str(wheel))
        try:
            environment.pip("check")
            return {**cell, "result": "FAILED: pip check had no objection"}
        except Failed as error:
            objection = str(error)
        loads = environment.python("-c", _LOAD).splitlines()
        told = all("is older than 2.10" in line for line in loads) and len(loads) > 3
        if "torch>=2.10" not in objection or not told:
            return {**cell, "result": f"FAILED: {objection} {loads}"}
        return {**cell, "result": _REFUSED}


def measure(args: argparse.Namespace) -> dict[str, object]:
    """All cells of this machine, and what it is."""
    wheel = args.wheel.resolve()
    cells = []
    for interpreter in args.python:
        pairs = [(verify, torch) for torch in args.torch]
        pairs += [(refuse, torch) for torch in args.too_old]
        for prove, torch in pairs:
            cells.append(prove(interpreter, torch, wheel))
            print(*cells[-1].values(), sep="  ", file=sys.stderr, flush=True)
    return {
        "wheel": wheel.name,
        "bytes": wheel.stat().st_size,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "date": datetime.date.today().isoformat(),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "cells": cells,
    }


def page(results: list[dict]) -> str:
    """One Markdown page of the results of several machines, all of the same wheel."""
    if len({result["sha256"] for result in results}) != 1:
        raise SystemExit("The results are of different wheels.")
    cells = {}
    for result in results:
        for cell in result["cells"]:
            minor = ".".join(cell["python"].split(".")[:2])
            cells[minor, cell["torch"].split("+")[0]] = cell
    numbers = [sorted({key[i] for key in cells}, key=_as_numbers) for i in (0, 1)]
    rows = [["torch", *(f"Python {minor}" for minor in numbers[0])]]
    for torch in numbers[1]:
        found = [cells.get((minor, torch)) for minor in numbers[0]]
        rows.append([torch, *(_shown(cell) for cell in found)])
    rows.insert(1, ["-" * len(word) for word in rows[0]])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    first = results[0]
    systems = sorted({result["system"] for result in results})
    return (
        "# One wheel, every Python and torch\n\n"
        "Made by `benchmarks/wheel_matrix.py`, whose head says what is done for each pair: a\n"
        "fresh environment, no compiler, just-in-time builds forbidden, `ds_report --verify`.\n\n"
        f"- wheel: `{first['wheel']}`, {first['bytes']:,} bytes\n"
        f"- sha256: `{first['sha256']}`\n"
        f"- date: {first['date']}\n"
        f"- installed on: {'; '.join(systems)}\n\n"
        f"{table}\n\n"
        "A number of ops: all of them loaded from the wheel and computed what they should, and\n"
        "`pip check` had no objection. The suffix is the build of torch. *refused*: this torch is\n"
        "older than the wheel asks for; `pip check` says so, and so does every op.\n"
    )


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _shown(cell: dict[str, str] | None) -> str:
    if cell is None:
        return "–"
    build = cell["torch"].partition("+")[2]
    result = " ".join(cell["result"].split())[:60]
    return f"{result} ({build})" if build else result


def main() -> None:
    """Fill the cells of this machine, or make the page of all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--torch", action="append", default=[], metavar="VERSION")
    parser.add_argument("--too-old", action="append", default=[], metavar="VERSION")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("results", nargs="*", type=Path, help="JSON files for --page")
    args = parser.parse_args()
    if args.page:
        results = [json.loads(path.read_text(encoding="utf-8")) for path in args.results]
        args.page.write_text(page(results), encoding="utf-8")
        return
    result = measure(args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(page([result]))
    sys.exit(any(cell["result"].startswith("FAILED") for cell in result["cells"]))


if __name__ == "__main__":
    main()
