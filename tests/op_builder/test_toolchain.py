"""Finding compilers and asking them, without running any program twice."""

import os
import shutil
from pathlib import Path

import pytest
from deepspeed.ops.op_builder import toolchain
from deepspeed.ops.op_builder.errors import ToolchainError


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """No compiler on PATH or asked for; returns the only folder on PATH."""
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_gxx_is_preferred(no_compiler):
    for name in ("clang++", "c++", "g++"):
        program(no_compiler, name)
    assert toolchain.find_compiler().command == (str(no_compiler / "g++"),)


def test_cxx_wins_with_wrapper_and_options(no_compiler, monkeypatch):
    program(no_compiler, "g++")
    ccache, clang = program(no_compiler, "ccache"), program(no_compiler, "clang++-15")
    monkeypatch.setenv("CXX", "ccache clang++-15 -m64")
    compiler = toolchain.find_compiler()
    assert compiler.command == (str(ccache), str(clang), "-m64")
    assert len(compiler.identity) == 3 and str(clang) in compiler.identity[1]


@pytest.mark.parametrize(
    ("cc", "cxx"),
    [("gcc-12", "g++-12"), ("cc", "c++"), ("clang", "clang++"), ("x86_64-linux-gnu-gcc",) * 2],
)
def test_cc_stands_for_its_cxx_sibling(no_compiler, monkeypatch, cc, cxx):
    cxx = cxx.replace("gcc", "g++")
    program(no_compiler, cxx)
    monkeypatch.setenv("CC", cc)
    assert toolchain.find_compiler().command == (str(no_compiler / cxx),)


def test_identity_changes_with_the_program_not_with_its_name(no_compiler):
    path = program(no_compiler, "g++")
    first = toolchain.find_compiler().identity
    assert toolchain.find_compiler().identity == first
    path.write_text("#!/bin/sh\nexit 1 # another compiler\n")
    assert toolchain.find_compiler().identity != first


def test_missing_compiler_names_the_package_for_this_package_manager(no_compiler):
    program(no_compiler, "dnf")
    with pytest.raises(ToolchainError, match="dnf install gcc-c"):
        toolchain.find_compiler()


def test_version_text_asks_a_compiler_once(no_compiler, tmp_path):
    log = tmp_path / "asked"
    program(no_compiler, "g++", f'echo x >> "{log}"\necho "g++ 99.1"')
    for _ in range(3):
        assert toolchain.version_text(toolchain.find_compiler()) == "g++ 99.1"
    assert log.read_text() == "x\n"


def test_probe_compiles_and_links_and_reports_the_linkers_words(monkeypatch):
    assert toolchain.compile_and_link("int main() { return 0; }").ok
    failed = toolchain.compile_and_link("int main() { return 0; }", ["no_such_library_zz"])
    assert not failed.ok and "no_such_library_zz" in failed.output


def test_probe_honours_flags(monkeypatch, tmp_path):
    (tmp_path / "only_here.h").write_text("#define ANSWER 0\n")
    source = '#include "only_here.h"\nint main() { return ANSWER; }'
    assert not toolchain.compile_and_link(source).ok
    monkeypatch.setenv("CFLAGS", f"-I{tmp_path}")
    assert toolchain.compile_and_link(source).ok
    monkeypatch.setenv("LDFLAGS", "-lno_such_library_zz")
    assert not toolchain.compile_and_link(source).ok


def test_probe_leaves_no_file_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert toolchain.compile_and_link("int main() { return 0; } // leaves nothing").ok
    assert os.listdir(tmp_path) == []


def test_ninja_off_path_but_importable(monkeypatch, tmp_path):
    pytest.importorskip("ninja")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert os.access(toolchain.find_ninja(), os.X_OK)


def test_no_ninja_anywhere_says_how_to_get_it(no_compiler, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="pip install ninja"):
        toolchain.find_ninja()


def test_ninja_on_path_serves_when_the_package_is_missing(no_compiler, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = program(no_compiler, "ninja")
    assert toolchain.find_ninja() == str(path) == shutil.which("ninja")


def test_clang_is_known_by_any_of_its_names(no_compiler, monkeypatch):
    hidden = program(no_compiler, "compiler-driver")
    (no_compiler / "clang++").symlink_to(hidden)
    assert toolchain.find_compiler().is_clang
    program(no_compiler, "g++")
    assert not toolchain.find_compiler().is_clang


@pytest.mark.parametrize("flag", ["-flto", "-flto=auto", "-fuse-ld=bfd"])
def test_a_linker_is_not_chosen_against_the_users_flags(no_compiler, flag):
    program(no_compiler, "ld.lld")
    assert toolchain.linker_options(["-O3"]) == ("-fuse-ld=lld",)
    assert toolchain.linker_options(["-O3", flag]) == ()
