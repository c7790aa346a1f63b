"""Op fused_adam: Adam and AdamW steps on GPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CUDAOpBuilder
from .optimizer_check import check_adam_step

if TYPE_CHECKING:
    import torch


class FusedAdamBuilder(CUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_FUSED_ADAM"
    NAME = "fused_adam"
    functions = ("adam_step", "adam_step_on_device")

    def absolute_name(self) -> str:
        return f"deepspeed.ops.adam.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/adam/fused_adam.cpp", "csrc/adam/fused_adam.cu"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/adam"]

    def bind(self, ops: SimpleNamespace) -> object:
        return FusedAdamOp(ops)

    def self_check(self, op: FusedAdamOp) -> None:
        check_adam_step(self.NAME, op.adam_step, "cuda")


class FusedAdamOp:
    """What ``FusedAdamBuilder().load()`` returns."""

    def __init__(self, ops: SimpleNamespace) -> None:
        self.adam_step = ops.adam_step
        self.adam_step_on_device = ops.adam_step_on_device

    def multi_tensor_adam(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: Sequence[Sequence[torch.Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        mode: int,
        bias_correction: int,
        weight_decay: float,
    ) -> None:
        """Update parameters and moments in place: DeepSpeed's function.

        Args:
            chunk_size, noop_flag: not used; Inf and NaN propagate.
            tensor_lists: gradients, parameters, exp_avg, exp_avg_sq; lists of equal length, of one
                GPU and one dtype each (float32, float16, bfloat16 or float64; states may be float32
                beside 16-bit parameters).
            step: counts from 1.
            mode: 1 for AdamW, 0 for decay added to the gradient.

        Raises:
            RuntimeError: a tensor can't be used; nothing was written.
        """
        grads, params, exp_avgs, exp_avg_sqs = (list(tensors) for tensors in tensor_lists)
        self.adam_step(
            *(params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, epsilon),
            *(weight_decay, mode == 1, bool(bias_correction)),
        )
