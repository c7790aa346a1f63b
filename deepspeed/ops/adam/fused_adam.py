"""Adam and AdamW on GPUs. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
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
    _KEPT = ("set_grad_none", "adam_w_mode", "capturable")

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

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler passes ``grad_scale`` and ``found_inf`` instead of waiting."""
        return self.capturable

    def _load_op(self) -> None:
        self._op = FusedAdamBuilder().load()
        self.multi_tensor_adam = self._op.multi_tensor_adam

    def _native_step(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        self._op.adam_step(
            *(params, grads, *states, step, float(group["lr"])), *self._constants(group)
        )

    def _constants(self, group: dict[str, Any]) -> tuple[float, float, float, float, bool, bool]:
        beta1, beta2 = map(float, group["betas"])
        decay = float(group["weight_decay"])
        modes = bool(self.adam_w_mode), bool(group["bias_correction"])
        return beta1, beta2, float(group["eps"]), decay, *modes

    # -- counts on the GPU -----------------------------------------------------------------

    def _step_group(self, group: dict[str, Any]) -> None:
        if not self.capturable:
            return super()._step_group(group)
        params, grads = self._with_gradients(group)
        states = self._states_of(params)
        self._prepare_new(params, states)
        batches: dict[int, tuple[list[Any], ...]] = {}
        for row in zip(params, grads, states):
            batch = batches.setdefault(id(row[2]["step"]), ([], [], []))
            for column, value in zip(batch, row):
                column.append(value)
        for batch in batches.values():
            self._update_on_device(group, *batch)

    def _prepare_new(self, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        """States for parameters that have none; those of one kind share a count."""
        new = [(param, state) for param, state in zip(params, states) if not state]
        if not new:
            return
        for kind_params, kind_states in self._by_kind(*map(list, zip(*new))):
            count = torch.zeros((), dtype=torch.float32, device=kind_params[0].device)
            for param, state in zip(kind_params, kind_states):
                self._prepare_state(param, state)
                state["step"] = count

    def _update_on_device(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        states: list[dict[str, Any]],
    ) -> None:
        device = params[0].device
        lr = group["lr"]
        if not isinstance(lr, Tensor):
            lr = torch.full((), lr, dtype=torch.float32, device=device)
        scaling = [getattr(self, name, None) for name in ("grad_scale", "found_inf")]
        tensors = [[state[name] for state in states] for name in self._STATES]
        self._op.adam_step_on_device(
            *(params, grads, *tensors, states[0]["step"], lr.to(device, torch.float32)),
            *self._constants(group),
            *(value if value is None else value.to(device) for value in scaling),
        )
        torch.autograd.graph.increment_version(params)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self.capturable:
            for group in self.param_groups:
                self._share_counts(group)

    def _share_counts(self, group: dict[str, Any]) -> None:
        """Put loaded counts onto the GPUs, equal ones of one kind as one tensor."""
        shared: dict[object, Tensor] = {}
        for param in group["params"]:
            state = self.state.get(param)
            if state:
                key = (param.device, param.dtype, int(state["step"]))
                if key not in shared:
                    count = torch.full((), float(key[2]), dtype=torch.float32, device=param.device)
                    shared[key] = count
                state["step"] = shared[key]
