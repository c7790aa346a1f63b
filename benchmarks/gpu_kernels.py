"""How fast the GPU kernels of quantizer and spatial_inference run: this project, DeepSpeed where it
has the function, and a copy of as many bytes as each has to move.

Every side is a process of its own that stays alive (gpu_kernel_worker.py); in each round every side
runs the same work in turn. Before that, results are compared: a side that does other work ends the
benchmark. Also measured: how long the first load of each op takes with an empty cache.

    python benchmarks/gpu_kernels.py --peer-python PEER/bin/python
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpu_kernel_worker import COLUMNS, IMAGES, ROWS
from timing import PROJECT, Row, Side, add_arguments, alternate, progress, report, sides_of
from worker import Process

COPY = "copy"

_WORKER = Path(__file__).resolve().with_name("gpu_kernel_worker.py")
_FIRST_LOAD = """
import time, torch
from deepspeed.ops.op_builder import {0} as B
start = time.perf_counter()
B().load()
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Case:
    """A piece of work: bytes it has to move, and what it has to reach on an H200."""

    what: str
    traffic: float
    at_most: float | None = None
    faster: dict[str, float] = field(default_factory=dict)
    graph: bool = False


def _cases() -> dict[str, Case]:
    """All cases; seconds are the targets for an H200, ratios those for any GPU."""
    numel = ROWS * COLUMNS
    shape = f"float16 {ROWS} × {COLUMNS}"
    cases: dict[str, Case] = {}
    for bits, seconds, back in ((8, 0.190e-3, 0.198e-3), (4, 0.163e-3, 0.166e-3)):
        traffic = numel * (2 + bits / 8)
        for size in (128, 1024, 4096):
            what = f"{shape}, {bits} bits, groups of {size}"
            cases[f"quantize_{bits}_{size}"] = Case(f"quantize {what}", traffic, seconds)
            cases[f"dequantize_{bits}_{size}"] = Case(f"dequantize {what}", traffic, back)
        for size in (64, 256, 512, 2048, 8192, 16384):
            what = f"quantize {shape}, {bits} bits, groups of {size}"
            cases[f"quantize_{bits}_{size}"] = Case(what, traffic, None, {COPY: 0.92})
    for size in (128, 1024, 4096):
        what = f"fake quantize {shape}, 8 bits, groups of {size}"
        cases[f"fake_8_{size}"] = Case(what, 4 * numel, 0.270e-3)
    for parts in (2, 8):
        what = f"reduce {parts} parts to 64 Mi codes of 4 bits, groups of 2048"
        cases[f"reduce_4_{parts}"] = Case(what, (parts + 1) * (1 << 25))
    for size, graph in (("large", False), ("small", True)):
        image = IMAGES[size]
        what = f"float16 {'×'.join(map(str, image))}" + (", as a CUDA graph" if graph else "")
        elements = image[0] * image[1] * image[2] * image[3]
        limits = (10e-6, 10e-6) if graph else (0.083e-3, 0.120e-3)
        cases[f"bias_add_{size}"] = Case(f"bias_add {what}", 4 * elements, limits[0], {}, graph)
        what = f"bias_add_add {what}"
        cases[f"bias_addadd_{size}"] = Case(what, 6 * elements, limits[1], {}, graph)
    return cases


CASES = _cases()


def measure(name: str, processes: list[Process], args: argparse.Namespace) -> Row:
    """Measure one case on every side that has it."""
    case = CASES[name]
    command = f"setup {name} {int(case.traffic)} {'graph' if case.graph else 'eager'}"
    setups = {p.name: p.ask(command) for p in processes}
    present = [p for p in processes if "ready" in setups[p.name]]
    results = {p.name: setups[p.name]["result"] for p in present if p.name != COPY}
    for side, result in results.items():
        if not abs(result - results[PROJECT]) <= 1e-2 * abs(results[PROJECT]):
            raise RuntimeError(f"{name}: {side} gets {result}, this project {results[PROJECT]}")
    times = alternate(
        {p.name: partial(p.seconds, args.steps) for p in present},
        {p.name: args.rounds for p in present},
    )
    for process in processes:
        process.ask("drop")
    row = Row(case.what, times, case.at_most, case.faster)
    row.note = f"{case.traffic / row.median(PROJECT) / 1e9:.0f} GB/s"
    return row


def first_loads(side: Side) -> list[Row]:
    """The first load of each op, three times with an empty cache."""
    rows = []
    for op, builder in (
        ("quantizer", "QuantizerBuilder"),
        ("spatial_inference", "SpatialInferenceBuilder"),
    ):
        times = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                code = _FIRST_LOAD.format(builder)
                times.append(side.seconds(code, TORCH_EXTENSIONS_DIR=folder))
        rows.append(Row(f"{op}, first load(), empty cache", {PROJECT: times}, 10.0))
    return rows


def main() -> None:
    """Measure the cases asked for and report them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE")
    parser.add_argument(
        "--steps", type=int, default=20, help="calls per measurement (default: %(default)s)"
    )
    parser.add_argument("--cache", metavar="DIR", help="keep the built ops in DIR")
    args = parser.parse_args()
    sides = sides_of(args)
    with tempfile.TemporaryDirectory() as folder:
        built = {"TORCH_EXTENSIONS_DIR": str(Path(args.cache or folder).resolve())}
        processes = [Process(side, _WORKER, "deepspeed", **built) for side in sides]
        processes.append(Process(Side(COPY, sides[0].python), _WORKER, COPY, **built))
        try:
            rows = []
            for case in args.only or CASES:
                progress(case)
                rows.append(measure(case, processes, args))
        finally:
            for process in processes:
                process.close()
    if args.only is None:
        rows += first_loads(sides[0])
    report(rows, args, sides)


if __name__ == "__main__":
    main()
