"""Just in time: one build, whatever races, dies, fills up or is missing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import LOAD, process_environment

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting a file system takes root")


def start(mini: Path, program: str = LOAD, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=process_environment(mini, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job that a shell put in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def entry_folders(cache_root: Path, op: str = "mini") -> list[Path]:
    return [path for path in (cache_root / op).iterdir() if path.is_dir()]


def counting_compiler(folder: Path) -> tuple[Path, Path]:
    """A compiler that leaves one line a compilation in a file, and that file."""
    log = folder / "compilations"
    wrapper = folder / "counting-g++"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) echo x >> "{log}";; esac\nexec g++ "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper, log


class StuckCompiler:
    """A compiler that says it has started and then never ends by itself."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stuck-g++"
        self._marker = folder / "compiling"
        self.path.write_text(f'#!/bin/sh\necho $$ > "{self._marker}"\nexec tail -f /dev/null\n')
        self.path.chmod(0o755)

    def wait_until_it_runs(self, builder: subprocess.Popen[str]) -> int:
        """The pid of the compiler that ``builder`` has started."""
        while not self._marker.exists() or not self._marker.read_text().strip():
            assert builder.poll() is None, builder.communicate()
            os.sched_yield()
        pid = int(self._marker.read_text())
        self._marker.unlink()
        return pid


def test_first_load_builds_and_second_load_runs_no_compiler(python, cache_root, tmp_path):
    wrapper, log = counting_compiler(tmp_path)
    for _ in range(2):
        done = python(LOAD, CXX=str(wrapper))
        assert done.stdout == "2\n", done.stderr
        assert log.read_text() == "x\n"


def test_entry_holds_binary_manifest_and_log(python, cache_root):
    assert python(LOAD).returncode == 0
    (entry,) = entry_folders(cache_root)
    assert sorted(path.name for path in entry.iterdir()) == [
        "build.log",
        "manifest.json",
        "mini.so",
    ]
    manifest = json.loads((entry / "manifest.json").read_text())
    assert set(manifest["files"]) == {"mini.cpp", "include/addend.h"}
    assert "g++" in " ".join(manifest["compiler"])
    assert not any(word.startswith("-march") for word in manifest["flags"])


def test_eight_processes_on_an_empty_cache_compile_once(mini, cache_root, tmp_path):
    wrapper, log = counting_compiler(tmp_path)
    processes = [start(mini, CXX=str(wrapper)) for _ in range(8)]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (0, "2\n"), err
    assert log.read_text() == "x\n"
    assert len(entry_folders(cache_root)) == 1


def test_load_from_threads_and_after_fork(python, cache_root):
    program = """
        import os, threading
        from mini_builders import MiniBuilder
        results = []
        threads = [threading.Thread(target=lambda: results.append(MiniBuilder().load().add(1)))
                   for _ in range(4)]
        [t.start() for t in threads]
        pid = os.fork()
        if pid == 0:
            os._exit(0 if MiniBuilder().load().add(2) == 3 else 1)
        status = os.waitpid(pid, 0)[1]
        [t.join() for t in threads]
        print(results, status)
    """
    done = python(program)
    assert done.stdout == "[2, 2, 2, 2] 0\n", done.stderr


def test_load_after_killed_build_succeeds_without_cleaning_up(mini, cache_root, tmp_path):
    stuck = StuckCompiler(tmp_path)
    process = start(mini, CXX=str(stuck.path))
    orphan = stuck.wait_until_it_runs(process)
    process.kill()
    process.communicate()
    os.kill(orphan, 0)  # The orphaned compiler is still alive: nobody may wait for it.
    # Same inputs as the killed build, so the same lock: the next builder gets it at once.
    again = start(mini, CXX=str(stuck.path))
    try:
        second = stuck.wait_until_it_runs(again)
        os.kill(second, signal.SIGKILL)
        _, error = again.communicate(timeout=60)
        assert "Op mini failed to compile" in error
        assert len(list((cache_root / "mini").glob(".staging-*"))) == 0
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.slow
def test_ten_kills_at_random_moments(mini, cache_root, python):
    generator = random.Random(20)
    for _ in range(10):
        shutil.rmtree(cache_root, ignore_errors=True)
        process = start(mini)
        try:
            process.wait(timeout=generator.uniform(0.1, 3.5))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        done = python(LOAD)
        assert done.stdout == "2\n", done.stderr
        assert len(entry_folders(cache_root)) == 1, "the dead build's folder was not cleaned up"


