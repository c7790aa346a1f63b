"""What an op with CUDA sources declares, and what it inherits besides.

Which GPUs to compile for is decided here; how that is spelled in ``cuda_arch.py``; with which
compiler in ``cuda_toolkit.py``. Nothing here creates a CUDA context.
"""

from __future__ import annotations

from dataclasses import replace

from . import cuda_arch, cuda_toolkit, environment
from .builder import OpBuilder, TorchCPUOpBuilder
from .compatibility import OK, Compatibility
from .cuda_arch import ArchSpec
from .cuda_toolkit import CUDAMismatchException, MissingCUDAException
from .errors import ConfigurationError, OpBuilderError, ToolchainError
from .gpus import visible_capabilities
from .plan import CUDA_SUFFIX, OpDeclaration
from .torch_install import find_torch, require_stable_abi

__all__ = [
    "CPUAndCUDAOpBuilder",
    "CUDAMismatchException",
    "CUDAOpBuilder",
    "MissingCUDAException",
    "assert_no_cuda_mismatch",
    "get_default_compute_capabilities",
    "installed_cuda_version",
]

_NO_GPU = "No GPU is visible to this process."
_SHOW_GPU = (
    "See that `nvidia-smi` lists one and CUDA_VISIBLE_DEVICES doesn't hide it; to compile for GPUs "
    "that are elsewhere: `export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'`."
)

#: (op, warning) pairs this process has printed: a list is read several times in a build.
_told: set[tuple[str, str]] = set()


class CUDAOpBuilder(OpBuilder):
    """An op with ``.cu`` sources, for NVIDIA GPUs."""

    def nvcc_args(self) -> list[str]:
        """Options of nvcc, besides the architectures. No fast-math: results are IEEE's."""
        return ["-std=c++17", "-O3"]

    def filter_ccs(self, ccs: list[str]) -> list[str]:
        """Those of the capabilities ``ccs`` (``"8.0"``, ``"9.0a+PTX"``) the op can be compiled for;
        an op with higher needs overrides it."""
        return ccs

    def architectures(self, ahead_of_time: bool = False) -> list[ArchSpec]:
        """What the op is compiled for: ``TORCH_CUDA_ARCH_LIST``, else every visible GPU, or ahead
        of time whatever is usual; PTX is kept for GPUs that are newer than the highest.

        Raises:
            ConfigurationError: the variable can't be read, or names nothing the op can do.
            ToolchainError: it is unset and no GPU is visible, or nvcc does not answer.
        """
        listed = environment.cuda_architectures()
        if listed:
            specs = cuda_arch.parse(listed, self._supported, visible_capabilities)
        elif ahead_of_time:
            default = cuda_arch.parse(cuda_arch.DEFAULT_CAPABILITIES)
            specs = cuda_arch.with_ptx(cuda_arch.supported_by(default, self._supported()))
        else:
            visible = [cuda_arch.ArchSpec(*capability) for capability in visible_capabilities()]
            specs = cuda_arch.with_ptx(visible)
            if not specs:
                raise ToolchainError(_NO_GPU, _SHOW_GPU)
        return self._filtered(specs)

    def _supported(self) -> tuple[str, ...]:
        return cuda_toolkit.select_toolkit(self.require_torch()).supported()

    def _filtered(self, specs: list[ArchSpec]) -> list[ArchSpec]:
        asked = [str(spec) for spec in specs]
        # A third party's filter may return ["8", "0+PTX"] for "8.0+PTX", as DeepSpeed's do.
        kept = [c if isinstance(c, str) else ".".join(c) for c in self.filter_ccs(asked)]
        dropped = [name for name in asked if name not in kept]
        if dropped and kept:
            self._warn_once(f"not compiled for {', '.join(dropped)}, which it can't run on.")
        if not kept:
            raise ConfigurationError(
                f"Op {self.name} runs on none of {', '.join(asked)}.",
                "Name a GPU it runs on: `export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'`.",
            )
        return cuda_arch.parse(";".join(kept))

    def _warn_once(self, text: str) -> None:
        if (self.name, text) not in _told:
            _told.add((self.name, text))
            self.warning(text)

    def compute_capability_args(self, cross_compile_archs: str | None = None) -> list[str]:
        """nvcc's ``-gencode`` options, for :meth:`architectures` or the list given."""
        if cross_compile_archs is None:
            return cuda_arch.gencode_flags(self.architectures())
        specs = cuda_arch.parse(cross_compile_archs, self._supported, visible_capabilities)
        return cuda_arch.gencode_flags(self._filtered(specs))

    def require_runtime(self) -> None:
        torch = self.require_torch()
        if torch.cuda is None:
            raise ToolchainError(
                f"torch {torch.version} is a CPU build, and this op runs on NVIDIA GPUs.",
                "Install a CUDA build of torch. To compile the op here for machines that have one: "
                f"`TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX' {self.BUILD_VAR}=1 pip install .`",
            )

    def compatibility(self) -> Compatibility:
        result = super().compatibility()
        try:
            if result and not visible_capabilities():
                return Compatibility(False, _NO_GPU, _SHOW_GPU)
        except OpBuilderError as error:
            return Compatibility.refused_by(error)
        return result

    def buildable(self) -> Compatibility:
        try:
            if self.require_torch().cuda is None and not environment.cuda_architectures():
                self.require_runtime()
            self.require_toolchain(ahead_of_time=True)
        except OpBuilderError as error:
            return Compatibility.refused_by(error)
        # No GPU is needed to compile for one.
        return OK

    def _declaration(self, ahead_of_time: bool) -> OpDeclaration:
        return replace(
            super()._declaration(ahead_of_time),
            nvcc_args=tuple(self.nvcc_args()),
            architectures=tuple(self.architectures(ahead_of_time)),
        )


