"""Op quantizer: codes of 4 and 8 bits for groups of numbers, and back; on GPUs and CPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from .cuda_builder import CPUAndCUDAOpBuilder
from .errors import SelfCheckError
from .quantizer_functions import QuantizationType, QuantizerOp

if TYPE_CHECKING:
    import torch


class QuantizerBuilder(CPUAndCUDAOpBuilder):
    BUILD_VAR = "DS_BUILD_QUANTIZER"
    NAME = "quantizer"
    functions = (
        "quantize",
        "quantize_with_error",
        "reduce",
        "dequantize",
        "dequantize_unsigned",
        "fake_quantize",
    )

    def absolute_name(self) -> str:
        return f"deepspeed.ops.quantizer.{self.NAME}_op"

    def sources(self) -> list[str]:
        names = (
            *("quantizer.cpp", "quantizer_cpu.cpp", "quantize.cu", "quantize_with_error.cu"),
            *("reduce.cu", "reduce_with_error.cu", "dequantize.cu"),
            *("fake_quantize.cu", "fake_quantize_randomly.cu"),
        )
        return [f"csrc/quantization/{name}" for name in names]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/quantization"]

    def bind(self, ops: SimpleNamespace) -> object:
        return QuantizerOp(ops)

    def self_check(self, op: QuantizerOp) -> None:
        """Codes of odd-sized groups there and back, on each kind of device there is."""
        import torch

        for device in ("cpu", "cuda") if self.wants_gpu_code() else ("cpu",):
            generator = torch.Generator().manual_seed(0)
            for size in (6, 128, 1000, 40_000):
                x = torch.randn(3, size, generator=generator).to(device, torch.bfloat16)
                for bits in (4, 8):
                    self._check(op, x, bits)

    def _check(self, op: QuantizerOp, x: torch.Tensor, bits: int) -> None:
        codes, params = op.quantize(x, len(x), bits, QuantizationType.Asymmetric)
        back = op.dequantize_fp32(codes, params, len(x), bits, QuantizationType.Asymmetric)
        # Half a step from rounding, another half where the greatest code is one too small.
        far = (back - x.float()).abs() > 1.001 * params[:, :1]
        step = (x.float().amax(1) - x.float().amin(1)) / 2**bits
        if far.any() or ((params[:, 0] - step).abs() > 1e-5 * step).any():
            raise SelfCheckError(
                f"Op {self.name}: {bits}-bit codes on {x.device} do not give the numbers back.",
                "Rebuild the op: run `ds_report --cache clear`, then load it again.",
            )
