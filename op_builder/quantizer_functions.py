"""The quantizer's functions with DeepSpeed's names and arguments, over the native ones.

Makes the tensors that results go into; torch is imported when a function is called.
"""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class QuantizationType(enum.IntEnum):
    """Whether codes are for ``q · step`` or for ``q · step + offset``."""

    Symmetric = 0
    Asymmetric = 1


class QuantizerOp:
    """What ``QuantizerBuilder().load()`` returns.

    A group is a run of ``numel / groups`` consecutive elements. With ``b`` bits, 4 or 8:

    - symmetric: ``step = 2 · max |x| / 2ᵇ``, ``params`` is [groups, 1];
    - asymmetric: ``step = (max − min) / 2ᵇ``, ``offset = (max + min) / 2``, ``params`` is
      [groups, 2];

    ``q = clamp(round((x − offset) / step), −2ᵇ⁻¹, 2ᵇ⁻¹ − 1)``, ties to even; a step of 0 becomes 1.
    Of two codes of 4 bits in a byte, the first has the high half. A group with a NaN has NaN
    ``params``. Floating-point tensors may be float16, bfloat16 or float32, on a GPU or the CPU.
    All functions raise RuntimeError for what can't be done, before anything is written.
    """

    QuantizationType = QuantizationType
    Symmetric = QuantizationType.Symmetric
    Asymmetric = QuantizationType.Asymmetric

    def __init__(self, ops: SimpleNamespace) -> None:
        self._ops = ops

    # -- codes and back --------------------------------------------------------------------

    def quantize(
        self, input_vals: torch.Tensor, groups: int, num_bits: int, quant_type: QuantizationType
    ) -> list[torch.Tensor]:
        """Codes and parameters of ``input_vals``.

        Returns:
            ``[q, params]``: int8 of the input's shape, the last dimension halved for 4 bits; and
            float32.
        """
        x = input_vals.contiguous()
        q, params = _outputs(x, _packed(x.shape, num_bits), groups, quant_type)
        self._ops.quantize(x, q, params, num_bits, _is_symmetric(quant_type), [])
        return [q, params]

    def dequantize(
        self,
        quantized_data: torch.Tensor,
        params: torch.Tensor,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
    ) -> torch.Tensor:
        """The numbers of codes, as float16."""
        return self._dequantized(quantized_data, params, groups, num_bits, quant_type, "float16")

    def dequantize_fp32(
        self,
        quantized_data: torch.Tensor,
        params: torch.Tensor,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
    ) -> torch.Tensor:
        """The numbers of codes, as float32."""
        return self._dequantized(quantized_data, params, groups, num_bits, quant_type, "float32")

    def dequantize_bf16(
        self,
        quantized_data: torch.Tensor,
        params: torch.Tensor,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
    ) -> torch.Tensor:
        """The numbers of codes, as bfloat16; an addition to DeepSpeed's functions."""
        return self._dequantized(quantized_data, params, groups, num_bits, quant_type, "bfloat16")

    def _dequantized(
        self,
        codes: torch.Tensor,
        params: torch.Tensor,
        groups: int,
        bits: int,
        quant_type: QuantizationType,
        dtype: str,
    ) -> torch.Tensor:
        import torch

        _check_params(params, groups, quant_type)
        shape = list(codes.shape)
        if bits == 4 and shape:
            shape[-1] *= 2
        out = torch.empty(shape, dtype=getattr(torch, dtype), device=codes.device)
        symmetric = _is_symmetric(quant_type)
        self._ops.dequantize(codes.contiguous(), params.contiguous(), out, bits, symmetric)
        return out

    def _dequantized_unsigned(
        self,
        data: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor,
        groups: int,
        group_size: int,
        bits: int,
    ) -> torch.Tensor:
        import torch

        if scale.numel() != groups:
            raise RuntimeError(
                f"scale holds {scale.numel()} values for {groups} groups; pass one for each"
            )
        out = torch.empty(groups, group_size, dtype=torch.float16, device=data.device)
        tensors = (data.contiguous(), scale.contiguous(), minimum.contiguous())
        self._ops.dequantize_unsigned(*tensors, out, bits)
        return out

    def dequantize_int4_to_half_experimental(
        self,
        data_in: torch.Tensor,
        scale_buffer: torch.Tensor,
        min_val_buffer: torch.Tensor,
        num_group: int,
        group_size: int,
    ) -> torch.Tensor:
        """``q / scale + minimum`` of unsigned codes of 4 bits, the first of two in the high half.

        Args:
            data_in: uint8, ``num_group · group_size / 2`` bytes.
            scale_buffer, min_val_buffer: float16, one a group.

        Returns:
            float16 [num_group, group_size].
        """
        buffers = data_in, scale_buffer, min_val_buffer
        return self._dequantized_unsigned(*buffers, num_group, group_size, 4)

    def dequantize_int8_to_half_experimental(
        self,
        data_in: torch.Tensor,
        scale_buffer: torch.Tensor,
        min_val_buffer: torch.Tensor,
        num_group: int,
        group_size: int,
    ) -> torch.Tensor:
        """The same for unsigned codes of 8 bits."""
        buffers = data_in, scale_buffer, min_val_buffer
        return self._dequantized_unsigned(*buffers, num_group, group_size, 8)

    # -- for communication -----------------------------------------------------------------

    def swizzle_quant(
        self,
        input_vals: torch.Tensor,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        pipeline_size: int,
        nodes: int,
        devices_per_node: int,
    ) -> list[torch.Tensor]:
        """Codes in the order in which they are sent (ZeRO++, Wang et al. 2023).

        With ``c = groups / (nodes · devices · pipeline)``, group ``x + c (y + pipeline · p)`` of
        the input, where ``p = node · devices + device``, is group
        ``c (y · nodes · devices + device · nodes + node) + x`` of the result.

        Returns:
            ``[q, params]``; q is 1-D.
        """
        x = input_vals.contiguous()
        q, params = _outputs(x, _packed([x.numel()], num_bits), groups, quant_type)
        dealt = [pipeline_size, nodes, devices_per_node]
        self._ops.quantize(x, q, params, num_bits, _is_symmetric(quant_type), dealt)
        return [q, params]

    def loco_swizzle_quant(
        self,
        input_vals: torch.Tensor,
        error_feedback: torch.Tensor,
        err_beta: float,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        pipeline_size: int,
        nodes: int,
        devices_per_node: int,
    ) -> list[torch.Tensor]:
        """:meth:`swizzle_quant` of ``input_vals + error_feedback`` (LoCo, Xie et al. 2024).

        ``error_feedback``, of the input's dtype and in the *result's* order, becomes
        ``err_beta · error + (1 − err_beta) · (what the codes lose)``, in place.
        """
        x = input_vals.contiguous()
        q, params = _outputs(x, _packed([x.numel()], num_bits), groups, quant_type)
        dealt = [pipeline_size, nodes, devices_per_node]
        self._ops.quantize_with_error(
            *(x, error_feedback, err_beta, q, params, num_bits, _is_symmetric(quant_type), dealt)
        )
        return [q, params]

    def quantized_reduction(
        self,
        input_vals: torch.Tensor,
        input_scales: torch.Tensor,
        in_groups: int,
        out_groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        devices_per_node: int,
    ) -> list[torch.Tensor]:
        """Codes of the sum, in float32, of ``devices_per_node`` equal parts of ``input_vals``.

        Returns:
            ``[q, params]``; q has the input's shape, the last dimension divided by the parts.
        """
        return self._reduced(
            *(input_vals, input_scales, None, 0.0, in_groups, out_groups, num_bits, quant_type),
            devices_per_node,
        )

    def loco_quantized_reduction(
        self,
        input_vals: torch.Tensor,
        input_scales: torch.Tensor,
        error_feedback: torch.Tensor,
        err_beta: float,
        in_groups: int,
        out_groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        devices_per_node: int,
    ) -> list[torch.Tensor]:
        """:meth:`quantized_reduction` of the sum and ``error_feedback``, which is updated as by
        :meth:`loco_swizzle_quant`."""
        return self._reduced(
            *(input_vals, input_scales, error_feedback, err_beta, in_groups, out_groups, num_bits),
            *(quant_type, devices_per_node),
        )

    def _reduced(
        self,
        codes: torch.Tensor,
        params: torch.Tensor,
        error: torch.Tensor | None,
        beta: float,
        in_groups: int,
        out_groups: int,
        bits: int,
        quant_type: QuantizationType,
        parts: int,
    ) -> list[torch.Tensor]:
        _check_params(params, in_groups, quant_type)
        shape = list(codes.shape)
        if parts < 1 or not shape or shape[-1] % parts:
            raise RuntimeError(
                f"codes of shape {tuple(shape)} can't be cut into {parts} equal parts along the "
                f"last dimension; pass them as they were received"
            )
        shape[-1] //= parts
        q, out_params = _outputs(codes, shape, out_groups, quant_type)
        self._ops.reduce(
            *(codes.contiguous(), params.contiguous(), parts, q, out_params, bits),
            *(_is_symmetric(quant_type), error, beta),
        )
        return [q, out_params]

    # -- fake quantization -----------------------------------------------------------------

    def fake_quantize(
        self, vals: torch.Tensor, groups: int, num_bits: int, stochastic: bool, symmetric: bool
    ) -> torch.Tensor:
        """Round ``vals`` in place to the numbers that ``num_bits`` (1 to 16) can tell apart.

        - symmetric: ``s = 2ᵇ / (2 · max |x| + 1e-5)``, ``x = clamp(round(x · s)) / s``;
        - else ``s = ((max − min) + 1e-5) / 2ᵇ``, ``x = round((x − min) / s) · s + min``.

        Stochastic rounding goes to either neighbour with the probability of the other's distance;
        its random numbers come from torch's generator of the device.

        Returns:
            ``vals``.
        """
        import torch

        x, seed = vals.contiguous(), None
        if stochastic:
            # On the device, so that nothing waits and a CUDA graph draws anew at each replay.
            seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=x.device)
        self._ops.fake_quantize(x, groups, num_bits, symmetric, seed)
        if x is not vals:
            vals.copy_(x)
        return vals

    def ds_quantize_fp16(self, vals: torch.Tensor, groups: int, bits: int) -> torch.Tensor:
        """Symmetric :meth:`fake_quantize` of any dtype, as all of the following are."""
        return self.fake_quantize(vals, groups, bits, False, True)

    def ds_sr_quantize_fp16(self, vals: torch.Tensor, groups: int, bits: int) -> torch.Tensor:
        """Symmetric, with stochastic rounding."""
        return self.fake_quantize(vals, groups, bits, True, True)

    def ds_quantize_asym_fp16(self, vals: torch.Tensor, groups: int, bits: int) -> torch.Tensor:
        """Asymmetric."""
        return self.fake_quantize(vals, groups, bits, False, False)

    def ds_sr_quantize_asym_fp16(self, vals: torch.Tensor, groups: int, bits: int) -> torch.Tensor:
        """Asymmetric, with stochastic rounding."""
        return self.fake_quantize(vals, groups, bits, True, False)

    ds_quantize_fp32 = ds_quantize_bf16 = ds_quantize_fp16
    ds_sr_quantize_fp32 = ds_sr_quantize_bf16 = ds_sr_quantize_fp16
    ds_quantize_asym_fp32 = ds_quantize_asym_bf16 = ds_quantize_asym_fp16
    ds_sr_quantize_asym_fp32 = ds_sr_quantize_asym_bf16 = ds_sr_quantize_asym_fp16