class CPUAndCUDAOpBuilder(TorchCPUOpBuilder, CUDAOpBuilder):
    """An op for CPUs that also has kernels for GPUs, compiled where they can be of use."""

    def wants_gpu_code(self, ahead_of_time: bool = False) -> bool:
        """Whether the op needs its kernels: here, or ahead of time on the machines it is for."""
        listed = bool(environment.cuda_architectures())
        if self.require_torch().cuda is None:
            return ahead_of_time and listed
        return ahead_of_time or bool(visible_capabilities())

    def require_runtime(self) -> None:
        self.require_torch()

    def compatibility(self) -> Compatibility:
        return TorchCPUOpBuilder.compatibility(self)

    def _declaration(self, ahead_of_time: bool) -> OpDeclaration:
        if self.wants_gpu_code(ahead_of_time):
            declared = super()._declaration(ahead_of_time)
            return replace(declared, cxx_args=(*declared.cxx_args, "-DDEEPSPEED_WITH_CUDA"))
        declared = OpBuilder._declaration(self, ahead_of_time)
        sources = tuple(s for s in declared.sources if not s.endswith(CUDA_SUFFIX))
        return replace(declared, sources=sources)


def installed_cuda_version(name: str = "") -> tuple[int, int]:
    """(major, minor) of the CUDA toolkit that ops are compiled with here.

    Raises:
        MissingCUDAException: there is none, or it doesn't say.
        CUDAMismatchException: it does not fit torch.
    """
    toolkit = cuda_toolkit.select_toolkit(require_stable_abi(find_torch()))
    if toolkit.version is None:
        raise MissingCUDAException(
            f"{toolkit.nvcc} does not say its version.", "Reinstall it, or name another: CUDA_HOME."
        )
    return toolkit.version


def assert_no_cuda_mismatch(name: str = "") -> bool:
    """True if the CUDA toolkit fits torch.

    Raises:
        MissingCUDAException: there is no toolkit.
        CUDAMismatchException: its major version is another than torch's.
    """
    installed_cuda_version(name)
    return True


def get_default_compute_capabilities() -> str:
    """What ops are compiled for ahead of time where TORCH_CUDA_ARCH_LIST is unset."""
    toolkit = cuda_toolkit.select_toolkit(require_stable_abi(find_torch()))
    default = cuda_arch.parse(cuda_arch.DEFAULT_CAPABILITIES)
    supported = cuda_arch.supported_by(default, toolkit.supported())
    return ";".join(map(str, cuda_arch.with_ptx(supported)))
