"""Steps one optimizer on command: the process that cpu_optimizers.py talks to.

Started with the interpreter to be measured; `--library deepspeed` uses whatever deepspeed that
interpreter imports, `--library torch` PyTorch's own fused optimizers. Reads one command a line and
answers each with one line of JSON:

    setup CASE SIZE    make parameters, gradients and the optimizer, and do a first step.
                       {"change": norm of what the step changed} or {"absent": reason}
    run STEPS          one step that is not timed, then STEPS that are. {"seconds": per step}
    drop               free everything. {}

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

# Weight decay is on where the peers agree on what it means.
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_ADAGRAD = {"lr": 1e-2, "eps": 1e-10}
_LION = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 1e-2}


def deepspeed_optimizer(family: str, params: Parameters) -> torch.optim.Optimizer:
    """The optimizer of the deepspeed in this interpreter, with float32 states."""
    if family == "adam":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(params, **_ADAM)
    if family == "adagrad":
        from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

        return DeepSpeedCPUAdagrad(params, **_ADAGRAD)
    from deepspeed.ops.lion import DeepSpeedCPULion

    return DeepSpeedCPULion(params, **_LION)


def torch_optimizer(family: str, params: Parameters) -> torch.optim.Optimizer | None:
    """PyTorch's fused optimizer; None if it has none. Its states have the parameters' dtype."""
    if family == "adam":
        return torch.optim.AdamW(params, **_ADAM, fused=True)
    if family == "adagrad":
        return torch.optim.Adagrad(params, **_ADAGRAD, fused=True)
    return None


def make_parameters(case: str, size: int) -> Parameters:
    """Parameters with gradients, equal on every side; ``size`` elements in all, about."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if "bf16" in case else torch.float32
    sizes = [size]
    if "many" in case:  # 2,000 tensors of 4 Ki to 64 Ki elements when size is 64 Mi
        count = max(1, round(2000 * size / 2**26))
        sizes = torch.randint(2**12, 2**16 + 1, (count,), generator=generator).tolist()
    params = []
    for n in sizes:
        param = torch.nn.Parameter(torch.randn(n, generator=generator).to(dtype))
        param.grad = torch.randn(n, generator=generator).to(dtype)
        params.append(param)
    return params


class Worker:
    """Answers commands; holds the optimizer between them."""

    def __init__(self, library: str) -> None:
        self._make = {"deepspeed": deepspeed_optimizer, "torch": torch_optimizer}[library]
        self._step: Callable[[], object] | None = None

    def setup(self, case: str, size: str) -> dict:
        """Make the optimizer; its first step compiles the op and allocates the states."""
        params = make_parameters(case, int(size))
        optimizer = self._make(case.split("_")[0], params)
        if optimizer is None:
            return {"absent": "no such optimizer"}
        before = [param.detach().clone() for param in params]
        optimizer.step()
        changes = ((param.detach() - old).double().norm() for param, old in zip(params, before))
        self._step = optimizer.step
        return {"change": torch.stack(list(changes)).norm().item()}

    def run(self, steps: str) -> dict:
        """Time steps. The one before brings this process's threads and pages back."""
        self._step()
        start = time.perf_counter()
        for _ in range(int(steps)):
            self._step()
        return {"seconds": (time.perf_counter() - start) / int(steps)}

    def drop(self) -> dict:
        """Forget the optimizer and with it the tensors."""
        self._step = None
        return {}


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=["deepspeed", "torch"], required=True)
    worker = Worker(parser.parse_args().library)
    # Answers have standard output for themselves: whatever else is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(getattr(worker, name)(*arguments)), file=answers)


if __name__ == "__main__":
    main()