def _is_symmetric(quant_type: QuantizationType) -> bool:
    return quant_type == QuantizationType.Symmetric


def _packed(shape: torch.Size | list[int], bits: int) -> list[int]:
    """The shape of codes for numbers of ``shape``."""
    shape = list(shape)
    if bits == 4:
        if not shape or shape[-1] % 2:
            raise RuntimeError(
                f"the last dimension of {tuple(shape)} is odd, and two codes of 4 bits share a "
                f"byte; pad it, or use 8 bits"
            )
        shape[-1] //= 2
    return shape


def _outputs(
    like: torch.Tensor, shape: list[int], groups: int, quant_type: QuantizationType
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty codes of ``shape`` and parameters of ``groups`` groups."""
    import torch

    width = 1 if _is_symmetric(quant_type) else 2
    params = torch.empty(max(groups, 0), width, dtype=torch.float32, device=like.device)
    return torch.empty(shape, dtype=torch.int8, device=like.device), params


def _check_params(params: torch.Tensor, groups: int, quant_type: QuantizationType) -> None:
    width = 1 if _is_symmetric(quant_type) else 2
    if params.numel() != groups * width:
        raise RuntimeError(
            f"params holds {params.numel()} values, and {groups} groups have {width} each; pass "
            f"the params that belong to the codes, and their number of groups"
        )
