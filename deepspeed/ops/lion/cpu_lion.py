"""Lion on the CPU. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from deepspeed.ops.cpu_optimizer import CPUOptimizer
from deepspeed.ops.op_builder import CPULionBuilder


class DeepSpeedCPULion(CPUOptimizer):
    r"""Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms") on the CPU.

    .. math::
        c &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        p &\leftarrow (1 - \text{lr}\,\lambda)\,p - \text{lr}\,\operatorname{sign}(c) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2) g

    with :math:`\operatorname{sign}(0) = 0`; a NaN stays a NaN. Arithmetic is float32 whatever the
    dtypes.

    Args:
        model_params: parameters or groups; float32, float16 or bfloat16, any shapes.
        lr: learning rate; a float or a one-element tensor.
        betas: coefficients :math:`\beta_1, \beta_2`, in [0, 1).
        weight_decay: :math:`\lambda`.
        fp32_optimizer_states: keep ``exp_avg`` in float32; if False, in the parameter's dtype.

    Raises:
        ValueError: a hyperparameter is out of range.
    """

    optimizer_id = 0
    _STATES = ("exp_avg",)
    _OBSOLETE_STATES = ("exp_avg_sq",)

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _create_native(self, opt_id: int) -> Callable[[int], int]:
        self.ds_opt_lion = CPULionBuilder().load()
        self.ds_opt_lion.create_lion(opt_id, *self._hyperparameters(self.defaults), False)
        return self.ds_opt_lion.destroy_lion

    @staticmethod
    def _hyperparameters(group: dict[str, Any]) -> tuple[float, float, float, float]:
        beta1, beta2 = group["betas"]
        return float(group["lr"]), float(beta1), float(beta2), float(group["weight_decay"])

    def _native_step(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        self.ds_opt_lion.lion_step(params, grads, *states, step, *self._hyperparameters(group))
