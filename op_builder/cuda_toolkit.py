"""The CUDA toolkit: where nvcc is looked for, which one is taken, and what it can do.

Choosing one starts no program where its headers lie beside it, as they do unless nvcc on PATH is a
script. What nvcc supports is asked of nvcc, when something is built.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .cuda_arch import ArchSpec, capability_of, supported_by
from .errors import ConfigurationError, ToolchainError
from .process import ask
from .toolchain import Tool, host_compiler, identify, version_text
from .torch_install import TorchInstall

Version = tuple[int, int]

_VERSION_MACRO = re.compile(r"^#\s*define\s+CUDA(?:RT)?_VERSION\s+(\d+)", re.MULTILINE)
_RELEASE = re.compile(r"\brelease (\d+)\.(\d+)|\bV(\d+)\.(\d+)\.\d+")
_NEWEST_GCC = re.compile(r"^\s*#\s*if __GNUC__ > (\d+)", re.MULTILINE)
_LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


class MissingCUDAException(ToolchainError):
    """There is no CUDA toolkit."""


class CUDAMismatchException(ToolchainError):
    """The toolkit's CUDA and torch's differ in the major version."""


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """An nvcc and where it was found."""

    nvcc: Path
    origin: str

    @property
    def tool(self) -> Tool:
        """nvcc as a program with an identity."""
        return Tool((str(self.nvcc),), (identify(str(self.nvcc)),))

    @property
    def root(self) -> Path:
        """The folder it belongs to; a script on PATH has to be asked."""
        return _near_root(self.nvcc) or _asked_root(self.nvcc) or self.nvcc.parent.parent

    @property
    def version(self) -> Version | None:
        """(major, minor); None if neither its headers nor nvcc say."""
        return _header_version(self.root) or _asked_version(self.nvcc)

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version)) if self.version else "of unknown version"

    @property
    def library_dir(self) -> Path | None:
        """The folder of libcudart_static.a, the run-time library every op carries."""
        folders = (self.root / folder for folder in _LIBRARY_FOLDERS)
        return next((f for f in folders if (f / "libcudart_static.a").is_file()), None)

    def supported(self) -> tuple[str, ...]:
        """What nvcc can target, as ``compute_XY``.

        Raises:
            ToolchainError: nvcc does not say.
        """
        return _supported(self.nvcc)


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where nvcc may be, in the order of precedence: origin and path."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        folder = environment.folder(name)
        if folder is not None:
            yield name, folder / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    if on_path:
        yield "PATH", Path(on_path)
    for site in dict.fromkeys((sysconfig.get_path("purelib"), *sys.path)):
        for wheel in sorted(Path(site, "nvidia").glob("cu*/bin/nvcc"), reverse=True):
            yield "the nvidia-cuda-nvcc wheel", wheel
    conda = environment.folder("CONDA_PREFIX")
    if conda is not None:
        yield "conda", conda / "bin" / "nvcc"
    for folder in (Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"))[::-1]):
        yield str(folder), folder / "bin" / "nvcc"


def find_toolkits() -> list[CudaToolkit]:
    """Every nvcc here, each file once, in the order of precedence."""
    found: dict[Path, CudaToolkit] = {}
    for origin, nvcc in _candidates():
        if nvcc.is_file() and os.access(nvcc, os.X_OK):
            found.setdefault(nvcc.resolve(), CudaToolkit(nvcc, origin))
    return list(found.values())


def select_toolkit(torch: TorchInstall) -> CudaToolkit:
    """The toolkit to use: of several, the first whose CUDA is torch's, or at least its major one.

    Raises:
        MissingCUDAException: there is none.
        CUDAMismatchException: there is none of torch's major version, and ``DS_SKIP_CUDA_CHECK``
            is not on.
    """
    toolkits = find_toolkits()
    if not toolkits:
        raise MissingCUDAException(
            "No CUDA toolkit was found: no nvcc in CUDA_HOME, on PATH, in the nvidia-cuda-nvcc "
            "wheel, in conda or in /usr/local/cuda*.",
            "Install one, or bring nvcc as wheels: `pip install 'deepspeed[nvcc]'`.",
        )
    toolkit = _best(toolkits, torch.cuda)
    _refuse_mismatch(toolkit, torch)
    return toolkit


def _best(toolkits: list[CudaToolkit], torch_cuda: str | None) -> CudaToolkit:
    if torch_cuda is None or len(toolkits) == 1:
        return toolkits[0]
    wanted = _as_version(torch_cuda)
    # Those that can be judged by their headers first: asking nvcc takes a process.
    near = [toolkit for toolkit in toolkits if _near_root(toolkit.nvcc)]
    for length in (2, 1):
        for toolkit in (*near, *toolkits):
            if (toolkit.version or (0, 0))[:length] == wanted[:length]:
                return toolkit
    return toolkits[0]


def _as_version(text: str) -> Version:
    major, _, minor = text.partition(".")
    return int(major), int(minor.split(".")[0] or 0)


def _near_root(nvcc: Path) -> Path | None:
    for path in (nvcc, nvcc.resolve()):
        root = path.parent.parent
        if (root / "include" / "cuda_runtime_api.h").is_file() or (root / "nvvm").is_dir():
            return root
    return None


@functools.cache
def _asked_root(nvcc: Path) -> Path | None:
    done = ask([str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull], timeout=10)
    top = re.search(r"^#\$ TOP=(.*)$", done.stdout + done.stderr, re.MULTILINE)
    return Path(top[1]).resolve() if top else None


@functools.cache
def _header_version(root: Path) -> Version | None:
    for header in ("cuda.h", "cuda_runtime_api.h"):
        try:
            text = (root / "include" / header).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = _VERSION_MACRO.search(text)
        if found:
            return int(found[1]) // 1000, int(found[1]) % 1000 // 10
    return None


@functools.cache
def _asked_version(nvcc: Path) -> Version | None:
    done = ask([str(nvcc), "--version"], timeout=10)
    return parse_version(done.stdout) if done.returncode == 0 else None


def parse_version(text: str) -> Version | None:
    """(major, minor) in what ``nvcc --version`` prints; None if it is not there."""
    found = _RELEASE.search(text)
    return (int(found[1] or found[3]), int(found[2] or found[4])) if found else None


@functools.cache
def _supported(nvcc: Path) -> tuple[str, ...]:
    done = ask([str(nvcc), "--list-gpu-arch"], timeout=10)
    found = tuple(re.findall(r"^\s*(compute_\d+)\s*$", done.stdout, re.MULTILINE))
    if done.returncode or not found:
        raise ToolchainError(
            f"{nvcc} does not say what it can target (`nvcc --list-gpu-arch`).",
            "Reinstall the CUDA toolkit, or name another one with CUDA_HOME.",
        )
    return found


def _refuse_mismatch(toolkit: CudaToolkit, torch: TorchInstall) -> None:
    if torch.cuda is None or toolkit.version is None or environment.skip_cuda_check():
        return
    ours, theirs = toolkit.version[0], _as_version(torch.cuda)[0]
    if ours != theirs:
        raise CUDAMismatchException(
            _both_versions(toolkit, torch),
            f"Name a toolkit of CUDA {theirs} with CUDA_HOME, bring one as wheels (`pip install "
            f"'deepspeed[nvcc]'`), install a torch built with CUDA {ours}, or set "
            f"DS_SKIP_CUDA_CHECK=1 to try it all the same.",
        )


def _both_versions(toolkit: CudaToolkit, torch: TorchInstall) -> str:
    return (
        f"nvcc {toolkit.nvcc} is of CUDA {toolkit.version_text}, and torch {torch.version} in "
        f"{torch.root} is built with CUDA {torch.cuda}."
    )


def warn_of_difference(toolkit: CudaToolkit, torch: TorchInstall) -> None:
    """Say once, before compiling, that the toolkit is newer than torch's CUDA, or another one."""
    if torch.cuda is None or toolkit.version is None:
        return
    ours, theirs = toolkit.version, _as_version(torch.cuda)
    if ours[0] != theirs[0]:
        _warn_once(f"{_both_versions(toolkit, torch)} DS_SKIP_CUDA_CHECK=1 lets the build through.")
    elif ours > theirs:
        _warn_once(f"{_both_versions(toolkit, torch)} Minor versions of one major are compatible.")


