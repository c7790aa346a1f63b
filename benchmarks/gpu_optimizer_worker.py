"""Steps one GPU optimizer on command: the process that gpu_optimizers.py talks to.

Commands and answers are those of optimizer_worker.py: `setup CASE`, `run STEPS`, `drop`.
`--library deepspeed` uses whatever deepspeed the interpreter imports; `fused` and `foreach` are
PyTorch's own AdamW.

Imports nothing of this project's benchmarks: the peer's interpreter runs it too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import torch

Parameters = list[torch.nn.Parameter]

_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_LION = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 1e-2}


def deepspeed_optimizer(family: str, params: Parameters) -> torch.optim.Optimizer:
    """The optimizer of the deepspeed in this interpreter."""
    if family == "adam":
        from deepspeed.ops.adam import FusedAdam

        return FusedAdam(params, **_ADAM)
    if family == "lamb":
        from deepspeed.ops.lamb import FusedLamb

        return FusedLamb(params, **_ADAM)
    from deepspeed.ops.lion import FusedLion

    return FusedLion(params, **_LION)


def gpt_shapes(hidden: int = 2048, layers: int = 24, vocabulary: int = 50304) -> list[tuple]:
    """The shapes of a GPT's parameters: 290 tensors, 1.316 B elements."""
    shapes = [(vocabulary, hidden), (2048, hidden)]
    for _ in range(layers):
        shapes += [(hidden,)] * 6
        shapes += [(3 * hidden, hidden), (3 * hidden,), (hidden, hidden)]
        shapes += [(4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden)]
    return shapes


def make_parameters(case: str) -> Parameters:
    """Parameters with gradients, equal on every side."""
    torch.manual_seed(0)
    shapes = [(1024,)] * 10_000 if "small" in case else gpt_shapes()
    params = []
    for shape in shapes:
        param = torch.nn.Parameter(torch.randn(shape, device="cuda") * 0.02)
        param.grad = torch.randn(shape, device="cuda") * 0.01
        params.append(param)
    return params


class Worker:
    """Answers commands; holds the optimizer between them."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._step: Callable[[], object] | None = None

    def setup(self, case: str) -> dict:
        """Make the optimizer; its first step compiles the op and allocates the states."""
        family = case.split("_")[0]
        if self._library != "deepspeed" and family != "adam":
            return {"absent": "no such optimizer"}
        params = make_parameters(case)
        if self._library == "deepspeed":
            optimizer = deepspeed_optimizer(family, params)
        else:
            optimizer = torch.optim.AdamW(params, **_ADAM, **{self._library: True})
        total = self._total(params)
        optimizer.step()
        change = abs(self._total(params) - total)
        self._step = optimizer.step
        return {"change": change, "elements": sum(p.numel() for p in params)}

    @staticmethod
    def _total(params: Parameters) -> float:
        """A number that tells whether the same was done, without a second copy of everything."""
        return sum(p.detach().double().square().sum() for p in params).item()

    def run(self, steps: str) -> dict:
        """Time steps, the host's part included, after one that is not timed."""
        self._step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(int(steps)):
            self._step()
        torch.cuda.synchronize()
        return {"seconds": (time.perf_counter() - start) / int(steps)}

    def drop(self) -> dict:
        """Forget the optimizer and with it the tensors."""
        self._step = None
        torch.cuda.empty_cache()
        return {}


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=["deepspeed", "fused", "foreach"], required=True)
    worker = Worker(parser.parse_args().library)
    # Answers have standard output for themselves: whatever else is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(getattr(worker, name)(*arguments)), file=answers)


if __name__ == "__main__":
    main()
