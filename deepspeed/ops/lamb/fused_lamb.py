"""LAMB on GPUs. Knows the native op's functions and the meaning of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepspeed.ops.fused_optimizer import FusedOptimizer
from deepspeed.ops.op_builder import FusedLambBuilder


@dataclass(frozen=True, slots=True)
class _Row:
    """One parameter of a step: its gradient, where a copy goes, and its gradient's norm."""

    param: Tensor
    grad: Tensor
    output: Tensor | None
    norm: Any


class FusedLamb(FusedOptimizer):
    r"""LAMB (You et al., 2020) for GPU parameters, with DeepSpeed's conventions.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        u &= m / (\sqrt{v} + \epsilon) + \lambda p \\
        p &\leftarrow p - \text{lr}\,\frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\,
            \operatorname{clamp}\!\left(\frac{\|p\|}{\|u\|}\right) u

    The trust coefficient is 1 where a norm is 0. Norms are summed in a fixed order: results repeat
    bit for bit. Arithmetic and states are float32, for float64 parameters float64.

    Args:
        params: parameters or groups; float32, float16, bfloat16 or float64, any shapes, any number
            of GPUs.
        lr: learning rate; a float or a one-element tensor.
        bias_correction: multiply by :math:`\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`.
        betas: coefficients :math:`\beta_1, \beta_2`, in [0, 1).
        eps: added to the denominator; under the root with ``eps_inside_sqrt``.
        weight_decay: :math:`\lambda`.
        max_grad_norm: gradients with a larger norm are scaled down to it; 0 for no limit.
        max_coeff, min_coeff: bounds of the trust coefficient.
        amsgrad: not supported, must be False.
        capturable: keep counts on the GPU, so that a CUDA graph of :meth:`step` can be replayed.
            ``lr`` may then be a float32 tensor on the GPU, read at each replay. A
            ``torch.amp.GradScaler`` then leaves unscaling, and skipping a step with infinities, to
            the kernel: no host waits. Gradients stay scaled.

    Attributes:
        lamb_coeffs: the trust coefficients of the last step, tensors [1], one a parameter.

    Raises:
        ValueError: a hyperparameter is out of range.
        RuntimeError: ``amsgrad`` is True.
    """

    _STATES = ("exp_avg", "exp_avg_sq")
    _KEPT = ("set_grad_none", "capturable", "eps_inside_sqrt")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
        capturable: bool = False,
    ) -> None:
        self.eps_inside_sqrt = eps_inside_sqrt
        self.capturable = capturable
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)
        self._load_op()

    def _load_op(self) -> None:
        self._op = FusedLambBuilder().load()
        self.lamb_coeffs: list[Tensor] = []

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        # In 16 bits exp_avg_sq would vanish.
        return torch.float64 if param.dtype == torch.float64 else torch.float32

    def get_lamb_coeffs(self) -> list[float]:
        """The trust coefficients of the last step; waits for the GPU."""
        return [coefficient.item() for coefficient in self.lamb_coeffs]

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: float = 1.0,
        grad_norms: Any = None,
    ) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: reevaluates the model and returns the loss; runs with gradients enabled.
            grads: gradients to use instead of the parameters' own: an iterable for the first group,
                or a list of lists, one a group.
            output_params: tensors that get copies of the new parameters, in the gradients' dtype;
                given like ``grads``.
            scale: gradients are divided by it.
            grad_norms: one a group: the norm of the scaled gradients, a number or a tensor, or a
                list of one a parameter. Without it, and with ``max_grad_norm``, the norm of all
                gradients is computed on the GPU.

        Returns:
            What the closure returned, or None.

        Raises:
            RuntimeError: a tensor can't be used, or lists have other lengths than the groups.
        """
        if grads is not None and getattr(self, "found_inf", None) is not None:
            raise RuntimeError(
                "FusedLamb.step: GradScaler checks and scales the parameters' own gradients; call "
                "optimizer.step(grads=..., scale=scaler.get_scale()) yourself, or set .grad"
            )
        loss = self._evaluate(closure)
        self.lamb_coeffs = []
        with torch.no_grad():
            groups = list(self._rows(grads, output_params, grad_norms))
            limited = any(group["max_grad_norm"] > 0 for group, _ in groups)
            norm = self._total_norm(groups) if limited and grad_norms is None else None
            for group, rows in groups:
                self._step_rows(group, rows, float(scale), norm)
        return loss

    def _rows(
        self, grads: Any, outputs: Any, norms: Any
    ) -> Iterator[tuple[dict[str, Any], list[_Row]]]:
        count = len(self.param_groups)
        norms = [None] * count if norms is None else norms
        norms = norms if isinstance(norms, (list, tuple)) else [norms]
        columns = [self._by_group(grads, count), self._by_group(outputs, count), list(norms)]
        if not len(columns[0]) == len(columns[1]) == len(columns[2]) == count:
            raise RuntimeError(
                f"grads, output_params and grad_norms describe {[len(c) for c in columns]} groups, "
                f"but the optimizer has {count}; pass one list for each"
            )
        for group, *given in zip(self.param_groups, *columns):
            yield group, self._rows_of_group(group, *given)

    @staticmethod
    def _by_group(given: Any, count: int) -> list[Any]:
        if given is None:
            return [None] * count
        given = list(given)
        nested = bool(given) and isinstance(given[0], (list, tuple))
        return given if nested else [given]

    def _rows_of_group(
        self, group: dict[str, Any], grads: Any, outputs: Any, norms: Any
    ) -> list[_Row]:
        params = group["params"]
        grads = [param.grad for param in params] if grads is None else list(grads)
        outputs = [None] * len(params) if outputs is None else list(outputs)
        per_param = isinstance(norms, (list, tuple))
        norms = list(norms) if per_param else [norms] * len(params)
        if not len(params) == len(grads) == len(outputs) == len(norms):
            raise RuntimeError(
                f"a group has {len(params)} parameters, but {len(grads)} gradients, "
                f"{len(outputs)} outputs and {len(norms)} norms; pass as many of each"
            )
        if self.capturable:
            self._part_counts([(p, g is not None) for p, g in zip(params, grads)])
        rows = map(_Row, params, grads, outputs, norms)
        return [row for row in rows if row.grad is not None]

    @staticmethod
    def _total_norm(groups: list[tuple[dict[str, Any], list[_Row]]]) -> Tensor | None:
        grads: dict[object, list[Tensor]] = {}
        for _, rows in groups:
            for row in rows:
                grads.setdefault((row.grad.device, row.grad.dtype), []).append(row.grad)
        if not grads:
            return None
        # In 16 bits the norm of scaled gradients would overflow.
        norms = [
            norm
            for (_, dtype), kind in grads.items()
            for norm in torch._foreach_norm(kind, 2, dtype=_norm_dtype(dtype))
        ]
        device, wide = norms[0].device, max((n.dtype for n in norms), key=lambda d: d.itemsize)
        return torch.linalg.vector_norm(torch.stack([n.to(device, wide) for n in norms]))

    def _step_rows(
        self, group: dict[str, Any], rows: list[_Row], scale: float, norm: Tensor | None
    ) -> None:
        self._new_counts = {}
        coefficients: dict[int, Tensor] = {}
        batches: dict[object, list[int]] = {}
        for index, row in enumerate(rows):
            if row.grad.layout is not torch.strided:
                self._check_sparse(group)
            state = self.state[row.param]
            if not state:
                self._prepare_state(row.param, state)
            kind = (row.param.device, row.param.dtype, row.grad.dtype, state["step"])
            key = (*kind, row.output is None, id(row.norm))
            batches.setdefault(key, []).append(index)
        self._separate_counts(
            [self.state[rows[i].param] for i in indices] for indices in batches.values()
        )
        for indices in batches.values():
            batch = [rows[i] for i in indices]
            found = norm if batch[0].norm is None else batch[0].norm
            results = self._update_rows(group, batch, scale, found)
            coefficients.update(zip(indices, results.split(1)))
        self.lamb_coeffs += [coefficients[i] for i in range(len(rows))]

    def _update_rows(
        self, group: dict[str, Any], rows: list[_Row], scale: float, norm: Any
    ) -> Tensor:
        """Update parameters of one kind and count; their trust coefficients."""
        states = [self.state[row.param] for row in rows]
        step = self._next_count(states[0]["step"])
        device = rows[0].param.device
        amp_scale, found_inf = self._amp_scaling(device)
        host_scale, device_scale = self._combined_scale(group, scale, norm, device, amp_scale)
        originals = [
            [row.param for row in rows],
            *([state[name] for state in states] for name in self._STATES),
            [row.output for row in rows if row.output is not None],
        ]
        # Where a tensor has gaps or another order than its parameter, a copy is updated.
        dense = [[_in_order(t, p) for t, p in zip(column, originals[0])] for column in originals]
        grads = [_in_order(row.grad, row.param) for row in rows]
        coefficients = torch.empty(len(rows), dtype=torch.float32, device=device)
        beta1, beta2 = map(float, group["betas"])
        constants = beta1, beta2, float(group["eps"]), float(group["weight_decay"])
        bounds = float(group["max_coeff"]), float(group["min_coeff"])
        tensors = dense[0], grads, dense[1], dense[2], dense[3], coefficients
        modes = bool(self.eps_inside_sqrt), bool(group["bias_correction"])
        if self.capturable:
            lr = self._on_device(group["lr"], device)
            scaling = host_scale, device_scale, found_inf
            self._op.lamb_step_on_device(*tensors, step, lr, *constants, *bounds, *scaling, *modes)
        else:
            lr, scaling = float(group["lr"]), (host_scale, device_scale)
            self._op.lamb_step(*tensors, step, lr, *constants, *bounds, *scaling, *modes)
        for column, copies in zip(originals, dense):
            for original, copy in zip(column, copies):
                if copy is not original:
                    original.copy_(copy)
        torch.autograd.graph.increment_version(originals[0])
        for state in states:
            state["step"] = step
        if not self.capturable:
            group["step"] = max(group.get("step", 0), step)
        return coefficients

    @staticmethod
    def _combined_scale(
        group: dict[str, Any],
        scale: float,
        norm: Any,
        device: torch.device,
        amp_scale: Tensor | None,
    ) -> tuple[float, Tensor | None]:
        """What gradients are divided by, on the host and on the GPU."""
        limit = group["max_grad_norm"]
        if not limit > 0 or norm is None:
            return scale, amp_scale
        if isinstance(norm, Tensor):
            norm = norm.to(device)
        norm = norm / scale if amp_scale is None else norm / (scale * amp_scale)
        excess = (norm + 1e-6) / limit
        if not isinstance(excess, Tensor):
            return scale * max(float(excess), 1.0), None
        clip = excess.to(device, torch.float32).clamp(min=1.0)
        return scale, clip if amp_scale is None else clip * amp_scale


def _norm_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _in_order(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor``, or a copy of it that is dense and in the order ``like`` has where that is."""
    if tensor.is_contiguous() and like.is_contiguous():
        return tensor
    if tensor.stride() == torch.empty_like(like, device="meta").stride():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