def require_complete(toolkit: CudaToolkit) -> None:
    """Check that the run-time library and headers lie beside nvcc.

    Raises:
        MissingCUDAException: they don't.
    """
    header = toolkit.root / "include" / "cuda_runtime.h"
    if toolkit.library_dir is None or not header.is_file():
        lacking = "libcudart_static.a" if header.is_file() else "cuda_runtime.h"
        raise MissingCUDAException(
            f"The CUDA toolkit in {toolkit.root} lacks {lacking}.",
            "Install all of it, or bring it as wheels: `pip install 'deepspeed[nvcc]'`.",
        )


def require_supported(toolkit: CudaToolkit, specs: Sequence[ArchSpec]) -> None:
    """Check that nvcc can compile for each of ``specs``.

    Raises:
        ConfigurationError: it can't for one; the message names it and what is possible.
    """
    supported = toolkit.supported()
    possible = supported_by(specs, supported)
    for spec in specs:
        if spec not in possible:
            names = ", ".join(f"{major}.{minor}" for major, minor in map(capability_of, supported))
            raise ConfigurationError(
                f"nvcc of CUDA {toolkit.version_text} ({toolkit.nvcc}) can't compile for {spec}.",
                f"It can for {names}: `export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'`.",
            )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def check_host_compiler(toolkit: CudaToolkit, compiler: Tool) -> None:
    """Say before compiling that nvcc will not work with the C++ compiler.

    Raises:
        ToolchainError: the toolkit's own header refuses this version of gcc.
    """
    compiler = Tool((host_compiler(compiler),), ())
    if compiler.is_clang:
        return
    try:
        header = toolkit.root / "include" / "crt" / "host_config.h"
        newest = _NEWEST_GCC.search(header.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return
    version = re.search(r"\b(\d+)\.\d+\.\d+", version_text(compiler))
    if newest and version and int(version[1]) > int(newest[1]):
        raise ToolchainError(
            f"nvcc of CUDA {toolkit.version_text} works with gcc up to {newest[1]}, and {compiler} "
            f"is gcc {version[1]}.",
            f"Install an older one and name it: `export CUDAHOSTCXX=g++-{newest[1]}`.",
        )
