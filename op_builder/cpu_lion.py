"""Op cpu_lion: Lion steps on CPU tensors."""

from __future__ import annotations

from .builder import TorchCPUOpBuilder
from .optimizer_check import compare, random_lists


class CPULionBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_LION"
    NAME = "cpu_lion"
    functions = ("create_lion", "destroy_lion", "lion_update", "lion_step", "simd_level")

    def absolute_name(self) -> str:
        return f"deepspeed.ops.lion.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/lion/cpu_lion.cpp", "csrc/lion/cpu_lion_kernels.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/lion"]

    def self_check(self, op: object) -> None:
        """One step in float32 and with bfloat16 parameters, against float64."""
        lr, beta1, beta2, decay = 1e-2, 0.9, 0.99, 0.1
        for low_precision in (False, True):
            lists = random_lists(3, low_precision)
            expected: list[list] = [[], []]
            for tensors in zip(*lists):
                p, g, m = (tensor.double() for tensor in tensors)
                sign = (beta1 * m + (1 - beta1) * g).sign()
                expected[0].append(p * (1 - lr * decay) - lr * sign)
                expected[1].append(beta2 * m + (1 - beta2) * g)
            op.lion_step(*lists, 1, lr, beta1, beta2, decay)
            compare(self.NAME, [lists[0], lists[2]], expected)
