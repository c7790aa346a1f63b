"""Op fused_lion: Lion steps on GPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CUDAOpBuilder
from .optimizer_check import check_lion_step

if TYPE_CHECKING:
    import torch


class FusedLionBuilder(CUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_FUSED_LION"
    NAME = "fused_lion"
    functions = ("lion_step", "lion_step_on_device")

    def absolute_name(self) -> str:
        return f"deepspeed.ops.lion.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/lion/fused_lion.cpp", "csrc/lion/fused_lion.cu"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/lion"]

    def bind(self, ops: SimpleNamespace) -> object:
        return FusedLionOp(ops)

    def self_check(self, op: FusedLionOp) -> None:
        check_lion_step(self.NAME, op.lion_step, "cuda")


class FusedLionOp:
    """What ``FusedLionBuilder().load()`` returns."""

    def __init__(self, ops: SimpleNamespace) -> None:
        self.lion_step = ops.lion_step
        self.lion_step_on_device = ops.lion_step_on_device

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
