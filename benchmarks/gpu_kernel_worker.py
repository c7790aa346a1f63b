"""Runs one GPU kernel on command: the process that gpu_kernels.py talks to.

Commands and answers are those of gpu_optimizer_worker.py. `--library deepspeed` uses whatever
deepspeed the interpreter imports; `copy` copies as many bytes as the kernel moves at least.

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
from torch import Tensor

ROWS, COLUMNS = 65536, 4096
IMAGES = {"large": (16, 320, 128, 128), "small": (2, 1280, 32, 32)}
F16 = torch.float16

Work = Callable[[], object]


def quantizer() -> object:
    """The op of the deepspeed in this interpreter."""
    from deepspeed.ops.op_builder import QuantizerBuilder

    return QuantizerBuilder().load()


def matrix() -> Tensor:
    """The same numbers on every side."""
    torch.manual_seed(0)
    return torch.randn(ROWS, COLUMNS, device="cuda", dtype=F16)


def quantize(bits: str, size: str) -> tuple[Work, float]:
    op, x, groups = quantizer(), matrix(), ROWS * COLUMNS // int(size)
    q, params = op.quantize(x, groups, int(bits), op.Symmetric)
    back = op.dequantize(q, params, groups, int(bits), op.Symmetric)
    return lambda: op.quantize(
        x, groups, int(bits), op.Symmetric
    ), back.float().square().sum().item()


def dequantize(bits: str, size: str) -> tuple[Work, float]:
    op, x, groups = quantizer(), matrix(), ROWS * COLUMNS // int(size)
    q, params = op.quantize(x, groups, int(bits), op.Symmetric)
    back = op.dequantize(q, params, groups, int(bits), op.Symmetric)
    del x
    work = lambda: op.dequantize(q, params, groups, int(bits), op.Symmetric)  # noqa: E731
    return work, back.float().square().sum().item()


def fake(bits: str, size: str) -> tuple[Work, float]:
    op, x, groups = quantizer(), matrix(), ROWS * COLUMNS // int(size)
    op.ds_quantize_fp16(x, groups, int(bits))
    return lambda: op.ds_quantize_fp16(x, groups, int(bits)), x.float().square().sum().item()


def reduce(bits: str, parts: str) -> tuple[Work, float]:
    """A result of 64 Mi codes in groups of 2,048."""
    op, parts, numel, size = quantizer(), int(parts), 1 << 26, 2048
    torch.manual_seed(0)
    x = torch.randn(1, parts * numel, device="cuda", dtype=F16)
    q, params = op.quantize(x, x.numel() // size, int(bits), op.Symmetric)
    del x
    groups = parts * numel // size, numel // size
    work = lambda: op.quantized_reduction(q, params, *groups, int(bits), op.Symmetric, parts)  # noqa: E731
    out, out_params = work()
    back = op.dequantize(out, out_params, numel // size, int(bits), op.Symmetric)
    return work, back.float().square().sum().item()


def bias(terms: str, size: str) -> tuple[Work, float]:
    from deepspeed.ops.op_builder import SpatialInferenceBuilder

    op = SpatialInferenceBuilder().load()
    torch.manual_seed(0)
    shape = IMAGES[size]
    x, other = (
        torch.randn(shape, device="cuda", dtype=F16).to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    b = torch.randn(shape[1], device="cuda", dtype=F16)
    work = (
        (lambda: op.nhwc_bias_add(x, b))
        if terms == "add"
        else (lambda: op.nhwc_bias_add_add(x, b, other))
    )
    return work, work().float().square().sum().item()


KINDS = {
    "quantize": quantize,
    "dequantize": dequantize,
    "fake": fake,
    "reduce": reduce,
    "bias": bias,
}


def copy_of(bytes_moved: int) -> Work:
    """A copy that reads half of ``bytes_moved`` and writes as much."""
    source = torch.empty(bytes_moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


class Worker:
    """Answers commands; holds the work between them."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._work: Work | None = None

    def setup(self, case: str, bytes_moved: str, as_graph: str) -> dict:
        """Prepare the work; the first call compiles the op."""
        kind, *arguments = case.split("_")
        answer: dict = {}
        if self._library == "copy":
            self._work = copy_of(int(bytes_moved))
        else:
            try:
                self._work, answer["result"] = KINDS[kind](*arguments)
            except AttributeError as error:
                return {"absent": str(error)}
        if as_graph == "graph":
            self._work = self._captured(self._work)
        answer["ready"] = True
        return answer

    @staticmethod
    def _captured(work: Work) -> Work:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def run(self, steps: str) -> dict:
        """Time calls after one that is not timed."""
        self._work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(int(steps)):
            self._work()
        torch.cuda.synchronize()
        return {"seconds": (time.perf_counter() - start) / int(steps)}

    def drop(self) -> dict:
        """Forget the work and with it the tensors."""
        self._work = None
        torch.cuda.empty_cache()
        return {}


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=["deepspeed", "copy"], required=True)
    worker = Worker(parser.parse_args().library)
    # Answers have standard output for themselves: whatever else is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(getattr(worker, name)(*arguments)), file=answers)


if __name__ == "__main__":
    main()
