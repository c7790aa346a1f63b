"""How fast the GPU optimizers step: this project, DeepSpeed, and torch's fused and foreach AdamW.

Every side is a process of its own that stays alive (gpu_optimizer_worker.py); in each round every
side steps the same work in turn. What is timed is the whole `optimizer.step()`, the host's part
included, over enough steps that the GPU is never idle in between where the host keeps up. Before
that, the sides' first steps are compared: a side that does other work, or none, ends the benchmark.

    python benchmarks/gpu_optimizers.py --peer-python PEER/bin/python
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from timing import PEER, PROJECT, Row, Side, add_arguments, alternate, progress, report, sides_of
from worker import Process, compare_work

FUSED, FOREACH = "torch fused", "torch foreach"

_WORKER = Path(__file__).resolve().with_name("gpu_optimizer_worker.py")

# case → description, bytes read and written per element, most seconds on an H200, least ratios
CASES: dict[str, tuple[str, int, float | None, dict[str, float]]] = {
    "adam_gpt": ("adam, 290 f32 tensors, 1.316 B elements", 28, 9.2e-3, {FUSED: 1.15}),
    "adam_small": ("adam, 10,000 f32 tensors of 1 Ki", 28, None, {FUSED: 2.0}),
    "lamb_gpt": ("lamb, 290 f32 tensors, 1.316 B elements", 40, 13.5e-3, {PEER: 1.0}),
    "lion_gpt": ("lion, 290 f32 tensors, 1.316 B elements", 20, None, {PEER: 1.05}),
}


def measure(case: str, processes: list[Process], args: argparse.Namespace) -> Row:
    """Measure one case on every side that has it."""
    what, traffic, at_most, faster = CASES[case]
    setups = {p.name: p.ask(f"setup {case}") for p in processes}
    present = [p for p in processes if "change" in setups[p.name]]
    compare_work(case, {p.name: setups[p.name]["change"] for p in present}, 1e-2)
    times = alternate(
        {p.name: partial(p.seconds, args.steps) for p in present},
        {p.name: args.rounds for p in present},
    )
    for process in processes:
        process.ask("drop")
    row = Row(what, times, at_most, faster)
    rate = traffic * setups[PROJECT]["elements"] / row.median(PROJECT) / 1e9
    row.note = f"this project moves {traffic} bytes per element at {rate:.0f} GB/s"
    return row


def main() -> None:
    """Measure the cases asked for and report them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument(
        "--steps", type=int, default=10, help="steps per measurement (default: %(default)s)"
    )
    parser.add_argument("--cache", metavar="DIR", help="keep the built ops in DIR")
    args = parser.parse_args()
    sides = sides_of(args)
    with tempfile.TemporaryDirectory() as folder:
        built = {"TORCH_EXTENSIONS_DIR": str(Path(args.cache or folder).resolve())}
        processes = [Process(side, _WORKER, "deepspeed", **built) for side in sides]
        for name, library in ((FUSED, "fused"), (FOREACH, "foreach")):
            processes.append(Process(Side(name, sides[0].python), _WORKER, library, **built))
        try:
            rows = []
            for case in args.only:
                progress(case)
                rows.append(measure(case, processes, args))
        finally:
            for process in processes:
                process.close()
    report(rows, args, sides)


if __name__ == "__main__":
    main()