def test_stale_lock_files_of_other_tools_are_ignored(python, cache_root):
    (cache_root / "mini").mkdir(parents=True)
    (cache_root / "mini" / "lock").write_text("")
    assert python(LOAD).stdout == "2\n"
    (entry,) = entry_folders(cache_root)
    shutil.rmtree(entry)
    (cache_root / "mini" / f"{entry.name}.lock").write_text("left by a dead process")
    assert python(LOAD).stdout == "2\n"


def test_waiter_says_whom_it_waits_for_and_finishes_on_publication(mini, cache_root, tmp_path):
    # The first compiler waits until the waiter has spoken, so the order is certain.
    go = tmp_path / "go"
    slow = tmp_path / "slow-g++"
    slow.write_text(f'#!/bin/sh\nuntil [ -e "{go}" ]; do sleep 0.1; done\nexec g++ "$@"\n')
    slow.chmod(0o755)
    first = start(mini, CXX=str(slow))
    owner = None
    while owner is None:
        assert first.poll() is None
        owner = next(iter((cache_root / "mini").glob("*.owner")), None)
    waiter = start(mini, CXX=str(slow))
    line = waiter.stderr.readline()
    assert f"process {first.pid} on " in line and "since" in line and "mini" in line
    go.touch()
    assert first.communicate(timeout=120)[0] == "2\n"
    assert waiter.communicate(timeout=120)[0] == "2\n"


