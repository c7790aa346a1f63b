"""Op spatial_inference: biases of tensors whose channels lie next to each other in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CUDAOpBuilder
from .errors import SelfCheckError

if TYPE_CHECKING:
    import torch


class SpatialInferenceBuilder(CUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_SPATIAL_INFERENCE"
    NAME = "spatial_inference"
    functions = ("bias_add",)

    def absolute_name(self) -> str:
        return f"deepspeed.ops.spatial.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/spatial/bias_add.cpp", "csrc/spatial/bias_add.cu"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/spatial"]

    def bind(self, ops: SimpleNamespace) -> object:
        return SpatialInferenceOp(ops)

    def self_check(self, op: SpatialInferenceOp) -> None:
        """All terms, with a number of channels for vectors and one for single elements."""
        import torch

        generator = torch.Generator().manual_seed(0)
        for channels in (3, 64):
            shapes = ((2, 5, channels), (channels,), (2, 5, channels), (channels,))
            x, b, o, c = (torch.randn(s, generator=generator).cuda().half() for s in shapes)
            result = op.nhwc_bias_add_bias_add(x, b, o, c)
            if not torch.equal(result, ((x.float() + b) + (o.float() + c.float())).half()):
                raise SelfCheckError(
                    f"Op {self.name}: sums of {channels} channels are wrong.",
                    "Rebuild the op: run `ds_report --cache clear`, then load it again.",
                )


class SpatialInferenceOp:
    """What ``SpatialInferenceBuilder().load()`` returns.

    ``x`` is 4-D in channels_last order, with biases over dimension 1, or contiguous [B, S, C]; all
    tensors are of one dtype, float16, bfloat16 or float32, on one GPU. ``other`` may have any
    strides. Sums are float32, rounded once. Results are new tensors of ``x``'s memory format.
    Functions raise RuntimeError for what can't be done.
    """

    def __init__(self, ops: SimpleNamespace) -> None:
        self._ops = ops

    def nhwc_bias_add(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """``x + bias``."""
        return self._sum(x, bias, None, None)

    def nhwc_bias_add_add(
        self, x: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        """``x + bias + other``."""
        return self._sum(x, bias, other, None)

    def nhwc_bias_add_bias_add(
        self, x: torch.Tensor, bias: torch.Tensor, other: torch.Tensor, other_bias: torch.Tensor
    ) -> torch.Tensor:
        """``(x + bias) + (other + other_bias)``."""
        return self._sum(x, bias, other, other_bias)

    def _sum(
        self,
        x: torch.Tensor,
        bias: torch.Tensor,
        other: torch.Tensor | None,
        other_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        import torch

        order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        if other is not None:
            # DeepSpeed reads an `other` of another order as if it were x's.
            other = other.contiguous(memory_format=order)
        out = torch.empty_like(x, memory_format=order)
        self._ops.bias_add(x, bias, other, other_bias, out)
        return out
