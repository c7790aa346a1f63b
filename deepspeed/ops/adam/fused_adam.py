"""Adam and AdamW on GPUs. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from deepspeed.ops.fused_optimizer import FusedOptimizer
from deepspeed.ops.op_builder import FusedAdamBuilder


class FusedAdam(FusedOptimizer):
    r"""Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) for GPU parameters.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow (1 - \text{lr}\,\lambda)\,p
            - \text{lr}\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Without ``adam_w_mode`` the decay :math:`\lambda` is added to the gradient instead:
    :math:`g \leftarrow g + \lambda p`. Arithmetic is float32, for float64 parameters float64.

    Args:
        params: parameters or groups; float32, float16, bfloat16 or float64, any shapes, any number
            of GPUs.
        lr: learning rate; a float or a one-element tensor.
        bias_correction: divide by :math:`1 - \beta^t`.
        betas: coefficients :math:`\beta_1, \beta_2`, in [0, 1).
        eps: added to the denominator.
        adam_w_mode: decouple the decay from the gradient.
        weight_decay: :math:`\lambda`.
        amsgrad: not supported, must be False.
        set_grad_none: :meth:`zero_grad` sets gradients to None.
        capturable: keep counts on the GPU, so that a CUDA graph of :meth:`step` can be replayed.
            ``lr`` may then be a float32 tensor on the GPU, read at each replay. A
            ``torch.amp.GradScaler`` then leaves unscaling, and skipping a step with infinities, to
            the kernel: no host waits. Gradients stay scaled.

    Raises:
        ValueError: a hyperparameter is out of range.
        RuntimeError: ``amsgrad`` is True.
    """

    _STATES = ("exp_avg", "exp_avg_sq")
    _KEPT = ("set_grad_none", "capturable", "adam_w_mode")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
    ) -> None:
        self.adam_w_mode = int(adam_w_mode)
        self.set_grad_none = set_grad_none
        self.capturable = capturable
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)
        self._load_op()

    def _load_op(self) -> None:
        self._op = FusedAdamBuilder().load()
        self.multi_tensor_adam = self._op.multi_tensor_adam

    def _native_step(
        self,
        group: dict[str, Any],
        step: Any,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        beta1, beta2 = map(float, group["betas"])
        constants = beta1, beta2, float(group["eps"]), float(group["weight_decay"])
        modes = bool(self.adam_w_mode), bool(group["bias_correction"])
        tensors = params, grads, *states
        if not self.capturable:
            self._op.adam_step(*tensors, step, float(group["lr"]), *constants, *modes)
            return
        device = params[0].device
        lr = self._on_device(group["lr"], device)
        self._op.adam_step_on_device(
            *tensors, step, lr, *constants, *modes, *self._amp_scaling(device)
        )
