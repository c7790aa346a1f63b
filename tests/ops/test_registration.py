"""csrc/common/registration.h refuses, while compiling, what would go wrong silently at run time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """\
#include "tensor_list.h"
using namespace deepspeed;
using torch::stable::Tensor;
using Floats = std::vector<double>;
static constexpr char kSchema[] = "{schema}";
static {signature} {{ {body} }}
STABLE_TORCH_LIBRARY(some_op, m) {{ m.def(kSchema).impl("f", boxed<&f, kSchema>()); }}
"""


def compile_op(signature: str, schema: str, body: str = "") -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    include = Path(torch.__file__).parent / "include"
    flags = ["-std=c++17", "-fsyntax-only", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    return subprocess.run(
        [compiler, *flags, "-isystem", include, "-I", ROOT / "csrc/common", "-x", "c++", "-"],
        input=SOURCE.format(signature=signature, schema=schema, body=body),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("signature", "schema", "body"),
    [
        ("void f(const Tensor& x, double a)", "f(Tensor(a!) x, float a=1.0) -> ()", ""),
        ("int64_t f(int64_t n, bool b)", "f(int n, bool b) -> int", "return n + b;"),
        (
            "Tensor f(const TensorList& x, std::optional<Floats> y)",
            "f(Tensor(a!)[] x, *, float[]? y=None) -> Tensor",
            "return Tensor();",
        ),
        ("std::string f()", "f() -> str", 'return "x";'),
    ],
)
def test_matching_signatures_compile(signature, schema, body):
    done = compile_op(signature, schema, body)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("signature", "schema", "message"),
    [
        ("void f(float a)", "f(float a) -> ()", "float or int32_t would receive garbage"),
        ("void f(int a)", "f(int a) -> ()", "float or int32_t would receive garbage"),
        ("void f(double a)", "f(int a) -> ()", "types differ from the C++ signature"),
        ("void f(double a)", "f(float a, int b) -> ()", "types differ from the C++ signature"),
        ("void f(double a, bool b)", "f(float a) -> ()", "types differ from the C++ signature"),
        ("void f(const Tensor& x)", "f(Tensor[] x) -> ()", "types differ from the C++ signature"),
        ("void f(double a)", "f(float a) -> int", "types differ from the C++ signature"),
    ],
)
def test_signatures_that_would_receive_garbage_do_not_compile(signature, schema, message):
    done = compile_op(signature, schema)
    assert done.returncode != 0 and message in done.stderr
