"""Op cpu_adam: Adam and AdamW steps on CPU tensors."""

from __future__ import annotations

from .builder import TorchCPUOpBuilder
from .optimizer_check import compare, random_lists


class CPUAdamBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_ADAM"
    NAME = "cpu_adam"
    functions = (
        "create_adam",
        "destroy_adam",
        "adam_update",
        "adam_rollback",
        "adam_step",
        "simd_level",
    )

    def absolute_name(self) -> str:
        return f"deepspeed.ops.adam.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/adam/cpu_adam.cpp", "csrc/adam/cpu_adam_kernels.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/adam"]

    def self_check(self, op: object) -> None:
        """One AdamW step in float32 and with bfloat16 parameters, against float64."""
        lr, beta1, beta2, eps, decay, step = 1e-2, 0.9, 0.99, 1e-8, 0.1, 3
        for low_precision in (False, True):
            lists = random_lists(4, low_precision)
            expected: list[list] = [[], [], []]
            for tensors in zip(*lists):
                p, g, m, v = (tensor.double() for tensor in tensors)
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g * g
                denominator = v.sqrt() / (1 - beta2**step) ** 0.5 + eps
                p = p * (1 - lr * decay) - lr / (1 - beta1**step) * m / denominator
                for results, result in zip(expected, (p, m, v)):
                    results.append(result)
            op.adam_step(*lists, step, lr, beta1, beta2, eps, decay, True, True)
            compare(self.NAME, [lists[0], lists[2], lists[3]], expected)
