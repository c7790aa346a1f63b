"""Adagrad on the CPU. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from deepspeed.ops.cpu_optimizer import CPUOptimizer
from deepspeed.ops.op_builder import CPUAdagradBuilder


class DeepSpeedCPUAdagrad(CPUOptimizer):
    r"""Adagrad (Duchi, Hazan & Singer, 2011) for CPU parameters.

    .. math::
        g &\leftarrow g + \lambda p \\
        v &\leftarrow v + g^2 \\
        p &\leftarrow p - \text{lr}\,\frac{g}{\sqrt{v} + \epsilon}

    Arithmetic is float32 whatever the dtypes. A sparse COO gradient updates the rows it holds;
    repeated indices are summed first.

    Args:
        model_params: parameters or groups; float32, float16 or bfloat16, any shapes.
        lr: learning rate; a float or a one-element tensor.
        eps: added to the denominator.
        weight_decay: :math:`\lambda`; must be 0 with sparse gradients.
        amsgrad: not supported, must be False.
        fp32_optimizer_states: keep ``exp_avg_sq`` in float32; if False, in the parameter's dtype.

    Raises:
        ValueError: a hyperparameter is out of range.
        RuntimeError: ``amsgrad`` is True.
    """

    optimizer_id = 0
    _STATES = ("exp_avg_sq",)
    _STATE_ALIASES = {"sum": "exp_avg_sq"}  # torch.optim.Adagrad's name
    _UNSUPPORTED = (*CPUOptimizer._UNSUPPORTED, "lr_decay")

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _create_native(self, opt_id: int) -> Callable[[int], int]:
        self.ds_opt_adagrad = CPUAdagradBuilder().load()
        self.ds_opt_adagrad.create_adagrad(opt_id, *self._hyperparameters(self.defaults), False)
        return self.ds_opt_adagrad.destroy_adagrad

    @staticmethod
    def _hyperparameters(group: dict[str, Any]) -> tuple[float, float, float]:
        return float(group["lr"]), float(group["eps"]), float(group["weight_decay"])

    def _native_step(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        self.ds_opt_adagrad.adagrad_step(
            params, grads, *states, step, *self._hyperparameters(group)
        )

    def _check_sparse(self, group: dict[str, Any]) -> None:
        if float(group["weight_decay"]) != 0.0:
            raise RuntimeError(
                f"{type(self).__name__}: weight_decay would touch rows a sparse gradient leaves "
                f"alone; set it to 0 in the group of such parameters"
            )

    def _sparse_step(
        self, group: dict[str, Any], step: int, param: Tensor, grad: Tensor, *states: Tensor
    ) -> None:
        grad = grad.coalesce()
        rows = tuple(grad.indices())
        written = [param, *states]
        touched = [tensor[rows].contiguous() for tensor in written]
        values = grad.values().contiguous()
        self._native_step(group, step, touched[:1], [values], [touched[1:]])
        for tensor, rows_updated in zip(written, touched):
            tensor[rows] = rows_updated
