"""Builds the ``deepspeed`` distribution. What has to do with ops lies in ``op_builder/aot.py``."""

import sys
from contextlib import nullcontext
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # an isolated build starts without the project's folder on it

from op_builder import OpBuilderError, aot, source_tree, target_env  # noqa: E402
from op_builder.all_ops import BUILDERS  # noqa: E402
from op_builder.version import source_version  # noqa: E402

EXTRAS = {
    "dev": "dev",
    "1bit_mpi": "1bit-mpi",
    "inf": "inf",
    "autotuning": "autotuning",
    "autotuning_ml": "autotuning-ml",
    "sparse_attn": "sparse_attn",
    "sd": "sd",
    "readthedocs": "readthedocs",
    "nvcc": "nvcc",
}


def read_requirements(name: str) -> list[str]:
    """The requirements in a file of ``requirements/``, without comments and blank lines."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def cupy_requirements() -> list[str]:
    """The cupy wheel that matches the CUDA of the torch that is there; none without one."""
    torch = target_env.find_target_torch()
    return [f"cupy-cuda{torch.cuda.split('.')[0]}x"] if torch and torch.cuda else []


def extras() -> dict[str, list[str]]:
    """Extra → requirements; ``all`` is their union."""
    found = {extra: read_requirements(f"requirements-{name}") for extra, name in EXTRAS.items()}
    found["1bit"] = cupy_requirements()
    found["all"] = sorted({line for lines in found.values() for line in lines})
    return found


def main() -> None:
    """Run the setup command."""
    source = source_version(ROOT)
    builders = [builder() for builder in BUILDERS.values()]
    setup(
        name="deepspeed",
        version=source.version,
        description="DeepSpeed's C++/CUDA ops, and the build system that gets them anywhere",
        long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
        long_description_content_type="text/markdown",
        license="Apache-2.0",
        python_requires=">=3.10",
        setup_requires=aot.build_requirements(sys.argv[1:]),
        install_requires=read_requirements("requirements"),
        extras_require=extras(),
        packages=[
            *find_packages(include=["deepspeed", "deepspeed.*"]),
            "deepspeed.ops.op_builder",
            "deepspeed.ops.csrc",
        ],
        package_dir={"deepspeed.ops.op_builder": "op_builder", "deepspeed.ops.csrc": "csrc"},
        package_data={"deepspeed.ops.csrc": ["**/*.h", "**/*.cpp", "**/*.cu", "**/*.cuh"]},
        include_package_data=False,
        scripts=["bin/ds_report"],
        zip_safe=False,
        classifiers=[
            "Programming Language :: Python :: 3",
            "Programming Language :: C++",
            "Operating System :: POSIX :: Linux",
        ],
        **aot.setup_arguments(sys.argv[1:], builders, source, ROOT),
    )


try:
    # `develop` hands the work to a pip of its own, which builds this checkout.
    with nullcontext() if "develop" in sys.argv else source_tree.only_build_in(ROOT):
        main()
except OpBuilderError as error:
    sys.exit(f"error: {error}")
