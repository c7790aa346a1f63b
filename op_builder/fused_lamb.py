"""Op fused_lamb: LAMB steps on GPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CUDAOpBuilder
from .optimizer_check import compare, random_lists

if TYPE_CHECKING:
    import torch


class FusedLambBuilder(CUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_FUSED_LAMB"
    NAME = "fused_lamb"
    functions = ("lamb_step", "lamb_step_on_device")

    def absolute_name(self) -> str:
        return f"deepspeed.ops.lamb.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/lamb/fused_lamb.cpp", "csrc/lamb/fused_lamb.cu"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/lamb"]

    def bind(self, ops: SimpleNamespace) -> object:
        return FusedLambOp(ops)

    def self_check(self, op: FusedLambOp) -> None:
        """One step in float32 against float64."""
        import torch

        lr, beta1, beta2, eps, decay, step = 1e-2, 0.9, 0.99, 1e-8, 0.1, 3
        lists = random_lists(4, False, "cuda")
        expected: list[list] = [[], [], []]
        for tensors in zip(*lists):
            p, g, m, v = (tensor.double() for tensor in tensors)
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            u = m / (v.sqrt() + eps) + decay * p
            coefficient = (p.norm() / u.norm()).clamp(0.01, 10.0)
            correction = (1 - beta2**step) ** 0.5 / (1 - beta1**step)
            p = p - lr * correction * coefficient * u
            for results, result in zip(expected, (p, m, v)):
                results.append(result)
        coefficients = torch.empty(len(lists[0]), device="cuda")
        op.lamb_step(
            *(*lists, [], coefficients, step, lr, beta1, beta2, eps, decay, 10.0, 0.01, 1.0),
            *(None, False, True),
        )
        compare(self.NAME, [lists[0], lists[2], lists[3]], expected)


class FusedLambOp:
    """What ``FusedLambBuilder().load()`` returns."""

    def __init__(self, ops: SimpleNamespace) -> None:
        self.lamb_step = ops.lamb_step
        self.lamb_step_on_device = ops.lamb_step_on_device

    def lamb(
        self,
        p: torch.Tensor,
        p_copy: torch.Tensor,
        m: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        lr: float,
        beta1: float,
        beta2: float,
        max_coeff: float,
        min_coeff: float,
        eps: float,
        grad_scale: float,
        step: int,
        mode: int,
        bias_correction: int,
        weight_decay: float,
    ) -> torch.Tensor:
        """Update one parameter and its moments in place: DeepSpeed's function.

        Args:
            p: float32, float64, float16 or bfloat16.
            m, v: float32; float64 beside float64.
            p_copy: gets the new parameter in the gradient's dtype; empty for none.
            g: of ``p``'s dtype, or 16-bit beside float32.
            step: counts from 1.
            mode: 0 adds eps inside the root, 1 outside.

        Returns:
            The trust coefficient, a float32 tensor [1].

        Raises:
            RuntimeError: a tensor can't be used; nothing was written.
        """
        import torch

        coefficient = torch.empty(1, dtype=torch.float32, device=p.device)
        self.lamb_step(
            *([p], [g], [m], [v], [p_copy] if p_copy.numel() else [], coefficient, step, lr),
            *(beta1, beta2, eps, weight_decay, max_coeff, min_coeff, grad_scale, None),
            *(mode == 0, bool(bias_correction)),
        )
        return coefficient
