"""What the CPU optimizers share: which parameters they take, and the native object behind each.

Knows no formula.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from deepspeed.ops.native_optimizer import NativeOptimizer

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class CPUOptimizer(NativeOptimizer):
    """A :class:`NativeOptimizer` of float32, float16 or bfloat16 parameters on the CPU.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        defaults: the groups' default hyperparameters.
        fp32_optimizer_states: keep states in float32 rather than in the parameter's dtype.
    """

    _KEPT: tuple[str, ...] = ("fp32_optimizer_states",)

    optimizer_id = 0

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], fp32_optimizer_states: bool
    ) -> None:
        self.fp32_optimizer_states = fp32_optimizer_states
        super().__init__(params, defaults)
        self._register_native()

    def _create_native(self, opt_id: int) -> Callable[[int], int]:
        """Load the op, create native optimizer ``opt_id``; return the function destroying it."""
        raise NotImplementedError

    def _check_param(self, param: Tensor) -> None:
        if not param.is_cpu:
            raise AssertionError(
                f"{type(self).__name__} updates CPU tensors, but a parameter is on "
                f"{param.device}; move it with .cpu(), or use the optimizer of its device"
            )
        if param.dtype not in _DTYPES:
            raise TypeError(
                f"{type(self).__name__} can't update a parameter of dtype {param.dtype}; convert "
                f"it to float32, float16 or bfloat16"
            )
        self._check_plain(param)

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        return torch.float32 if self.fp32_optimizer_states else param.dtype

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "defaults" in state:  # unpickled or copied, not called by load_state_dict()
            self._register_native()

    def _register_native(self) -> None:
        owner = next(cls for cls in type(self).__mro__ if "optimizer_id" in vars(cls))
        self.opt_id = owner.optimizer_id
        owner.optimizer_id += 1
        destroy = self._create_native(self.opt_id)
        # Not __del__, which would also run, and fail, after a failed load. When the process ends
        # the native side ends with it.
        weakref.finalize(self, destroy, self.opt_id).atexit = False
