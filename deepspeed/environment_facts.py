"""Facts about this machine and environment for the report, each found without importing torch,
creating a CUDA context, or waiting for a program that hangs."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from . import git_version_info
from .ops.op_builder import cache, cuda_toolkit, toolchain
from .ops.op_builder.cuda_toolkit import CudaToolkit
from .ops.op_builder.errors import OpBuilderError
from .ops.op_builder.process import ask
from .ops.op_builder.torch_install import find_torch

#: All programs are asked at once, so this bounds the whole of it.
_PROBE_SECONDS = 1.8

_GPU_QUERY = ("--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")


def _ask(argv: list[str]) -> str:
    """What the program prints; an empty text if it is missing, fails or takes too long."""
    done = ask(argv, timeout=_PROBE_SECONDS)
    return done.stdout.strip() if done.returncode == 0 else ""


def _toolkit() -> CudaToolkit | None:
    """The CUDA toolkit that ops are compiled with, or would be if it fitted torch."""
    torch = find_torch()
    with suppress(OpBuilderError):
        if torch is not None:
            return cuda_toolkit.select_toolkit(torch)
    return next(iter(cuda_toolkit.find_toolkits()), None)


def _nvcc(toolkit: CudaToolkit | None) -> str:
    if toolkit is None:
        return "none (only needed to compile CUDA ops)"
    release = cuda_toolkit.parse_version(_ask([str(toolkit.nvcc), "--version"]))
    if release is None:
        return f"unusable ({toolkit.nvcc} prints no version)"
    return f"{release[0]}.{release[1]} ({toolkit.nvcc}, found by {toolkit.origin})"


def _compiler() -> str:
    try:
        compiler = toolchain.find_compiler()
    except OpBuilderError as error:
        return f"none: {error.cause}"
    version = _ask([*compiler.command, "--version"]).partition("\n")[0]
    return f"{compiler} ({version})" if version else f"{compiler} (prints no version)"


def _gpus() -> tuple[str, str]:
    """(GPUs with their capabilities, driver version)."""
    rows = [r.split(", ") for r in _ask(["nvidia-smi", *_GPU_QUERY]).splitlines()]
    rows = [row for row in rows if len(row) == 3]
    if not rows:
        return "none", "none"
    return "; ".join(f"{name} (sm_{cap.replace('.', '')})" for name, cap, _ in rows), rows[0][2]


def _shared_memory() -> str:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return "unknown"
    return f"{status.f_blocks * status.f_frsize / 2**30:.2f} GB"


def _compiled_with() -> str:
    if not any(git_version_info.installed_ops.values()):
        return "no prebuilt ops"
    info = git_version_info.torch_info
    cuda, hip = (_or_none(info[key]) for key in ("cuda_version", "hip_version"))
    return f"torch {info['version']}, cuda {cuda}, hip {hip}"


def _or_none(version: object) -> object:
    return "none" if version == "0.0" else version


def ninja_status() -> str:
    """Ninja's path, or an empty text."""
    try:
        return toolchain.find_ninja()
    except OpBuilderError:
        return ""


def collect() -> dict[str, str]:
    """Label → value, in the order they are shown."""
    with ThreadPoolExecutor(max_workers=3) as pool:
        nvcc = pool.submit(_nvcc, _toolkit())
        compiler = pool.submit(_compiler)
        gpus, driver = pool.submit(_gpus).result()
    torch = find_torch()
    facts = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch install path": str(torch.root) if torch else "torch is not installed",
        "torch version": torch.version if torch else "none",
        "torch cuda version": (torch.cuda if torch else None) or "none",
        "torch hip version": (torch.hip if torch else None) or "none",
        "nvcc version": nvcc.result(),
        "host compiler": compiler.result(),
        "gpu": gpus,
        "driver": driver,
        "deepspeed install path": str(Path(__file__).resolve().parent),
        "deepspeed info": f"{git_version_info.version}, {git_version_info.git_hash}, "
        f"{git_version_info.git_branch}",
        "deepspeed wheel compiled w.": _compiled_with(),
        "jit cache": str(cache.configured_root()),
        "shared memory (/dev/shm)": _shared_memory(),
    }
    if git_version_info.build_flags:
        flags = " ".join(f"{k}={v}" for k, v in git_version_info.build_flags.items())
        facts["flags while installing"] = flags
    return facts
