"""Lion on GPUs. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from deepspeed.ops.fused_optimizer import FusedOptimizer
from deepspeed.ops.op_builder import FusedLionBuilder


class FusedLion(FusedOptimizer):
    r"""Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms") on GPUs.

    .. math::
        c &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        p &\leftarrow (1 - \text{lr}\,\lambda)\,p - \text{lr}\,\operatorname{sign}(c) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2) g

    with :math:`\operatorname{sign}(0) = 0`; a NaN stays a NaN. Arithmetic is float32, for float64
    parameters float64.

    Args:
        params: parameters or groups; float32, float16, bfloat16 or float64, any shapes, any number
            of GPUs.
        lr: learning rate; a float or a one-element tensor.
        betas: coefficients :math:`\beta_1, \beta_2`, in [0, 1).
        weight_decay: :math:`\lambda`.
        set_grad_none: :meth:`zero_grad` sets gradients to None.
        capturable: keep counts on the GPU, so that a CUDA graph of :meth:`step` can be replayed.
            ``lr`` may then be a float32 tensor on the GPU, read at each replay. A
            ``torch.amp.GradScaler`` then leaves unscaling, and skipping a step with infinities, to
            the kernel: no host waits. Gradients stay scaled.

    Raises:
        ValueError: a hyperparameter is out of range.
    """

    _STATES = ("exp_avg",)
    _OBSOLETE_STATES = ("exp_avg_sq",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        capturable: bool = False,
    ) -> None:
        self.set_grad_none = set_grad_none
        self.capturable = capturable
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self._load_op()

    def _load_op(self) -> None:
        self._op = FusedLionBuilder().load()
        self.multi_tensor_lion = self._op.multi_tensor_lion

    def _native_step(
        self,
        group: dict[str, Any],
        step: Any,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        constants = *map(float, group["betas"]), float(group["weight_decay"])
        if not self.capturable:
            self._op.lion_step(params, grads, *states, float(group["lr"]), *constants)
            return
        device = params[0].device
        lr = self._on_device(group["lr"], device)
        self._op.lion_step_on_device(
            *(params, grads, *states, step, lr, *constants, *self._amp_scaling(device))
        )
