"""What an op declares, and what every builder inherits.

A builder says which sources, flags and libraries make its op, and what must hold for it. It knows
no other op. How a plan is made of that is ``plan.py``; how it gets into the process ``loader.py``.

An op that lists ``functions`` is a *stable* op: its binary registers them as
``torch.ops.<namespace>.<function>`` through torch's stable ABI. One that lists none is a *classic*
op: a Python extension module that includes ``torch/extension.h``.
"""

from __future__ import annotations

import platform
import shutil
import sys
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import TYPE_CHECKING

from . import jit, loader, toolchain
from .compatibility import OK, Compatibility, check
from .errors import OpBuilderError
from .plan import BuildPlan, OpDeclaration, make_plan
from .torch_install import TorchInstall, find_torch, require_stable_abi

if TYPE_CHECKING:
    import setuptools


class OpBuilder(ABC):
    """Describes one op; subclass it to add one.

    Attributes:
        NAME: the op's name in reports and in ``ALL_OPS``.
        BUILD_VAR: the environment variable that asks for this op at install time.
        functions: the names a stable op registers, first to last; empty for a classic op.
        error_log: why the last compatibility check said no; None if it said yes.
    """

    NAME: str = ""
    BUILD_VAR: str = ""
    functions: tuple[str, ...] = ()

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME or type(self).__name__
        self.error_log: str | None = None

    # -- what an op declares ---------------------------------------------------------------

    @abstractmethod
    def absolute_name(self) -> str:
        """The dotted name the op's binary is installed under."""

    @abstractmethod
    def sources(self) -> list[str]:
        """Source files: absolute, or relative to the folder that holds ``csrc``."""

    def include_paths(self) -> list[str]:
        """Folders of the op's own headers; their contents enter the fingerprint."""
        return []

    def cxx_args(self) -> list[str]:
        """Options of the C++ compiler. The defaults change no floating-point result but errno and
        the trap flags, which the ops don't read."""
        return ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math"]

    def extra_ldflags(self) -> list[str]:
        """Options of the linker."""
        return []

    def libraries_args(self) -> list[str]:
        """Libraries to link, without the ``-l``."""
        return []

    @property
    def namespace(self) -> str:
        """The name under ``torch.ops`` a stable op registers its functions in."""
        return f"deepspeed_{self.name}"

    def bind(self, ops: SimpleNamespace) -> object:
        """What ``load()`` returns, made of the registered functions; ``ops`` itself by default."""
        return ops

    def self_check(self, op: object) -> None:
        """Run the loaded op and compare its numbers with a reference.

        Raises:
            SelfCheckError: they differ.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no self_check()")

    def compatibility(self) -> Compatibility:
        """Whether the op can be used here: the one place that decides it. Loads nothing."""
        cause = toolchain.platform_cause()
        if cause:
            return Compatibility(False, cause, "Use a supported machine.")
        try:
            self.require_runtime()
            if self.prebuilt() is None and not jit.is_published(self.plan()):
                self.require_toolchain()
        except OpBuilderError as error:
            return Compatibility.refused_by(error)
        return OK

    def buildable(self) -> Compatibility:
        """Whether an installer can compile the op here; that it is cached is not enough."""
        try:
            self.require_toolchain(ahead_of_time=True)
        except OpBuilderError as error:
            return Compatibility.refused_by(error)
        return check(self)

    # -- what every builder inherits -------------------------------------------------------

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether the op can be used here; with ``verbose`` a warning says why not."""
        result = self.compatibility()
        self.error_log = result.reason or None
        if verbose and not result:
            self.warning(result.reason)
        return result.ok

    def load(self, verbose: bool = False) -> object:
        """The op, ready to call: prebuilt if installed and usable, else built just in time.

        Raises:
            OpBuilderError: it can't be had; the message says why and what mends it.
        """
        return loader.load(self, verbose)

    def jit_load(self, verbose: bool = False) -> object:
        """The op, built just in time even where a prebuilt binary is installed."""
        return loader.load_jit(self, verbose)

    def plan(self, torch: TorchInstall | None = None, ahead_of_time: bool = False) -> BuildPlan:
        """Everything needed to compile the op against ``torch``, by default the one installed.

        ``ahead_of_time``: for machines that aren't known, not for this one.
        """
        return make_plan(self._declaration(ahead_of_time), torch or self.require_torch())

    def _declaration(self, ahead_of_time: bool) -> OpDeclaration:
        return OpDeclaration(
            name=self.name,
            stable=bool(self.functions),
            sources=tuple(self.sources()),
            include_paths=tuple(self.include_paths()),
            cxx_args=tuple(self.cxx_args()),
            extra_ldflags=tuple(self.extra_ldflags()),
            libraries=tuple(self.libraries_args()),
        )

    def prebuilt(self) -> str | None:
        """The path of the installed binary that ``load()`` would use, if there is one."""
        path, _ = loader.prebuilt_status(self)
        return str(path) if path else None

    def require_torch(self) -> TorchInstall:
        """The installed torch.

        Raises:
            ToolchainError: there is none the op runs with.
        """
        return require_stable_abi(find_torch())

    def require_runtime(self) -> None:
        """Check that what the op needs to run is here, the op itself aside.

        Raises:
            ToolchainError: something is missing.
        """
        self.require_torch()

    def require_toolchain(self, ahead_of_time: bool = False) -> None:
        """Check that what compiles the op is here.

        Raises:
            ToolchainError: a compiler or ninja is missing.
            ConfigurationError: a variable asks for what the compiler can't do.
        """
        self.plan(ahead_of_time=ahead_of_time).require_tools()
        toolchain.find_ninja()

    def wants_gpu_code(self, ahead_of_time: bool = False) -> bool:
        """Whether a binary without code for GPUs would not do."""
        return False

    def builder(self) -> setuptools.Extension:
        """The op as a setuptools extension; ``aot.BuildOps`` compiles it from :meth:`plan`."""
        import setuptools

        # Without sources: setuptools refuses absolute ones, and the plan has them.
        extension = setuptools.Extension(
            self.absolute_name(), sources=[], py_limited_api=bool(self.functions)
        )
        extension.op = self
        return extension

    def has_function(self, symbol: str, libraries: tuple[str, ...] | list[str] = ()) -> bool:
        """Whether a program calling ``symbol`` compiles and links against ``libraries``."""
        program = f'extern "C" void {symbol}(void);\nint main() {{ {symbol}(); return 0; }}\n'
        return toolchain.compile_and_link(program, tuple(libraries)).ok

    def command_exists(self, cmd: str | list[str]) -> bool:
        """Whether any of the programs ``cmd`` is on PATH."""
        return any(shutil.which(name) for name in ([cmd] if isinstance(cmd, str) else cmd))

    def cpu_arch(self) -> str:
        """The option for the oldest CPU of this architecture, never ``-march=native``: a binary
        may run on another machine, and better instructions are chosen at run time."""
        return "-march=armv8-a" if platform.machine() == "aarch64" else "-march=x86-64"

    def simd_width(self) -> str:
        """The macro that goes with :meth:`cpu_arch`."""
        return "-D__SCALAR__"

    def warning(self, msg: str) -> None:
        """Print a warning about this op to standard error."""
        print(f" [WARNING]  {self.name}: {msg}", file=sys.stderr)


class TorchCPUOpBuilder(OpBuilder):
    """An op that runs on the CPU and works on torch's tensors."""


def __getattr__(name: str) -> object:
    # DeepSpeed keeps both kinds of builders in one module.
    from . import cuda_builder

    if name in cuda_builder.__all__:
        return getattr(cuda_builder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
