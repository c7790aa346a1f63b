"""The version: version.txt, then DS_BUILD_STRING, build.txt or the commit. Git is the real one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from deepspeed.ops.op_builder.errors import ConfigurationError
from deepspeed.ops.op_builder.version import join_version, source_version
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.install.environments import clean_variables

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="giving files away takes root")

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def no_build_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's environment enters the version."""
    for name in ("DS_BUILD_STRING", "GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)


def write_project(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    (root / "version.txt").write_text("1.2.3\n")
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a version.txt, outside any checkout."""
    return write_project(tmp_path / "project")


def run_git(root: Path, *arguments: str, stdin: bytes | None = None) -> str:
    settings = ["user.name=Somebody", "user.email=some@body", "init.defaultBranch=main"]
    options = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(
        ["git", *options, *arguments],
        cwd=root,
        input=stdin,
        env=clean_variables(),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()


def commit(root: Path) -> str:
    """Make ``root`` a checkout with one commit; its short hash."""
    run_git(root, "init")
    run_git(root, "add", "version.txt")
    run_git(root, "commit", "-m", "first")
    return run_git(root, "rev-parse", "--short", "HEAD")


@pytest.mark.parametrize(
    ("build_string", "version"),
    [
        ("", "1.2.3"),
        ("+cu130", "1.2.3+cu130"),
        ("cu130", "1.2.3+cu130"),
        (".dev4", "1.2.3.dev4"),
        ("rc1", "1.2.3rc1"),
        (".post2+x", "1.2.3.post2+x"),
        ("+cu130.TORCH_2-13", "1.2.3+cu130.torch.2.13"),
        ("20260101", "1.2.3+20260101"),
    ],
)
def test_build_string_is_appended_in_normal_form(build_string, version):
    assert join_version("1.2.3", build_string) == version


@pytest.mark.parametrize("build_string", ["+", "++", "my build", "+a/b", "!", "+é"])
def test_build_string_that_makes_no_version_is_quoted(build_string):
    with pytest.raises(ConfigurationError) as error:
        join_version("1.2.3", build_string)
    assert repr(build_string) in str(error.value) and "DS_BUILD_STRING=" in str(error.value)


pep_440_pieces = st.sampled_from(
    ["+", ".", "-", "_", "!", "v", "a", "b", "rc", "c", "dev", "post", "rev", "r", "cu", "0", "13"]
)


@settings(deadline=None)
@given(
    base=st.sampled_from(["0.1.0", "1.2", "10.20.30", "2.0.0rc1", "1.0.post1"]),
    build_string=st.text(max_size=12) | st.lists(pep_440_pieces, max_size=6).map("".join),
)
def test_joined_version_is_valid_and_keeps_its_base_or_is_refused(base, build_string):
    try:
        joined = join_version(base, build_string)
    except ConfigurationError:
        return
    assert str(Version(joined)) == joined and joined.isascii()
    release = Version(base).release
    assert Version(joined).release[: len(release)] == release


def test_without_git_there_is_no_suffix(project):
    found = source_version(project)
    assert (found.version, found.git_hash, found.git_branch) == ("1.2.3", "unknown", "unknown")


@needs_git
def test_commit_is_the_suffix(project):
    short = commit(project)
    found = source_version(project)
    assert Version(found.version) == Version(f"1.2.3+{short}")
    assert (found.git_hash, found.git_branch) == (short, "main")


@needs_git
def test_tag_detached_head_and_uncommitted_changes_do_not_matter(project):
    short = commit(project)
    run_git(project, "tag", "v9.9.9")
    run_git(project, "checkout", "--detach")
    (project / "version.txt").write_text("1.2.4\n")
    found = source_version(project)
    assert Version(found.version) == Version(f"1.2.4+{short}")
    assert found.git_branch == "HEAD"


@needs_git
@pytest.mark.parametrize(
    "command",
    [["clone", "--depth=1"], ["worktree", "add", "--detach"]],
    ids=["shallow clone", "worktree"],
)
def test_checkout_without_the_history_has_its_commit(project, tmp_path, command):
    """As CI makes them; in a worktree, .git is a file."""
    commit(project)
    run_git(project, "commit", "--allow-empty", "-m", "second")
    short = run_git(project, "rev-parse", "--short", "HEAD")
    source = [project.as_uri()] if command[0] == "clone" else []
    run_git(project, *command, *source, str(tmp_path / "other"))
    found = source_version(tmp_path / "other")
    assert found.git_hash == short
    assert Version(found.version) == Version(f"1.2.3+{short}")


@needs_git
def test_repository_without_commits_gives_no_suffix(project):
    run_git(project, "init")
    assert source_version(project).version == "1.2.3"


@needs_git
def test_source_archive_in_another_repository_does_not_take_its_commit(tmp_path):
    write_project(tmp_path)
    commit(tmp_path)
    inner = write_project(tmp_path / "vendor")
    assert source_version(inner).version == "1.2.3"
    assert source_version(inner).git_hash == "unknown"


@needs_git
def test_install_inside_a_git_hook_does_not_take_the_hooks_repository(project, tmp_path):
    other = write_project(tmp_path / "other")
    commit(other)
    hook = other / ".git/hooks/pre-commit"
    program = (
        "from pathlib import Path; from deepspeed.ops.op_builder.version import source_version; "
        f"print(source_version(Path({str(project)!r})).version)"
    )
    root = Path(__file__).resolve().parents[2]
    interpreter = f"PYTHONPATH='{root}' '{sys.executable}'"
    hook.write_text(f'#!/bin/sh\n{interpreter} -c "{program}" > answer\n')
    hook.chmod(0o755)
    run_git(other, "commit", "--allow-empty", "-m", "second")
    assert (other / "answer").read_text() == "1.2.3\n"


@needs_git
@needs_root
def test_checkout_of_another_owner_still_has_its_commit(project):
    """As in a container that mounts a folder of the host."""
    short = commit(project)
    for path in (project, *project.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    refused = subprocess.run(["git", "-C", str(project), "log"], capture_output=True, text=True)
    assert refused.returncode and "dubious ownership" in refused.stderr
    assert source_version(project).git_hash == short


def digits_only_commit(root: Path, first: str) -> str:
    """Make a commit whose short hash is all digits, ``first`` the first; its hash."""
    commit(root)
    body = run_git(root, "cat-file", "commit", "HEAD").encode()
    algorithm = run_git(root, "rev-parse", "--show-object-format")
    for attempt in range(1_000_000):
        candidate = body + b"\n\n%d\n" % attempt
        named = b"commit %d\0" % len(candidate) + candidate
        digest = hashlib.new(algorithm, named).hexdigest()
        if digest[:7].isdigit() and digest[0] == first:
            run_git(root, "hash-object", "-t", "commit", "-w", "--stdin", stdin=candidate)
            run_git(root, "update-ref", "HEAD", digest)
            return digest
    raise AssertionError("no such commit was found")


@needs_git
@pytest.mark.parametrize("first", ["0", "7"])
def test_hash_of_digits_only_keeps_every_digit(project, first):
    """As a number, PEP 440 would drop its leading zeros."""
    full = digits_only_commit(project, first)
    found = source_version(project)
    assert found.version == f"1.2.3+{found.git_hash}"
    assert full.startswith(found.git_hash) and not found.git_hash.isdigit()


def test_build_string_is_kept_for_source_archives(project, monkeypatch):
    monkeypatch.setenv("DS_BUILD_STRING", "cu130")
    assert source_version(project).version == "1.2.3+cu130"
    monkeypatch.delenv("DS_BUILD_STRING")
    assert (project / "build.txt").read_text() == "cu130\n"
    assert source_version(project).version == "1.2.3+cu130"


@needs_git
def test_build_string_wins_over_build_txt_and_build_txt_over_the_commit(project, monkeypatch):
    short = commit(project)
    (project / "build.txt").write_text("+kept\n")
    found = source_version(project)
    assert (found.version, found.git_hash) == ("1.2.3+kept", short)
    monkeypatch.setenv("DS_BUILD_STRING", "+asked")
    assert source_version(project).version == "1.2.3+asked"


@pytest.mark.slow
def test_sdist_carries_the_build_string_and_installs_as_that_version(source_tree, torchless):
    flags = {"DS_BUILD_STRING": ".dev7"}
    done = torchless.python("setup.py", "-q", "sdist", cwd=source_tree, **flags)
    assert done.returncode == 0, done.stderr
    (sdist,) = (source_tree / "dist").glob("deepspeed-*.dev7.tar.gz")
    unpacked = source_tree.parent / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (root,) = unpacked.iterdir()
    assert (root / "build.txt").read_text() == ".dev7\n"
    done = torchless.python("setup.py", "-q", "--version", cwd=root)
    assert done.stdout.strip().endswith(".dev7"), done.stderr


@pytest.mark.slow
@needs_git
def test_install_from_a_checkout_reports_its_commit(source_tree, venv):
    """Where DeepSpeed said "+unknown" and "compiled w. torch 0.0, cuda 0.0"."""
    run_git(source_tree, "init")
    run_git(source_tree, "add", "-A")
    run_git(source_tree, "commit", "-m", "first")
    short = run_git(source_tree, "rev-parse", "--short", "HEAD")
    done = venv.pip("install", "--no-deps", "--no-build-isolation", ".", cwd=source_tree)
    assert done.returncode == 0, done.stderr
    report = venv.ds_report().stdout
    assert f", {short}, main\n" in report
    assert "compiled w. .. no prebuilt ops" in report
    assert "unknown" not in report and "cuda 0.0" not in report


@needs_git
@pytest.mark.slow
def test_sdist_of_a_checkout_makes_the_version_it_is_named_by(source_tree, torchless, tmp_path):
    run_git(source_tree, "init", "--quiet")
    run_git(source_tree, "add", "--all")
    run_git(source_tree, "commit", "--quiet", "--message", "everything")
    done = torchless.python("setup.py", "-q", "sdist", cwd=source_tree)
    assert done.returncode == 0, done.stderr
    assert not (source_tree / "build.txt").exists()
    # From an index, pip insists on it.
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    done = torchless.pip("install", *options, "--find-links", source_tree / "dist", "deepspeed")
    assert done.returncode == 0, done.stdout + done.stderr
    short = run_git(source_tree, "rev-parse", "--short", "HEAD")
    program = "import deepspeed; print(deepspeed.__version__)"
    assert torchless.python("-c", program).stdout.strip().endswith(f"+{short}")
