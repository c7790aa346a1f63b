"""How long it takes to get the ops: first and later loads, installing, reporting, importing.

Rows:
    first_load   `CPUAdamBuilder().load()` on an empty cache: compiles
    later_load   the same in a fresh process, with the cache filled
    install      `pip install .` that compiles nothing, with the dependencies already there
    report       `python -m deepspeed.env_report`, beside `python -c "import torch"`
    import       `import deepspeed` after `import torch`

What is timed in the first two is the call to load() alone; torch and deepspeed were imported
before, on both sides. A first load of DeepSpeed takes most of a minute, so it is repeated
--peer-first-loads times only; the table says how often.

    python benchmarks/build_times.py --peer-python PEER/bin/python
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path

from timing import (
    PEER,
    PROJECT,
    Row,
    Side,
    add_arguments,
    alternate,
    progress,
    report,
    show,
    sides_of,
)

_CHECKOUT = Path(__file__).resolve().parent.parent
_TORCH = "import torch"
_NOT_SOURCE = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*_cache")

_LOAD = """
import time, torch
from deepspeed.ops.op_builder import CPUAdamBuilder
builder = CPUAdamBuilder()
start = time.perf_counter()
builder.load()
print()
print(time.perf_counter() - start)
"""

_IMPORT = """
import time, torch
start = time.perf_counter()
import deepspeed
print()
print(time.perf_counter() - start)
"""

# An environment without packages of its own that sees those of the one given: dependencies are
# there, the project isn't, and installing it leaves the given one as it was.
_LAYERED_ENVIRONMENT = """
import sys, sysconfig, venv
from pathlib import Path
folder = sys.argv[1]
venv.create(folder, with_pip=False, symlinks=True)
paths = {"base": folder, "platbase": folder}
site = Path(sysconfig.get_path("purelib", "venv", paths))
(site / "below.pth").write_text(sysconfig.get_path("purelib") + "\\n")
"""


def first_load(sides: list[Side], args: argparse.Namespace) -> Row:
    """An empty cache for every single load."""
    _load_from_nothing(sides[0])  # a warm-up; one of the peer's would take another minute
    rounds = {PROJECT: args.rounds, PEER: args.peer_first_loads}
    measures = {s.name: partial(_load_from_nothing, s) for s in sides}
    times = alternate(measures, rounds, warmups=0)
    return Row("cpu_adam, first load(), empty cache", times, 3.0, {PEER: 15.0})


def _load_from_nothing(side: Side) -> float:
    with tempfile.TemporaryDirectory() as cache:
        seconds = side.seconds(_LOAD, TORCH_EXTENSIONS_DIR=cache)
        if not any(Path(cache).iterdir()):
            raise RuntimeError(f"{side.name}: a prebuilt cpu_adam is installed there")
        return seconds


def later_load(sides: list[Side], args: argparse.Namespace) -> Row:
    """A fresh process for every load, and one cache per side that is filled beforehand."""
    with tempfile.TemporaryDirectory() as root:
        caches = {side.name: str(Path(root, str(n))) for n, side in enumerate(sides)}

        measures = {
            s.name: partial(s.seconds, _LOAD, TORCH_EXTENSIONS_DIR=caches[s.name]) for s in sides
        }
        for fill in measures.values():
            fill()
        times = alternate(measures, _rounds(sides, args))
    return Row("cpu_adam, later load()", times, 0.05, {PEER: 45.0})


def install(sides: list[Side], args: argparse.Namespace) -> Row:
    """A fresh copy of the sources and a fresh environment for every install."""
    sources = {PROJECT: _CHECKOUT}
    if args.peer_source:
        sources[PEER] = args.peer_source.resolve()
    measures = {
        s.name: partial(_install_once, s, sources[s.name]) for s in sides if s.name in sources
    }
    times = alternate(measures, _rounds(sides, args))
    return Row("pip install . in JIT mode", times, 8.0)


def _install_once(side: Side, source: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        target = source
        if source.is_dir():
            target = Path(folder, "source")
            shutil.copytree(source, target, ignore=_NOT_SOURCE)
        side.run(["-c", _LAYERED_ENVIRONMENT, f"{folder}/env"])
        inside = Side(side.name, f"{folder}/env/bin/python")
        seconds = inside.wall(["-m", "pip", "install", "--quiet", str(target)])
        inside.run(["-c", f"import deepspeed; assert {folder!r} in deepspeed.__file__"])
        return seconds


def ds_report(sides: list[Side], args: argparse.Namespace) -> Row:
    """Whole processes; importing torch alone is measured in the same rounds."""
    measures = {s.name: partial(s.wall, ["-m", "deepspeed.env_report"]) for s in sides}
    measures[_TORCH] = partial(sides[0].wall, ["-c", "import torch"])
    times = alternate(measures, dict.fromkeys(measures, args.rounds))
    torch_alone = statistics.median(times.pop(_TORCH))
    return Row(
        "ds_report, whole process",
        times,
        torch_alone + 1.0,
        note=f"the target is 1 s over `import torch`, which took {show(torch_alone)}",
    )


def importing(sides: list[Side], args: argparse.Namespace) -> Row:
    """In a process that has imported torch."""
    times = alternate({s.name: partial(s.seconds, _IMPORT) for s in sides}, _rounds(sides, args))
    return Row("import deepspeed, over importing torch", times, 0.1)


def _rounds(sides: list[Side], args: argparse.Namespace) -> dict[str, int]:
    return {side.name: args.rounds for side in sides}


ROWS = {
    "first_load": first_load,
    "later_load": later_load,
    "install": install,
    "report": ds_report,
    "import": importing,
}


def main() -> None:
    """Measure the rows asked for and report them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument(
        "--peer-first-loads",
        type=int,
        default=2,
        help="repeats of DeepSpeed's first load (default: %(default)s)",
    )
    parser.add_argument(
        "--peer-source",
        type=Path,
        metavar="PATH",
        help="DeepSpeed's source distribution, to time installing it; none: not compared",
    )
    args = parser.parse_args()
    sides = sides_of(args)
    rows = []
    for name in args.only:
        progress(name)
        rows.append(ROWS[name](sides, args))
    report(rows, args, sides)


if __name__ == "__main__":
    main()
