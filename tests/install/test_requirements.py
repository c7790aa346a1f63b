"""requirements/ and the extras made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install.environments import ROOT, Environment, fake_torch

EXTRAS = {
    "dev": "requirements-dev.txt",
    "1bit": None,  # depends on the torch that is there
    "1bit_mpi": "requirements-1bit-mpi.txt",
    "inf": "requirements-inf.txt",
    "autotuning": "requirements-autotuning.txt",
    "autotuning_ml": "requirements-autotuning-ml.txt",
    "sparse_attn": "requirements-sparse_attn.txt",
    "sd": "requirements-sd.txt",
    "readthedocs": "requirements-readthedocs.txt",
    "nvcc": "requirements-nvcc.txt",
    "all": None,
}


def requires(environment: Environment, source: Path, **variables: str) -> dict[str, list[str]]:
    """Extra → requirement lines, as setuptools writes them; "" holds what is always needed."""
    done = environment.python("setup.py", "-q", "egg_info", cwd=source, **variables)
    assert done.returncode == 0, done.stderr
    text = (source / "deepspeed.egg-info/requires.txt").read_text()
    found: dict[str, list[str]] = {"": []}
    extra = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            extra = line.strip("[]").partition(":")[0]
            found.setdefault(extra, [])
        else:
            found[extra].append(line)
    return found


def provided_extras(source: Path) -> set[str]:
    text = (source / "deepspeed.egg-info/PKG-INFO").read_text()
    prefix = "Provides-Extra: "
    return {line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)}


def test_every_extra_is_there(source_tree, torchless):
    requires(torchless, source_tree)
    provided = {name.replace("-", "_") for name in provided_extras(source_tree)}
    assert provided == set(EXTRAS)


@pytest.mark.parametrize("name", [name for name in EXTRAS.values() if name])
def test_every_file_exists_and_says_what_it_is_for(name):
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert text.startswith("# ")


def test_comments_and_blank_lines_are_no_requirements(source_tree, torchless):
    file = source_tree / "requirements/requirements.txt"
    file.write_text("# a comment\n\n   \ntorch>=2.10  # and why\n\tninja\n  # indented\n")
    assert requires(torchless, source_tree)[""] == ["torch>=2.10", "ninja"]


def test_what_is_always_needed(source_tree, torchless):
    needed = requires(torchless, source_tree)[""]
    assert needed == ["torch>=2.10", "ninja", "packaging", "psutil", "py-cpuinfo", "filelock"]


def test_all_is_every_other_extra(source_tree, torchless):
    found = requires(torchless, source_tree)
    others = {line for extra, lines in found.items() if extra not in ("", "all") for line in lines}
    assert set(found["all"]) == others


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.13.0+cu130", "13.0", ["cupy-cuda13x"]),
        ("2.10.0+cu128", "12.8", ["cupy-cuda12x"]),
        ("2.13.0+cpu", None, []),
    ],
)
def test_1bit_asks_for_the_cupy_of_torchs_cuda(
    source_tree, torchless, tmp_path, version, cuda, expected
):
    fake = fake_torch(tmp_path / "fake", version, cuda=cuda)
    found = requires(torchless, source_tree, PYTHONPATH=str(fake))
    assert found.get("1bit", []) == expected
    assert set(expected) <= set(found["all"])


def test_1bit_without_torch_asks_for_nothing(source_tree, torchless):
    assert requires(torchless, source_tree).get("1bit", []) == []
    assert "1bit" in provided_extras(source_tree)


@pytest.mark.slow
def test_1bit_knows_the_torch_that_an_isolated_build_hides(source_tree, make_venv, tmp_path):
    fake = fake_torch(tmp_path / "fake", "2.13.0+cu130", cuda="13.0")
    venv = make_venv(False, "newest", fake)
    done = venv.pip("install", "--no-deps", ".", cwd=source_tree)
    assert done.returncode == 0, done.stderr
    (metadata,) = venv.site_packages.glob("deepspeed-*.dist-info/METADATA")
    assert "Requires-Dist: cupy-cuda13x; extra == " in metadata.read_text().replace('"', "")
