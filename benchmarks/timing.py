"""What every benchmark shares: who is measured, in which order, and how results are kept.

A :class:`Side` is one interpreter with one `deepspeed` in it. This project and the DeepSpeed it is
measured against are packages of the same name, so they live in two environments and are only ever
met through subprocesses. :func:`alternate` takes turns between sides, so that a machine that slows
down half-way slows all of them. A :class:`Row` holds every single time; tables show medians.

Nothing here knows what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = "this project"
PEER = "DeepSpeed"
MIN_ROUNDS = 9

_ROOT = Path(__file__).resolve().parent.parent

# Prints one line of JSON, last: importing may print too.
_VERSIONS = """
import json, platform, pip, torch, deepspeed
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__,
                  "deepspeed": deepspeed.__version__, "pip": pip.__version__}))
"""


@dataclass(frozen=True)
class Side:
    """One interpreter under measurement.

    ``keep_pythonpath`` lets the caller's PYTHONPATH through, which may name a checkout of this
    project; a peer must never see it.
    """

    name: str
    python: str
    keep_pythonpath: bool = False

    def environ(self, **extra: str) -> dict[str, str]:
        """The environment of its processes: as if its virtual environment were activated.

        Switches of either package that the caller happens to have set are left out.
        """
        env = {k: v for k, v in os.environ.items() if not k.startswith("DS_")}
        given = env.pop("PYTHONPATH", "")
        if self.keep_pythonpath and given:
            env["PYTHONPATH"] = os.pathsep.join(
                os.path.abspath(entry) for entry in given.split(os.pathsep) if entry
            )
        env["PATH"] = os.pathsep.join([os.path.dirname(self.python), env.get("PATH", "")])
        return {**env, **extra}

    def run(self, args: list[str], **extra: str) -> str:
        """Run its interpreter with ``args`` and return standard output.

        Raises:
            RuntimeError: it failed; the message ends with what it printed.
        """
        # From an empty folder: `python -c` would import a package lying in the current one.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [self.python, *args],
                env=self.environ(**extra),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise RuntimeError(f"{self.name}: {shlex.join(args)[:200]} failed:\n{tail}")
        return done.stdout

    def seconds(self, code: str, **extra: str) -> float:
        """Run ``code``, which prints a number of seconds as its last line, and return it."""
        return float(self.run(["-c", code], **extra).split()[-1])

    def wall(self, args: list[str], **extra: str) -> float:
        """The seconds from starting its interpreter with ``args`` to its end."""
        start = time.perf_counter()
        self.run(args, **extra)
        return time.perf_counter() - start

    def versions(self) -> dict[str, str]:
        """The versions of Python, torch, pip and deepspeed in it."""
        return json.loads(self.run(["-c", _VERSIONS]).splitlines()[-1])


@dataclass
class Row:
    """All times of one row, in seconds, and what the project's have to reach."""

    what: str
    times: dict[str, list[float]]
    at_most: float | None = None
    faster: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def median(self, side: str) -> float:
        """The median time of a side."""
        return statistics.median(self.times[side])

    def ratio(self, peer: str) -> float:
        """How many times faster than ``peer`` the project is."""
        return self.median(peer) / self.median(PROJECT)

    def target(self) -> str:
        """The target in words."""
        parts = [f"≤ {show(self.at_most)}"] if self.at_most is not None else []
        parts += [f"≥ {least:g}× {peer}" for peer, least in self.faster.items()]
        return ", ".join(parts)

    def met(self) -> bool | None:
        """Whether the project reaches the target; None if what it needs was not measured."""
        if PROJECT not in self.times or not set(self.faster) <= set(self.times):
            return None
        in_time = self.at_most is None or self.median(PROJECT) <= self.at_most
        return in_time and all(self.ratio(p) >= least for p, least in self.faster.items())

    def as_dict(self) -> dict:
        """For the JSON file."""
        return {
            "what": self.what,
            "seconds": self.times,
            "median_seconds": {side: self.median(side) for side in self.times},
            "times_faster": {
                side: self.ratio(side)
                for side in self.times
                if side != PROJECT and PROJECT in self.times
            },
            "target": self.target(),
            "met": self.met(),
            "note": self.note,
        }


