"""Op fused_lion: Lion steps on GPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CUDAOpBuilder
from .optimizer_check import compare, random_lists

if TYPE_CHECKING:
    import torch


class FusedLionBuilder(CUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_FUSED_LION"
    NAME = "fused_lion"
    functions = ("lion_step",)

    def absolute_name(self) -> str:
        return f"deepspeed.ops.lion.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/lion/fused_lion.cpp", "csrc/lion/fused_lion.cu"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/lion"]

    def bind(self, ops: SimpleNamespace) -> object:
        return FusedLionOp(ops)

    def self_check(self, op: FusedLionOp) -> None:
        """One step in float32 and with bfloat16 parameters, against float64."""
        lr, beta1, beta2, decay = 1e-2, 0.9, 0.99, 0.1
        for low_precision in (False, True):
            lists = random_lists(3, low_precision, "cuda")
            expected: list[list] = [[], []]
            for tensors in zip(*lists):
                p, g, m = (tensor.double() for tensor in tensors)
                sign = (beta1 * m + (1 - beta1) * g).sign()
                expected[0].append(p * (1 - lr * decay) - lr * sign)
                expected[1].append(beta2 * m + (1 - beta2) * g)
            op.lion_step(*lists, lr, beta1, beta2, decay)
            compare(self.NAME, [lists[0], lists[2]], expected)


class FusedLionOp:
    """What ``FusedLionBuilder().load()`` returns."""

    def __init__(self, ops: SimpleNamespace) -> None:
        self.lion_step = ops.lion_step

    def multi_tensor_lion(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: Sequence[Sequence[torch.Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        step: int,
        weight_decay: float,
    ) -> None:
        """Update parameters and momentum in place: DeepSpeed's function.

        Args:
            chunk_size, noop_flag, step: not used.
            tensor_lists: gradients, parameters, exp_avg; lists of equal length, of one GPU and one
                dtype each (float32, float16, bfloat16 or float64; states may be float32 beside
                16-bit parameters).

        Raises:
            RuntimeError: a tensor can't be used; nothing was written.
        """
        grads, params, exp_avgs = (list(tensors) for tensors in tensor_lists)
        self.lion_step(params, grads, exp_avgs, lr, beta1, beta2, weight_decay)
