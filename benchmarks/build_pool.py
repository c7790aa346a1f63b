"""How well the pool of compile jobs keeps the cores busy, and what a rebuild costs.

Builds a copy of this checkout ahead of time: its own ops, and generated ones whose sources are of
very unequal length, in an order that would leave cores idle if it were kept. Rows:

    everything   `python setup.py build_ext -jN` from nothing, beside the CPU time it took: the
                 target is 1.15 times that, divided by N
    no change    the same once more
    one header   after touching a header that one of the generated ops includes

    python benchmarks/build_pool.py --jobs 2
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from timing import PROJECT, Row, add_arguments, progress, report, sides_of

_CHECKOUT = Path(__file__).resolve().parent.parent
_NOT_SOURCE = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*", "*.so")

_FILES_PER_OP = 4

_BUILDER = """
from .builder import TorchCPUOpBuilder


class Dummy{n}Builder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_DUMMY{n}"
    NAME = "dummy{n}"

    def absolute_name(self):
        return "deepspeed.ops.dummy{n}_op"

    def sources(self):
        return [f"csrc/dummy{n}/part{{i}}.cpp" for i in range({parts})]

    def include_paths(self):
        return ["csrc/dummy{n}"]

    functions = ("answer",)
"""

_REGISTRATION = """
#include <torch/csrc/stable/library.h>
static int64_t answer() { return 42; }
STABLE_TORCH_LIBRARY(deepspeed_dummy@n@, m) { m.def("answer() -> int"); }
STABLE_TORCH_LIBRARY_IMPL(deepspeed_dummy@n@, CompositeExplicitAutograd, m) {
  m.impl("answer", TORCH_BOX(&answer));
}
"""

# Each function takes the compiler the same while, so a file's cost is known beforehand.
_FUNCTION = """
double f{i}(double* x, int n) {{
  for (int j = 1; j < n; ++j) x[j] = x[j] * x[j - 1] + {i} / (x[j] + {i}.5);
  for (int j = 1; j < n; ++j) x[j] -= x[(j * {i}) % n] > 0 ? x[j - 1] * {i} : x[j] / {i}.25;
  return x[n - 1];
}}
"""


def generate(checkout: Path, files: int) -> None:
    """Add ops with ``files`` sources in all, each next one longer than the one before."""
    for op in range(files // _FILES_PER_OP):
        builder = _BUILDER.format(n=op, parts=_FILES_PER_OP)
        (checkout / "op_builder" / f"dummy{op}.py").write_text(builder)
        folder = checkout / "csrc" / f"dummy{op}"
        folder.mkdir()
        (folder / "shared.h").write_text("#pragma once\n")
        for part in range(_FILES_PER_OP):
            count = 10 + 10 * (op * _FILES_PER_OP + part)
            functions = "".join(_FUNCTION.format(i=i) for i in range(count))
            names = ", ".join(f"(void*)f{i}" for i in range(count))
            used = f"void* part{part}_of_dummy{op}[] = {{{names}}};\n"
            registration = "" if part else _REGISTRATION.replace("@n@", str(op))
            text = f'#include "shared.h"\n{registration}namespace {{{functions}}}\n{used}'
            (folder / f"part{part}.cpp").write_text(text)


def build(python: str, checkout: Path, jobs: int) -> tuple[float, float, int]:
    """Run the build; wall seconds, CPU seconds of all its processes, and compilations."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        [python, "setup.py", "build_ext", f"-j{jobs}"],
        cwd=checkout,
        env={**os.environ, "DS_BUILD_OPS": "1"},
        capture_output=True,
        text=True,
    )
    wall = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, len(re.findall(r"left\] compile ", done.stdout))


def main() -> None:
    """Measure the rows and report them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--jobs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--files", type=int, default=24, help="generated sources: %(default)s")
    args = parser.parse_args()
    sides = sides_of(args)
    names = ("everything", "no change", "one header")
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: list[float] = []
    compiled: dict[str, int] = {}
    for number in range(args.rounds):
        progress(f"round {number + 1} of {args.rounds}")
        with tempfile.TemporaryDirectory() as folder:
            checkout = Path(folder, "source")
            shutil.copytree(_CHECKOUT, checkout, ignore=_NOT_SOURCE)
            generate(checkout, args.files)
            for name in names:
                if name == "one header":
                    os.utime(checkout / "csrc/dummy0/shared.h")
                wall, cpu, compiled[name] = build(sides[0].python, checkout, args.jobs)
                walls[name].append(wall)
                if name == "everything":
                    cpus.append(cpu)
    cpu = sorted(cpus)[len(cpus) // 2]
    everything = Row(
        f"everything: {compiled['everything']} files, -j{args.jobs}",
        {PROJECT: walls["everything"]},
        1.15 * cpu / args.jobs,
        note=f"{cpu:.1f} s of CPU time (median); the target is 1.15 × that / {args.jobs}",
    )
    nothing = Row("no change", {PROJECT: walls["no change"]}, 2.0)
    header = Row(
        f"one header, {compiled['one header']} files include it", {PROJECT: walls["one header"]}
    )
    assert compiled["no change"] == 0 and compiled["one header"] == _FILES_PER_OP
    report([everything, nothing, header], args, sides)


if __name__ == "__main__":
    main()
