"""How fast the CPU optimizers step: this project, DeepSpeed and torch's fused optimizers.

Every side is a process of its own that stays alive (optimizer_worker.py); in each round every side
steps the same work once. What is timed is the whole `optimizer.step()`. Before that, the sides'
first steps are compared: a side that does other work, or none, ends the benchmark.

    python benchmarks/cpu_optimizers.py --peer-python PEER/bin/python

Torch's fused AdamW keeps the states of bfloat16 parameters in bfloat16, 14 bytes of memory traffic
per parameter, where this project and DeepSpeed keep them in float32, 22 bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from timing import PEER, PROJECT, Row, Side, add_arguments, alternate, progress, report, sides_of
from worker import Process, compare_work

TORCH = "torch fused"

_WORKER = Path(__file__).resolve().with_name("optimizer_worker.py")
_MI = 2**20

# case → description, bytes read and written per parameter, least ratio to each peer
CASES: dict[str, tuple[str, int, dict[str, float]]] = {
    "adam_f32": ("adam, one f32 tensor", 28, {TORCH: 1.0, PEER: 1.0}),
    "adam_bf16": ("adam, one bf16 tensor, f32 states", 22, {TORCH: 1.0, PEER: 1.0}),
    "adam_many": ("adam, 2,000 f32 tensors of 4-64 Ki", 28, {TORCH: 2.0, PEER: 2.0}),
    "adagrad_f32": ("adagrad, one f32 tensor", 20, {TORCH: 1.0, PEER: 1.0}),
    "lion_f32": ("lion, one f32 tensor", 20, {PEER: 1.0}),
}


def measure(case: str, processes: list[Process], args: argparse.Namespace) -> Row:
    """Measure one case on every side that has it."""
    what, traffic, faster = CASES[case]
    setups = {p.name: p.ask(f"setup {case} {args.size}") for p in processes}
    present = [p for p in processes if "change" in setups[p.name]]
    # bfloat16 sides may round differently; their changes are small multiples of one last place.
    tolerance = 0.05 if "bf16" in case else 1e-3
    compare_work(case, {p.name: setups[p.name]["change"] for p in present}, tolerance)
    times = alternate(
        {p.name: partial(p.seconds, args.steps) for p in present},
        {p.name: args.rounds for p in present},
        pause=args.pause,
    )
    for process in processes:
        process.ask("drop")
    row = Row(f"{what}" if args.size == 64 * _MI else f"{what} ({args.size})", times, None, faster)
    if "many" not in case:
        rate = traffic * args.size / row.median(PROJECT) / 1e9
        row.note = f"this project moves {traffic} bytes per parameter at {rate:.1f} GB/s"
    return row


def main() -> None:
    """Measure the cases asked for and report them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument(
        "--size", type=int, default=64 * _MI, help="elements in all (default: %(default)s, 64 Mi)"
    )
    parser.add_argument(
        "--steps", type=int, default=5, help="steps per measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.1,
        help="seconds between measurements, for idle threads to go to sleep (default: %(default)s)",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="keep the built ops in DIR; default: build all again, DeepSpeed's in minutes",
    )
    args = parser.parse_args()

    sides = sides_of(args)
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(args.cache or folder).resolve())
        built = {"TORCH_EXTENSIONS_DIR": cache}
        processes = [Process(side, _WORKER, "deepspeed", **built) for side in sides]
        processes.append(Process(Side(TORCH, sides[0].python), _WORKER, "torch", **built))
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