def alternate(
    measures: dict[str, Callable[[], float]],
    rounds: dict[str, int],
    warmups: int = 1,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Take turns between sides and return each one's times.

    Args:
        measures: side → a function that measures once and returns seconds.
        rounds: side → how often it takes part; it sits out the rounds after that.
        warmups: runs of each side beforehand whose times are thrown away.
        pause: seconds between two measurements, in which a side's worker threads go to sleep.
    """
    for _ in range(warmups):
        for measure in measures.values():
            measure()
    times: dict[str, list[float]] = {side: [] for side in measures}
    sides = list(measures)
    for number in range(max(rounds[side] for side in sides)):
        first = number % len(sides)  # nobody always runs right after the same one
        for side in sides[first:] + sides[:first]:
            if number < rounds[side]:
                time.sleep(pause)
                times[side].append(measures[side]())
    return times


def show(seconds: float) -> str:
    """A time for reading, with its unit."""
    if abs(seconds) >= 1:
        return f"{seconds:.3g} s" if abs(seconds) < 100 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table of medians."""
    sides = list(dict.fromkeys(side for row in rows for side in row.times))
    peers = [side for side in sides if side != PROJECT]
    lines = [["what", *sides, *(f"× {peer}" for peer in peers), "target", "met"]]
    for row in rows:
        medians = [
            f"{show(row.median(s))} ({len(row.times[s])})" if s in row.times else "–" for s in sides
        ]
        known = PROJECT in row.times
        ratios = [f"{row.ratio(p):.2f}" if known and p in row.times else "–" for p in peers]
        met = {True: "yes", False: "NO", None: "–"}[row.met()]
        lines.append([row.what, *medians, *ratios, row.target() or "–", met])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    text = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join(text + (["", *notes] if notes else []))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options all benchmarks have."""
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that imports this project: installed there, or through PYTHONPATH",
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="interpreter of another environment, with DeepSpeed installed; none: not compared",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=MIN_ROUNDS,
        help="repeats of each measurement (default and least for a result to keep: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE")


def sides_of(args: argparse.Namespace) -> list[Side]:
    """The project's side and, where an interpreter was given, the peer's.

    Ends the process if they can't be measured against each other.
    """
    sides = [Side(PROJECT, os.path.abspath(args.python), keep_pythonpath=True)]
    if args.peer_python:
        sides.append(Side(PEER, os.path.abspath(args.peer_python)))
    for side in sides:
        if not os.access(side.python, os.X_OK):
            raise SystemExit(f"{side.name}: there is no interpreter {side.python}")
    versions = [side.versions()["deepspeed"].split("+")[0] for side in sides]
    if len(set(versions)) < len(sides):
        raise SystemExit(f"both interpreters import deepspeed {versions[0]}: no peer to measure")
    return sides


def environment(sides: list[Side]) -> dict[str, str]:
    """The machine, the commit, and the versions on each side."""
    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiler": _first_line([*shlex.split(os.environ.get("CXX", "g++")), "--version"]),
    }
    for side in sides:
        facts[side.name] = ", ".join(f"{k} {v}" for k, v in side.versions().items())
    return facts


def command_line(args: argparse.Namespace) -> str:
    """This process's command as another machine can repeat it.

    The interpreters lie elsewhere there, so they are written as variables, and other paths
    outside this checkout by their last part.
    """

    def shown(word: str) -> str:
        if word in (args.python, args.peer_python):
            return "$PYTHON" if word == args.python else "$PEER_PYTHON"
        path = Path(word)
        if path.is_absolute():
            word = str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else path.name
        return shlex.quote(word)

    return " ".join(["python", shown(str(Path(sys.argv[0]).resolve())), *map(shown, sys.argv[1:])])


def report(rows: list[Row], args: argparse.Namespace, sides: list[Side]) -> None:
    """Print the environment and the table; write the files that were asked for."""
    facts = {**environment(sides), "command": command_line(args)}
    header = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    text = (
        f"{header}\n\nMedians, with the number of measurements in brackets; "
        f"'× peer' is how many times faster this project is.\n\n{table(rows)}\n"
    )
    print(text)
    if args.rounds < MIN_ROUNDS:
        print(f"Fewer than {MIN_ROUNDS} rounds: not a result to keep.", file=sys.stderr)
    if args.json:
        results = {**facts, "rows": [row.as_dict() for row in rows]}
        _write(args.json, json.dumps(results, indent=1, ensure_ascii=False))
    if args.markdown:
        _write(args.markdown, f"# {args.markdown.stem}\n\n{text.rstrip()}")


def progress(text: str) -> None:
    """Say on standard error what is being measured."""
    print(f"… {text}", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _commit() -> str:
    commit = _first_line(["git", "-C", str(_ROOT), "rev-parse", "--short=12", "HEAD"])
    changed = _first_line(["git", "-C", str(_ROOT), "status", "--porcelain"])
    return f"{commit} with uncommitted changes" if commit and changed else commit or "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout else ""
