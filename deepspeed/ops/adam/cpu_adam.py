"""Adam and AdamW on the CPU. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from deepspeed.ops.cpu_optimizer import CPUOptimizer
from deepspeed.ops.op_builder import CPUAdamBuilder


class DeepSpeedCPUAdam(CPUOptimizer):
    r"""Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) for CPU parameters.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow (1 - \text{lr}\,\lambda)\,p
            - \text{lr}\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Without ``adamw_mode`` the decay :math:`\lambda` is added to the gradient instead:
    :math:`g \leftarrow g + \lambda p`. Arithmetic is float32 whatever the dtypes.

    Args:
        model_params: parameters or groups; float32, float16 or bfloat16, any shapes.
        lr: learning rate; a float or a one-element tensor.
        bias_correction: divide by :math:`1 - \beta^t`.
        betas: coefficients :math:`\beta_1, \beta_2`, in [0, 1).
        eps: added to the denominator.
        weight_decay: :math:`\lambda`.
        amsgrad: not supported, must be False.
        adamw_mode: decouple the decay from the gradient.
        fp32_optimizer_states: keep ``exp_avg`` and ``exp_avg_sq`` in float32; if False, in the
            parameter's dtype.

    Raises:
        ValueError: a hyperparameter is out of range.
        RuntimeError: ``amsgrad`` is True.
    """

    optimizer_id = 0
    _STATES = ("exp_avg", "exp_avg_sq")
    _KEPT = ("fp32_optimizer_states", "adam_w_mode")

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        self.adam_w_mode = adamw_mode
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "amsgrad": amsgrad,
        }
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        decoupled = group.get("decoupled_weight_decay", self.adam_w_mode)
        if bool(decoupled) != bool(self.adam_w_mode) and float(group["weight_decay"]) != 0.0:
            raise ValueError(
                f"the group was made with decoupled_weight_decay={decoupled}; construct "
                f"{type(self).__name__} with adamw_mode={bool(decoupled)}"
            )

    def _create_native(self, opt_id: int) -> Callable[[int], int]:
        self.ds_opt_adam = CPUAdamBuilder().load()
        defaults = self.defaults
        beta1, beta2 = defaults["betas"]
        self.ds_opt_adam.create_adam(
            opt_id,
            float(defaults["lr"]),
            float(beta1),
            float(beta2),
            float(defaults["eps"]),
            float(defaults["weight_decay"]),
            bool(self.adam_w_mode),
            False,
        )
        return self.ds_opt_adam.destroy_adam

    @staticmethod
    def _hyperparameters(group: dict[str, Any]) -> tuple[float, float, float, float, float]:
        beta1, beta2 = group["betas"]
        values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
        return tuple(float(value) for value in values)

    def _native_step(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        self.ds_opt_adam.adam_step(
            params,
            grads,
            *states,
            step,
            *self._hyperparameters(group),
            bool(self.adam_w_mode),
            bool(group["bias_correction"]),
        )

    # -- one parameter at a time, with state under a number ---------------------------------

    def step_subgroup(self, subgroup_id: int, closure: Callable[[], Any] | None = None) -> Any:
        """Like :meth:`step` for the one parameter that has a gradient; its state is kept under
        ``subgroup_id``, so that the parameter object may change from step to step.

        Raises:
            RuntimeError: several parameters have gradients; they can't share one state.
        """
        loss = self._evaluate(closure)
        with torch.no_grad():
            for group, param in self._subgroup():
                state = self.state[subgroup_id]
                if not state:
                    self._prepare_state(param, state)
                self._update(group, state["step"] + 1, [param], [param.grad], [state])
        return loss

    def rollback_subgroup(self, sub_group_id: int, closure: Callable[[], Any] | None = None) -> Any:
        """Undo the last :meth:`step_subgroup`, given the same gradient and hyperparameters.

        Raises:
            RuntimeError: there is no step to undo, or it can't be undone: the tensors aren't all
                float32, or a beta or :math:`1 - lr λ` is 0.
        """
        loss = self._evaluate(closure)
        with torch.no_grad():
            for group, param in self._subgroup():
                self._rollback(group, param, sub_group_id)
        return loss

    def _rollback(self, group: dict[str, Any], param: Tensor, subgroup_id: int) -> None:
        state = self.state.get(subgroup_id)
        if not state or state["step"] <= 0:
            raise RuntimeError(
                f"subgroup {subgroup_id} has no step to roll back; call step_subgroup() first"
            )
        written = [param, *(state[name] for name in self._STATES)]
        dense = [tensor.contiguous() for tensor in written]
        status = self.ds_opt_adam.adam_rollback(
            self.opt_id,
            state["step"],
            *self._hyperparameters(group),
            bool(group["bias_correction"]),
            dense[0],
            param.grad.contiguous(),
            *dense[1:],
        )
        if status != 0:
            raise RuntimeError(
                f"step {state['step']} of subgroup {subgroup_id} can't be undone: that needs "
                f"float32 tensors, and betas and 1 - lr * weight_decay other than 0; restore a "
                f"copy instead"
            )
        for original, copy in zip(written, dense):
            if copy is not original:
                original.copy_(copy)
        torch.autograd.graph.increment_version(param)
        state["step"] -= 1

    def _subgroup(self) -> list[tuple[dict[str, Any], Tensor]]:
        found = [
            (group, param)
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        if len(found) > 1:
            raise RuntimeError(
                f"{len(found)} parameters have gradients, but a subgroup has one state; set the "
                f"gradients of the others to None"
            )
        return found
