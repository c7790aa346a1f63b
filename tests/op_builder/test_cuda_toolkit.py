"""Which nvcc is taken, and what is said when there is none or the wrong one.

Other releases than the one installed here are stand-ins: scripts that answer what nvcc is asked,
beside the header that names their version.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import cuda_toolkit
from deepspeed.ops.op_builder.cuda_arch import parse
from deepspeed.ops.op_builder.cuda_toolkit import (
    CUDAMismatchException,
    MissingCUDAException,
    parse_version,
    select_toolkit,
)
from deepspeed.ops.op_builder.errors import ConfigurationError, ToolchainError
from deepspeed.ops.op_builder.toolchain import find_compiler
from deepspeed.ops.op_builder.torch_install import TorchInstall

TORCH_13 = TorchInstall(Path("/somewhere/torch"), "2.11.0+cu130", "13.0", None)
CPU_TORCH = TorchInstall(Path("/somewhere/torch"), "2.13.0+cpu", None, None)
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def make_toolkit(
    root: Path, major: int, minor: int, header: bool = True, newest_gcc: int = 15
) -> Path:
    """A toolkit as far as it is looked at."""
    (root / "bin").mkdir(parents=True)
    (root / "include" / "crt").mkdir(parents=True)
    (root / "lib64").mkdir()
    listed = "\\n".join(f"compute_{number}" for number in ARCHITECTURES)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'--version) echo "Cuda compilation tools, release {major}.{minor}, V{major}.{minor}.1";;\n'
        f'--list-gpu-arch) printf "{listed}\\n";;\n'
        f'--dryrun) echo "#$ TOP={root}" >&2;;\n'
        "esac\n"
    )
    nvcc.chmod(0o755)
    if header:
        text = f"#define CUDART_VERSION {major * 1000 + minor * 10}\n"
        (root / "include" / "cuda_runtime_api.h").write_text(text)
    (root / "include" / "cuda_runtime.h").write_text("")
    (root / "include" / "crt" / "host_config.h").write_text(f"#if __GNUC__ > {newest_gcc}\n#endif")
    (root / "lib64" / "libcudart_static.a").write_text("")
    return root


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Makes nothing findable but what is asked for through the environment."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "DS_SKIP_CUDA_CHECK"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    candidates = cuda_toolkit._candidates

    def without_the_machines_own():
        return [found for found in candidates() if str(tmp_path) in str(found[1])]

    monkeypatch.setattr(cuda_toolkit, "_candidates", without_the_machines_own)
    return monkeypatch


def test_no_toolkit_says_where_it_was_looked_for_and_how_to_get_one(only):
    with pytest.raises(MissingCUDAException) as error:
        select_toolkit(TORCH_13)
    assert "CUDA_HOME" in error.value.cause and "/usr/local/cuda" in error.value.cause
    assert "pip install 'deepspeed[nvcc]'" in error.value.mend


def test_a_folder_with_libraries_but_no_nvcc_is_no_toolkit(only, tmp_path):
    (tmp_path / "half" / "lib64").mkdir(parents=True)
    only.setenv("CUDA_HOME", str(tmp_path / "half"))
    with pytest.raises(MissingCUDAException):
        select_toolkit(TORCH_13)


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"])
def test_a_toolkit_is_found_where_a_variable_says(only, tmp_path, name):
    only.setenv(name, str(make_toolkit(tmp_path / "cuda", 13, 0)))
    toolkit = select_toolkit(TORCH_13)
    assert toolkit.version == (13, 0) and toolkit.root == tmp_path / "cuda"
    assert toolkit.supported() == tuple(f"compute_{number}" for number in ARCHITECTURES)
    assert toolkit.library_dir == tmp_path / "cuda" / "lib64"


def test_a_toolkit_is_found_on_path_also_behind_a_script(only, tmp_path):
    root = make_toolkit(tmp_path / "cuda", 13, 0)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "nvcc").symlink_to(root / "bin" / "nvcc")
    only.setenv("PATH", str(tmp_path / "links"))
    assert select_toolkit(TORCH_13).root.resolve() == root
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "nvcc"
    script.write_text(f'#!/bin/sh\nexec "{root}/bin/nvcc" "$@"\n')
    script.chmod(0o755)
    only.setenv("PATH", f"{tmp_path / 'scripts'}:/bin:/usr/bin")
    toolkit = select_toolkit(TORCH_13)
    assert toolkit.origin == "PATH" and toolkit.root == root and toolkit.version == (13, 0)


def test_a_toolkit_of_wheels_is_found_in_site_packages(only, tmp_path):
    root = make_toolkit(tmp_path / "site" / "nvidia" / "cu13", 13, 0)
    only.syspath_prepend(str(tmp_path / "site"))
    toolkit = select_toolkit(TORCH_13)
    assert toolkit.root == root and "wheel" in toolkit.origin


def test_of_two_toolkits_the_one_of_torchs_cuda_is_taken(only, tmp_path):
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "old", 12, 8)))
    only.setenv("CONDA_PREFIX", str(make_toolkit(tmp_path / "newer", 13, 1)))
    only.setenv("PATH", str(make_toolkit(tmp_path / "equal", 13, 0) / "bin"))
    assert select_toolkit(TORCH_13).root == tmp_path / "equal"
    # Without CUDA in torch, precedence decides.
    assert select_toolkit(CPU_TORCH).root == tmp_path / "old"


def test_another_major_version_names_both_and_the_mends(only, tmp_path):
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 12, 8)))
    with pytest.raises(CUDAMismatchException) as error:
        select_toolkit(TORCH_13)
    for words in ("CUDA 12.8", str(tmp_path / "cuda"), "CUDA 13.0", "/somewhere/torch"):
        assert words in error.value.cause
    for words in ("CUDA_HOME", "deepspeed[nvcc]", "DS_SKIP_CUDA_CHECK=1"):
        assert words in error.value.mend


def test_the_check_can_be_skipped_and_then_only_warns(only, tmp_path):
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 12, 8)))
    only.setenv("DS_SKIP_CUDA_CHECK", "1")
    toolkit = select_toolkit(TORCH_13)
    with pytest.warns(UserWarning, match="DS_SKIP_CUDA_CHECK=1 lets the build through"):
        cuda_toolkit.warn_of_difference(toolkit, TORCH_13)


def test_a_newer_minor_version_passes_and_is_mentioned_once(only, tmp_path):
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 13, 1)))
    toolkit = select_toolkit(TORCH_13)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            cuda_toolkit.warn_of_difference(toolkit, TORCH_13)
    assert len(caught) == 1 and "13.1" in str(caught[0].message)


def test_without_headers_nvcc_is_asked_for_its_version(only, tmp_path):
    root = make_toolkit(tmp_path / "cuda", 12, 6, header=False)
    only.setenv("CUDA_HOME", str(root))
    only.setenv("PATH", "/bin:/usr/bin")
    assert select_toolkit(CPU_TORCH).version == (12, 6)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0", (13, 0)),
        ("nvcc: NVIDIA (R) Cuda compiler driver\nV12.6.20", (12, 6)),
        ("release 11.8\n", (11, 8)),
        ("command not found", None),
        ("", None),
    ],
)
def test_a_version_is_read_out_of_whatever_nvcc_prints(text, version):
    assert parse_version(text) == version


def test_a_compiler_too_new_for_nvcc_is_named_before_compiling(only, tmp_path):
    compiler_path = find_compiler  # found before PATH is emptied
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 13, 0, newest_gcc=4)))
    only.setenv("PATH", "/bin:/usr/bin")
    compiler = compiler_path()
    if compiler.is_clang:
        pytest.skip("the compiler here is clang")
    with pytest.raises(ToolchainError) as error:
        cuda_toolkit.check_host_compiler(select_toolkit(CPU_TORCH), compiler)
    assert "works with gcc up to 4" in error.value.cause
    assert "CUDAHOSTCXX=g++-4" in error.value.mend


def test_an_incomplete_toolkit_names_what_it_lacks(only, tmp_path):
    root = make_toolkit(tmp_path / "cuda", 13, 0)
    only.setenv("CUDA_HOME", str(root))
    (root / "lib64" / "libcudart_static.a").unlink()
    with pytest.raises(MissingCUDAException, match=r"lacks libcudart_static\.a"):
        cuda_toolkit.require_complete(select_toolkit(CPU_TORCH))


@pytest.mark.parametrize("entry", ["7.0", "8.0a", "9.0f", "13.0"])
def test_what_nvcc_cant_target_is_named_with_what_it_can(only, tmp_path, entry):
    only.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 13, 0)))
    toolkit = select_toolkit(CPU_TORCH)
    cuda_toolkit.require_supported(toolkit, parse("8.0;9.0a;10.0f;12.0+PTX"))
    with pytest.raises(ConfigurationError) as error:
        cuda_toolkit.require_supported(toolkit, parse(f"8.0;{entry}"))
    assert f"can't compile for {entry}." in error.value.cause
    assert "7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0" in error.value.mend


def test_an_nvcc_that_answers_nothing_is_an_error(only, tmp_path):
    root = make_toolkit(tmp_path / "cuda", 13, 0)
    (root / "bin" / "nvcc").write_text("#!/bin/sh\nexit 1\n")
    only.setenv("CUDA_HOME", str(root))
    only.setenv("PATH", "/bin:/usr/bin")
    with pytest.raises(ToolchainError, match="does not say what it can target"):
        select_toolkit(CPU_TORCH).supported()
