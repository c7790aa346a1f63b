"""Everything needed to compile one op, decided here and nowhere else.

An :class:`OpDeclaration` is what a builder says; a :class:`BuildPlan` is what the compilers get.
JIT and AOT both take it from :func:`make_plan`, so their binaries can't differ. It reads the
environment's compiler and flags; it runs nothing and writes nothing.

Two kinds of op exist. A *stable* op registers ``torch.ops`` through torch's stable ABI: its binary
fits every Python and every torch from :data:`STABLE_ABI_FLOOR` on. A *classic* op includes
``torch/extension.h``: its binary is bound to this Python, torch and CUDA.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .cuda_arch import ArchSpec, gencode_flags
from .cuda_toolkit import (
    CudaToolkit,
    check_host_compiler,
    require_complete,
    require_supported,
    select_toolkit,
    warn_of_difference,
)
from .errors import ConfigurationError, ToolchainError
from .layout import locate
from .toolchain import Tool, find_compiler, linker_options
from .torch_install import STABLE_ABI_FLOOR, TorchInstall

_CXX_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")
CUDA_SUFFIX = ".cu"

_TARGET_VERSION = f"0x{STABLE_ABI_FLOOR[0]:02x}{STABLE_ABI_FLOOR[1]:02x}000000000000"

#: Memory one compiler takes: measured peaks (0.16 GB with the stable headers, 1.4 GB with
#: torch/extension.h), rounded up for larger sources.
_STABLE_JOB_BYTES = 1 << 29
_CLASSIC_JOB_BYTES = 3 << 29
_CUDA_JOB_BYTES = 1 << 30

# Kernels and what launches them; a host compiler is told of visibility through nvcc.
_NVCC = ("-Xcompiler", "-fPIC,-fvisibility=hidden")
# Static, so that a binary needs no CUDA library of one minor version; its symbols stay inside.
_CUDA_RUNTIME = ("-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL")

_COMMON = ("-fPIC", "-fvisibility=hidden")
# A unique symbol would bind two copies of an op in one process together. clang makes none.
_GCC_ONLY = ("-fno-gnu-unique",)
_STABLE = (f"-DTORCH_TARGET_VERSION={_TARGET_VERSION}", "-DPy_LIMITED_API=0x030a0000")


@dataclass(frozen=True, slots=True)
class OpDeclaration:
    """What a builder declares about how it is compiled."""

    name: str
    stable: bool
    sources: tuple[str, ...]
    include_paths: tuple[str, ...] = ()
    cxx_args: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    nvcc_args: tuple[str, ...] = ()
    architectures: tuple[ArchSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """How the ``.cu`` sources of an op are compiled. ``flags`` do not name the architectures, so
    that binaries for different GPUs can be told to be otherwise the same. ``environment`` is what
    nvcc takes from the environment by itself."""

    toolkit: CudaToolkit | ToolchainError
    torch: TorchInstall
    flags: tuple[str, ...]
    architectures: tuple[ArchSpec, ...]
    environment: tuple[str, ...]

    @property
    def gencode(self) -> list[str]:
        """The options that name the architectures."""
        return gencode_flags(self.architectures)

    def require_toolkit(self) -> CudaToolkit:
        """The toolkit.

        Raises:
            ToolchainError: this machine has none.
        """
        if isinstance(self.toolkit, ToolchainError):
            raise self.toolkit
        return self.toolkit

    def require_usable(self, compiler: Tool) -> None:
        """Check, before compiling, what nvcc itself would say less clearly.

        Raises:
            ToolchainError: there is no toolkit, it lacks a part, or ``compiler`` is too new for it.
            ConfigurationError: it can't compile for one of the architectures.
        """
        toolkit = self.require_toolkit()
        require_complete(toolkit)
        require_supported(toolkit, self.architectures)
        check_host_compiler(toolkit, compiler)
        warn_of_difference(toolkit, self.torch)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Sources, tools and complete flags of one op's binary.

    ``flags`` and ``link_flags`` decide what the binary is and enter its fingerprint.
    ``environment_flags`` and ``environment_link_flags`` only say where this environment keeps
    torch and Python; a stable op's binary does not depend on them. ``linker`` is worth a try before
    the default one. ``abi`` is what the binary is
    bound to. ``compiler`` is the error that explains its absence where a machine has none, which
    only matters when building. ``architectures`` are the GPU code it holds; none for a CPU op.
    """

    op: str
    stable: bool
    sources: tuple[Path, ...]
    include_dirs: tuple[Path, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    environment_flags: tuple[str, ...]
    environment_link_flags: tuple[str, ...]
    abi: tuple[str, ...]
    compiler: Tool | ToolchainError
    linker: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    cuda: CudaPlan | None = None

    def require_compiler(self) -> Tool:
        """The C++ compiler.

        Raises:
            ToolchainError: this machine has none.
        """
        if isinstance(self.compiler, ToolchainError):
            raise self.compiler
        return self.compiler

    def require_tools(self) -> None:
        """Check that the compilers are here.

        Raises:
            ToolchainError: one is missing.
        """
        compiler = self.require_compiler()
        if self.cuda is not None:
            self.cuda.require_usable(compiler)

    @property
    def can_be_built(self) -> bool:
        """Whether :meth:`require_tools` has no objection."""
        try:
            self.require_tools()
        except ToolchainError:
            return False
        return True

    @property
    def bytes_per_job(self) -> int:
        """The memory that compiling one of its sources takes."""
        if self.cuda is not None:
            return _CUDA_JOB_BYTES
        return _STABLE_JOB_BYTES if self.stable else _CLASSIC_JOB_BYTES

    @property
    def binary_name(self) -> str:
        return f"{self.op}.so"


def _locate_source(source: str, op: str) -> Path:
    path = locate(source)
    if path.suffix not in (*_CXX_SUFFIXES, CUDA_SUFFIX):
        raise ConfigurationError(
            f"Op {op} lists {path.name}, whose kind of source is unknown.",
            f"Name sources with one of {', '.join((*_CXX_SUFFIXES, CUDA_SUFFIX))}.",
        )
    if not path.is_file():
        raise ConfigurationError(
            f"Op {op} lists the source {path}, which does not exist.",
            "Reinstall the package that provides the op, or correct its sources().",
        )
    return path


def _find_compiler() -> Tool | ToolchainError:
    try:
        return find_compiler()
    except ToolchainError as error:
        return error


def make_plan(declared: OpDeclaration, torch: TorchInstall) -> BuildPlan:
    """The plan for ``declared``, compiled against ``torch``."""
    compiler = _find_compiler()
    is_clang = isinstance(compiler, Tool) and compiler.is_clang
    common = _COMMON if is_clang else (*_COMMON, *_GCC_ONLY)
    kind = _stable_parts if declared.stable else _classic_parts
    flags, environment_flags, link_flags, environment_link_flags, abi = kind(declared, torch)
    # The user's flags stand last: the last of two contradicting flags wins.
    flags = (*common, *flags, *declared.cxx_args, *_user_flags())
    sources = tuple(_locate_source(source, declared.name) for source in declared.sources)
    cuda = None
    if any(source.suffix == CUDA_SUFFIX for source in sources):
        cuda = _cuda_plan(declared, torch)
        link_flags = (*link_flags, *_CUDA_RUNTIME)
    link_flags = (*link_flags, *declared.extra_ldflags, *environment.words("LDFLAGS"))
    chosen = (*flags, *link_flags, *(compiler.command if isinstance(compiler, Tool) else ()))
    return BuildPlan(
        op=declared.name,
        stable=declared.stable,
        sources=sources,
        include_dirs=tuple(locate(path) for path in declared.include_paths),
        flags=flags,
        link_flags=(*link_flags, *(f"-l{library}" for library in declared.libraries)),
        environment_flags=environment_flags,
        environment_link_flags=environment_link_flags,
        linker=linker_options(chosen),
        abi=("linux", platform.machine(), *abi, *_this_cpu(flags)),
        compiler=compiler,
        architectures=tuple(code for spec in declared.architectures for code in spec.codes),
        cuda=cuda,
    )


def _cuda_plan(declared: OpDeclaration, torch: TorchInstall) -> CudaPlan:
    try:
        toolkit = select_toolkit(torch)
    except ToolchainError as error:
        toolkit = error
    return CudaPlan(
        toolkit=toolkit,
        torch=torch,
        flags=(*_NVCC, *declared.nvcc_args),
        architectures=declared.architectures,
        environment=tuple(f"{k}={v}" for k, v in environment.nvcc_environment().items()),
    )


def _this_cpu(flags: tuple[str, ...]) -> tuple[str, ...]:
    """What identifies this CPU, if ``flags`` tie the binary to it."""
    if not any(flag in ("-march=native", "-mcpu=native", "-mtune=native") for flag in flags):
        return ()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return tuple(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _user_flags() -> tuple[str, ...]:
    return tuple(w for name in ("CPPFLAGS", "CFLAGS", "CXXFLAGS") for w in environment.words(name))


def _stable_parts(declared: OpDeclaration, torch: TorchInstall):
    floor = ".".join(map(str, STABLE_ABI_FLOOR))
    return (
        _STABLE,
        ("-isystem", str(torch.include_dir), *_without_path(torch.include_dir)),
        ("-Wl,--as-needed", "-ltorch_cpu"),
        (f"-L{torch.library_dir}",),
        (f"torch>={floor} stable ABI",),
    )


def _without_path(include_dir: Path) -> tuple[str, ...]:
    """What keeps the folder's path out of a binary. gcc names headers by their resolved path where
    that is shorter, as in an environment made of symbolic links."""
    folders = dict.fromkeys((include_dir, include_dir.resolve()))
    return tuple(f"-ffile-prefix-map={folder}=torch" for folder in folders)


def _classic_parts(declared: OpDeclaration, torch: TorchInstall):
    # torch's own public functions name its include and library folders; they are imported only
    # for classic ops, whose warm load accepts that cost.
    from torch.utils.cpp_extension import include_paths, library_paths

    includes = [*include_paths(), sysconfig.get_path("include")]
    return (
        (f"-DTORCH_EXTENSION_NAME={declared.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"),
        tuple(word for path in includes for word in ("-isystem", path)),
        ("-Wl,--as-needed", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        tuple(f"-L{path}" for path in library_paths()),
        (
            sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
            f"torch {torch.version}",
            f"cuda {torch.cuda}",
        ),
    )