@needs_root
def test_full_disk_is_one_clear_error_and_leaves_nothing_behind(python, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        filler = disk / "filler"
        filler.write_bytes(b"x" * 56 * 1024)
        done = python(LOAD, TORCH_EXTENSIONS_DIR=str(disk / "extensions"))
        assert done.returncode == 1
        assert "No space left on device" in done.stderr and "TORCH_EXTENSIONS_DIR" in done.stderr
        assert "subprocess" not in done.stderr
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done = python(LOAD, TORCH_EXTENSIONS_DIR=str(disk / "extensions"))
        assert done.stdout == "2\n", done.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@needs_root
def test_read_only_cache_serves_and_falls_back_for_what_is_missing(python, tmp_path, mini):
    root = tmp_path / "shared"
    root.mkdir()
    assert python(LOAD, TORCH_EXTENSIONS_DIR=str(root)).stdout == "2\n"
    subprocess.run(["mount", "--bind", "-o", "ro", str(root), str(root)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    try:
        done = python(LOAD, TORCH_EXTENSIONS_DIR=str(root), TMPDIR=str(temporary))
        assert (done.stdout, done.stderr) == ("2\n", "")
        (mini / "include" / "addend.h").write_text("const long kAddend = 5;\n")
        done = python(LOAD, TORCH_EXTENSIONS_DIR=str(root), TMPDIR=str(temporary))
        assert done.stdout == "6\n", done.stderr
        assert done.stderr.count("export TORCH_EXTENSIONS_DIR=") == 1
        again = python(LOAD, TORCH_EXTENSIONS_DIR=str(root), TMPDIR=str(temporary))
        assert (again.stdout, again.stderr) == ("6\n", "")
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_fallback_folder_of_somebody_else_is_not_trusted(python, tmp_path):
    temporary = tmp_path / "temporary"
    squatted = temporary / f"deepspeed-{os.getuid()}"
    squatted.mkdir(parents=True, mode=0o777)
    squatted.chmod(0o777)
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    done = python(LOAD, TORCH_EXTENSIONS_DIR=str(not_a_folder / "x"), TMPDIR=str(temporary))
    assert done.returncode == 1 and "can be written to" in done.stderr


def test_compiler_error_names_op_cause_diagnostic_log_and_mend(python, mini, cache_root):
    source = mini / "mini.cpp"
    source.write_text(source.read_text().replace("kAddend", "kAdend"))
    done = python(LOAD)
    message = done.stderr.strip().splitlines()
    last = "\n".join(message[-3:])
    assert done.returncode == 1
    assert "Op mini failed to compile" in last
    assert "kAdend" in last and "error:" in last
    log = Path(last.split("whole output is in ")[1].split(". ")[0])
    assert "kAdend" in log.read_text()
    assert "subprocess" not in done.stderr
    # Mended, it builds; nothing of the failure is in the way.
    source.write_text(source.read_text().replace("kAdend", "kAddend"))
    assert python(LOAD).stdout == "2\n"


def test_no_compiler_is_said_with_its_mend(python, cache_root, tmp_path):
    done = python(LOAD, CXX="", CC="", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "Op mini can't be built: No C++ compiler was found" in done.stderr
    assert "install" in done.stderr


def test_cxx_that_does_not_exist_is_quoted(python, cache_root):
    done = python(LOAD, CXX="/nowhere/g++-99")
    assert done.returncode == 1 and "/nowhere/g++-99" in done.stderr and "unset CXX" in done.stderr


def test_warm_cache_serves_a_machine_without_a_compiler(python, cache_root, tmp_path):
    assert python(LOAD).returncode == 0
    done = python(LOAD, CXX="", CC="", PATH=str(tmp_path))
    assert done.stdout == "2\n", done.stderr


def test_ds_jit_0_forbids_building_and_says_how_to_prebuild(python, cache_root):
    done = python(LOAD, DS_JIT="0")
    assert done.returncode == 1
    assert "DS_JIT=0" in done.stderr and "ds_report --verify mini" in done.stderr
    assert python(LOAD).returncode == 0
    assert python(LOAD, DS_JIT="0").stdout == "2\n"


@pytest.mark.parametrize(
    "change",
    ["source", "header", "CFLAGS", "compiler"],
)
def test_changing_an_input_uses_another_entry_and_overwrites_none(
    python, mini, cache_root, tmp_path, change
):
    assert python(LOAD).returncode == 0
    (first,) = entry_folders(cache_root)
    before = (first / "mini.so").read_bytes()
    environment = {}
    if change == "source":
        (mini / "mini.cpp").write_text((mini / "mini.cpp").read_text() + "// another comment\n")
    elif change == "header":
        header = mini / "include" / "addend.h"
        header.write_text(header.read_text() + "// another comment\n")
    elif change == "CFLAGS":
        environment["CFLAGS"] = "-O1"
    else:
        environment["CXX"] = str(counting_compiler(tmp_path)[0])
    assert python(LOAD, **environment).stdout == "2\n"
    assert len(entry_folders(cache_root)) == 2
    assert (first / "mini.so").read_bytes() == before


def test_truncated_entry_is_rebuilt(python, cache_root):
    assert python(LOAD).returncode == 0
    (entry,) = entry_folders(cache_root)
    binary = entry / "mini.so"
    whole = binary.stat().st_size
    os.truncate(binary, whole // 2)
    assert python(LOAD).stdout == "2\n"
    assert binary.stat().st_size == whole


def test_a_second_copy_of_a_namespace_uses_the_first(python, cache_root, mini):
    program = """
        from mini_builders import MiniBuilder
        class Copy(MiniBuilder):
            def absolute_name(self):
                return "other_package.mini_op"
        print(MiniBuilder().load().add(1), Copy().load().add(1))
    """
    assert python(program).stdout == "2 2\n"


def test_a_classic_op_is_imported_as_a_module(python, cache_root):
    program = "from mini_builders import ClassicBuilder as B; print(B().load().answer())"
    done = python(program)
    assert done.stdout == "42\n", done.stderr
    assert python(program).stdout == "42\n"
    (entry,) = entry_folders(cache_root, "mini_classic")
    manifest = json.loads((entry / "manifest.json").read_text())
    assert any(word.startswith("torch ") for word in manifest["abi"])


def test_paths_with_spaces_quotes_and_other_alphabets(python, mini, tmp_path):
    root = tmp_path / "cache $HOME 'é' \"ü\" #:|"
    done = python(LOAD, TORCH_EXTENSIONS_DIR=str(root))
    assert done.stdout == "2\n", done.stderr


def test_interrupt_ends_the_compilers_and_leaves_no_staging_folder(mini, cache_root, tmp_path):
    stuck = StuckCompiler(tmp_path)
    process = start(mini, CXX=str(stuck.path))
    compiler = stuck.wait_until_it_runs(process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert not list((cache_root / "mini").glob(".staging-*"))
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{compiler}"):
        state = Path(f"/proc/{compiler}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":
            break
        assert time.monotonic() < deadline, "the compiler outlived the interrupt"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_warm_load_and_import_start_no_process(python, mini, cache_root, tmp_path):
    assert python(LOAD).returncode == 0
    trace = tmp_path / "trace"
    program = f"import deepspeed; {LOAD}"
    subprocess.run(
        ["strace", "-f", "-e", "trace=execve", "-o", str(trace), sys.executable, "-c", program],
        env=process_environment(mini),
        check=True,
        capture_output=True,
    )
    assert trace.read_text().count("execve(") == 1, trace.read_text()


def test_warm_load_does_not_import_cpp_extension(python, cache_root):
    assert python(LOAD).returncode == 0
    program = LOAD + "; import sys; assert 'torch.utils.cpp_extension' not in sys.modules"
    assert python(program).returncode == 0


def test_load_from_a_signal_handler_during_a_build_is_an_error_not_a_deadlock(mini, cache_root):
    program = """
import os, signal, subprocess, sys
from mini_builders import MiniBuilder
answers = []
def handler(*_):
    try:
        MiniBuilder().load()
    except RuntimeError as error:
        answers.append("by this very thread" in str(error))
signal.signal(signal.SIGUSR1, handler)
print(MiniBuilder().load().add(1), answers)
"""
    # The compiler itself sends the signal, so it comes in the middle of the build.
    compiler = cache_root.parent / "signalling-g++"
    compiler.write_text(
        '#!/bin/sh\npid=$(cut -d: -f2 "$OWNER"/mini/*.owner | head -n 1 | tr -dc 0-9)\n'
        'case " $* " in *" -c "*) kill -USR1 "$pid";; esac\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    process = start(mini, program, CXX=str(compiler), OWNER=str(cache_root))
    out, err = process.communicate(timeout=120)
    assert out == "2 [True]\n", err


def test_link_time_optimization_keeps_the_compilers_own_linker(python, cache_root):
    assert python(LOAD, CFLAGS="-flto").stdout == "2\n"


def test_functions_that_are_not_registered_are_named(python, cache_root):
    program = """
        from mini_builders import MiniBuilder
        class Wrong(MiniBuilder):
            functions = ("add", "subtract")
        Wrong().load()
    """
    done = python(program)
    assert done.returncode == 1
    assert "torch.ops.deepspeed_mini lacks subtract" in done.stderr


def test_a_damaged_entry_does_not_hide_the_others(python, cache_root, tmp_path):
    assert python(LOAD).returncode == 0
    other = cache_root / "mini" / ("0" * 32)
    other.mkdir()
    (other / "manifest.json").write_text("[" * 200_000)
    done = python(LOAD, CXX="", CC="", PATH=str(tmp_path))
    assert done.stdout == "2\n", done.stderr


@needs_root
def test_a_warm_cache_serves_where_nothing_is_writable(mini, cache_root, python):
    assert python(LOAD).returncode == 0
    script = (
        "mount --make-rprivate / && mount -o remount,bind,ro / && "
        'for d in /tmp /var/tmp /dev/shm; do mount --bind -o ro "$d" "$d" && '
        'mount -o remount,bind,ro "$d"; done; cd / && exec "$0" -c "$1"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, LOAD],
        env=process_environment(mini),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "2\n", done.stderr
