"""``ds_report``: complete whatever is missing, broken or hostile, and honest about each op."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CPU_OPS = ("cpu_adagrad", "cpu_adam", "cpu_lion", "quantizer", "utils")
GPU_OPS = ("fused_adam", "fused_lamb", "fused_lion", "spatial_inference")
OPS = tuple(sorted(CPU_OPS + GPU_OPS))
#: What the table shows where nothing is installed.
ROWS = {
    **dict.fromkeys(CPU_OPS, ("NO", "OKAY")),
    **dict.fromkeys(GPU_OPS, ("NO", "OKAY" if torch.cuda.is_available() else "NO")),
}
LAST_LINE = "shared memory (/dev/shm)"

OTHER_OPS = '''
import os, signal
from deepspeed.ops.op_builder import TorchCPUOpBuilder
from deepspeed.ops.op_builder.errors import SelfCheckError


class Loaded(TorchCPUOpBuilder):
    """An op whose binary is not what is asked about."""

    def absolute_name(self):
        return f"other_package.{self.NAME}_op"

    def sources(self):
        return []

    def is_compatible(self, verbose=False):
        return True

    def load(self, verbose=False):
        return self


class FineBuilder(Loaded):
    NAME = "fine"

    def self_check(self, op):
        assert op is self


class WrongBuilder(Loaded):
    NAME = "a_wrong"

    def self_check(self, op):
        raise SelfCheckError("1 + 1 is 3.", "Count again.")


class CrashingBuilder(Loaded):
    NAME = "b_crashing"

    def self_check(self, op):
        os.kill(os.getpid(), signal.SIGSEGV)


class LeavingBuilder(Loaded):
    NAME = "c_leaving"

    def self_check(self, op):
        os._exit(7)


class UncheckedBuilder(Loaded):
    NAME = "d_unchecked"


class RaisingBuilder(Loaded):
    NAME = "raising"

    def is_compatible(self, verbose=False):
        raise RuntimeError("the probe exploded")


class HalfBuilder(Loaded):
    NAME = "half"

    def __init__(self):
        raise ValueError("not today")


class NoBuilder:
    NAME = "nothing"
'''


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    """Op → (installed, compatible), as the table shows them."""
    rows = re.findall(r"^(\w+) \.+ \[(\w+)\] \.+ \[(\w+)\]$", text, re.MULTILINE)
    return {name: (installed, compatible) for name, installed, compatible in rows}


def environment_of(text: str) -> dict[str, str]:
    section = text.partition("general environment info:\n")[2]
    return dict(re.findall(r"^(.+?) \.{2,} (.*)$", section, re.MULTILINE))


def completed(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a report that ran to its end without a word on standard error."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert LAST_LINE in done.stdout
    return done.stdout


def test_report_has_both_sections_and_every_op(report, checkout, tmp_path):
    text = completed(report())
    assert rows_of(text) == ROWS
    assert re.search(r"^ninja \.+ \[OKAY\]$", text, re.MULTILINE)
    facts = environment_of(text)
    assert facts["deepspeed install path"] == str(checkout / "deepspeed")
    assert facts["jit cache"] == str(tmp_path / "extensions")
    assert facts["deepspeed wheel compiled w."] == "no prebuilt ops"
    for label in (
        "python",
        "torch install path",
        "torch version",
        "torch cuda version",
        "torch hip version",
        "nvcc version",
        "host compiler",
        "gpu",
        "driver",
        "deepspeed info",
        LAST_LINE,
    ):
        assert facts[label]


def test_report_builds_and_writes_nothing(report, tmp_path):
    completed(report(HOME=str(tmp_path / "home")))
    assert list(tmp_path.iterdir()) == []


def test_torch_is_described_without_importing_it(report, checkout, variables):
    import torch

    facts = environment_of(completed(report()))
    assert facts["torch version"] == torch.__version__
    assert facts["torch cuda version"] == (torch.version.cuda or "none")
    program = "from deepspeed.env_report import main; main(); import sys; sys.modules['torch']"
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True)
    assert done.returncode == 1 and b"KeyError: 'torch'" in done.stderr


def test_script_and_module_print_the_same(report, checkout, variables):
    script = subprocess.run(
        [sys.executable, str(checkout / "bin/ds_report")],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert script.stdout == completed(report())


def test_hide_operator_status(report):
    text = completed(report("--hide_operator_status"))
    assert "op name" not in text and "cpu_adam" not in text
    assert text.startswith("DeepSpeed general environment info:")


def test_hide_errors_and_warnings(report, no_compiler):
    with_reasons = completed(report(**no_compiler))
    without = completed(report("--hide_errors_and_warnings", **no_compiler))
    assert "not compatible: No C++ compiler was found" in with_reasons
    assert "not compatible" not in without
    assert rows_of(without) == rows_of(with_reasons)


def test_unknown_option_is_a_usage_error(report):
    done = report("--verfy")
    assert done.returncode == 2 and "--verfy" in done.stderr


def test_json_has_the_same_facts(report):
    text = completed(report())
    done = report("--json")
    value = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(value["ops"]) == set(rows_of(text))
    for name, (installed, compatible) in rows_of(text).items():
        op = value["ops"][name]
        assert op["installed"] is (installed == "YES")
        assert op["compatible"] is (compatible == "OKAY")
    assert value["environment"] == environment_of(text)
    assert value["import_failures"] == {}
    assert Path(value["ninja"]).name == "ninja"


def test_reasons_are_said_once_for_all_ops_they_hold_for(report, no_compiler):
    text = completed(report(**no_compiler))
    assert rows_of(text) == dict.fromkeys(OPS, ("NO", "NO"))
    assert text.count("not compatible: No C++ compiler was found") == 1
    # Without CUDA in torch, that is what is said of the ops for GPUs.
    alike = OPS if torch.version.cuda else CPU_OPS
    assert f"\n{', '.join(alike)}\n    not compatible: No C++ compiler" in text
    facts = environment_of(text)
    assert facts["host compiler"].startswith("none: No C++ compiler was found")


def test_op_part_fits_80_columns(report, no_compiler):
    for done in (report(), report(**no_compiler), report("--verify", "utils", **no_compiler)):
        ops, _, rest = done.stdout.partition("DeepSpeed general environment info:")
        verification = rest.partition("DeepSpeed op verification")[2]
        assert max(map(len, (ops + verification).splitlines())) <= 80


@pytest.fixture
def no_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which neither a compiler nor git nor nvidia-smi is found."""
    return {"PATH": str(tmp_path_factory.mktemp("empty"))}


def test_verify_survives_a_torch_that_cant_be_imported(report, distribution):
    path = distribution(OTHER_OPS, fine="other_ops:FineBuilder")
    (path / "torch").mkdir()
    (path / "torch/__init__.py").write_text("raise ImportError('libgone.so.1: cannot open')\n")
    (path / "torch/version.py").write_text("__version__ = '2.13.0'\n")
    done = report("--verify", "fine", "utils", path=path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "loaded and checked" in done.stdout and "libgone.so.1: cannot open" in done.stdout


def test_without_torch_each_op_says_how_to_get_it(variables):
    # -S: no site-packages, as in a new environment.
    for option in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "deepspeed.env_report", *option],
            env=variables,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "pip install 'torch>=2.10'" in done.stdout
    op = json.loads(done.stdout)["ops"]["utils"]
    assert op["cause"] == "torch is not installed in this environment."
    assert op["mend"] == f"Install it first: `{sys.executable} -m pip install 'torch>=2.10'`."


def test_verify_without_torch_fails_only_what_was_asked_for(variables):
    program = [sys.executable, "-S", "-m", "deepspeed.env_report", "--verify"]
    for names, code in (([], 0), (["utils"], 1)):
        done = subprocess.run([*program, *names], env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (code, "")


NVCC_STUBS = {
    "prints junk": "echo '\\377\\376 release?'",
    "fails": "echo release 13.0, >&2; exit 1",
    "is silent": ":",
    "hangs": "exec tail -f /dev/null",
    "crashes": "kill -SEGV $$",
}


@pytest.mark.parametrize("body", NVCC_STUBS.values(), ids=NVCC_STUBS)
def test_broken_nvcc_is_named_and_the_report_completes(report, tmp_path, body):
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\n{body}\n")
    nvcc.chmod(0o755)
    text = completed(report(CUDA_HOME=str(tmp_path / "cuda")))
    assert environment_of(text)["nvcc version"] == f"unusable ({nvcc} prints no version)"


def test_cuda_home_without_nvcc_counts_as_missing(report, tmp_path, no_compiler):
    (tmp_path / "cuda/lib64").mkdir(parents=True)
    text = completed(report(CUDA_HOME=str(tmp_path / "cuda"), **no_compiler))
    assert str(tmp_path / "cuda") not in text


def test_gpus_and_driver_are_those_of_nvidia_smi(report, tmp_path):
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        "echo 'NVIDIA H200, 9.0, 580.65.06'\n"
        "echo 'NVIDIA RTX PRO 6000, 12.0, 580.65.06'\n"
    )
    program.chmod(0o755)
    facts = environment_of(completed(report(PATH=f"{program.parent}:{os.environ['PATH']}")))
    assert facts["gpu"] == "NVIDIA H200 (sm_90); NVIDIA RTX PRO 6000 (sm_120)"
    assert facts["driver"] == "580.65.06"
    # A driver that does not answer must not keep anybody waiting.
    program.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    facts = environment_of(completed(report(PATH=f"{program.parent}:{os.environ['PATH']}")))
    assert (facts["gpu"], facts["driver"]) == ("none", "none")


def test_compiler_that_does_not_exist_is_quoted(report):
    text = completed(report(CXX="/nowhere/g++-99"))
    assert "CXX asks for the C++ compiler '/nowhere/g++-99'" in text
    assert set(rows_of(text).values()) == {("NO", "NO")}


def test_malformed_switch_is_said_at_the_ops_and_ends_nothing(report):
    text = completed(report(CFLAGS="'unbalanced"))
    assert "CFLAGS=\"'unbalanced\" can't be split into words" in " ".join(text.split())


@pytest.mark.parametrize("home", ["/proc", "/dev/null", ""])
def test_home_that_cant_be_written_to(report, variables, home):
    del variables["TORCH_EXTENSIONS_DIR"]
    completed(report(HOME=home))
    assert report("--cache", HOME=home).returncode == 0


def test_output_that_cant_hold_every_character(report, tmp_path):
    odd = tmp_path / "ünïcode – Ω"
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    text = completed(report(TORCH_EXTENSIONS_DIR=str(odd), **ascii_only))
    assert text.isascii() and "\\" in environment_of(text)["jit cache"]
    text = completed(report(TORCH_EXTENSIONS_DIR=str(odd), PYTHONIOENCODING="utf-8"))
    assert environment_of(text)["jit cache"] == str(odd)


def test_path_that_is_no_text_at_all(report, tmp_path):
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff\xfe")
    completed(report(TORCH_EXTENSIONS_DIR=odd))


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--cache"]], ids=" ".join)
def test_reader_that_has_gone_is_no_error(variables, arguments):
    """As in ``ds_report | head -1``, for sure: nobody ever reads."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "deepspeed.env_report", *arguments],
        env=variables,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def on_a_terminal(variables: dict[str, str], folder: Path, *arguments: str) -> str:
    """What the report writes to a terminal."""
    mine, its = pty.openpty()
    command = [sys.executable, "-m", "deepspeed.env_report", *arguments]
    process = subprocess.Popen(command, env=variables, cwd=folder, stdout=its, stderr=its)
    os.close(its)
    chunks = []
    while True:
        try:
            chunk = os.read(mine, 65536)
        except OSError:  # Linux's end of file on a terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(mine)
    assert process.wait(timeout=60) == 0
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_terminal_gets_colours_unless_told_not_to(report, variables, tmp_path):
    plain = completed(report())
    variables["TERM"] = "xterm"
    coloured = on_a_terminal(variables, tmp_path)
    assert "\033[32m[OKAY]\033[0m" in coloured and "\033[33m[NO]\033[0m" in coloured
    assert re.sub(r"\033\[\d+m", "", coloured) == plain
    assert "\033" not in plain
    for changes, expected in (
        ({"NO_COLOR": "1"}, plain),
        ({"NO_COLOR": ""}, coloured),
        ({"TERM": "dumb"}, plain),
    ):
        assert on_a_terminal({**variables, **changes}, tmp_path) == expected
    assert "\033" not in on_a_terminal(variables, tmp_path, "--json")


def test_builder_whose_check_raises_is_one_row_with_its_reason(report, distribution):
    path = distribution(OTHER_OPS, raising="other_ops:RaisingBuilder")
    text = completed(report(path=path))
    assert rows_of(text)["raising"] == ("NO", "NO")
    assert "not compatible: Its check failed: RuntimeError: the probe exploded" in text
    assert {name: rows_of(text)[name] for name in OPS} == ROWS


def test_builders_that_cant_be_had_are_reported_and_the_others_live(report, distribution):
    path = distribution(
        OTHER_OPS,
        gone="no_such_module:Builder",
        half="other_ops:HalfBuilder",
        wrong_kind="other_ops:NoBuilder",
        fine="other_ops:FineBuilder",
    )
    text = completed(report(path=path))
    assert rows_of(text)["fine"] == ("NO", "OKAY") and rows_of(text)["utils"] == ("NO", "OKAY")
    assert "gone\n    could not be imported: ModuleNotFoundError: No module named" in text
    assert "HalfBuilder\n    could not be imported: ValueError: not today" in text
    assert "wrong_kind\n    could not be imported: other_ops:NoBuilder is no OpBuilder" in text
    failures = json.loads(report("--json", path=path).stdout)["import_failures"]
    assert set(failures) == {"gone", "other_ops.HalfBuilder", "wrong_kind"}


def test_op_module_of_our_own_that_fails_is_reported(report, source_tree):
    module = source_tree / "op_builder/broken.py"
    module.write_text("import nowhere\n\n\nclass BrokenBuilder(object):\n    pass\n")
    text = completed(report(PYTHONPATH=str(source_tree)))
    assert "broken\n    could not be imported: ModuleNotFoundError" in text
    assert set(rows_of(text)) == set(OPS)


def test_op_of_another_distribution_is_shown_and_verified(report, mini):
    (mini / "mini-1.0.dist-info").mkdir()
    (mini / "mini-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mini\nVersion: 1.0\n"
    )
    (mini / "mini-1.0.dist-info/entry_points.txt").write_text(
        "[deepspeed.op_builders]\nmini = mini_builders:MiniBuilder\n"
    )
    assert rows_of(completed(report(path=mini)))["mini"] == ("NO", "OKAY")
    done = report("--verify", "mini", path=mini)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^mini \.+ \[OKAY\] loaded and checked in [\d.]+ s$", done.stdout, re.M)


def test_verify_goes_on_after_ops_that_fail_or_crash(report, distribution):
    path = distribution(
        OTHER_OPS,
        wrong="other_ops:WrongBuilder",
        crashing="other_ops:CrashingBuilder",
        leaving="other_ops:LeavingBuilder",
        unchecked="other_ops:UncheckedBuilder",
        fine="other_ops:FineBuilder",
    )
    names = ("a_wrong", "b_crashing", "c_leaving", "d_unchecked", "fine")
    done = report("--verify", *names, path=path)
    assert (done.returncode, done.stderr) == (1, "")
    section = done.stdout.partition("DeepSpeed op verification")[2]
    outcomes = dict(re.findall(r"^(\w+) \.+ \[(OKAY|FAIL)\]", section, re.MULTILINE))
    assert outcomes == {**dict.fromkeys(names[:4], "FAIL"), "fine": "OKAY"}
    for reason in (
        "1 + 1 is 3. Count again.",
        "It ended the process with SIGSEGV.",
        "It ended the process with exit status 7.",
        "UncheckedBuilder defines no self_check()",
    ):
        assert reason in " ".join(section.split())
    assert report("--verify", "fine", path=path).returncode == 0


def test_verify_in_json_carries_outcome_and_reason(report, distribution):
    path = distribution(OTHER_OPS, wrong="other_ops:WrongBuilder", fine="other_ops:FineBuilder")
    done = report("--verify", "a_wrong", "fine", "--json", path=path)
    ops = json.loads(done.stdout)["ops"]
    assert done.returncode == 1
    assert ops["fine"]["verification"]["ok"] is True
    assert ops["a_wrong"]["verification"]["ok"] is False
    assert ops["a_wrong"]["verification"]["reason"] == "1 + 1 is 3. Count again."
    assert "verification" not in ops["utils"]


def test_verify_of_an_unknown_op_names_the_known_ones(report):
    done = report("--verify", "cpu_adm", "utils")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"ds_report: There is no op cpu_adm. Name some of: {', '.join(OPS)}.\n")


def test_verify_of_an_op_that_cant_be_built_fails_with_the_reason(report, no_compiler):
    done = report("--verify", "utils", **no_compiler)
    assert done.returncode == 1 and done.stderr == ""
    assert re.search(r"^utils \.+ \[FAIL\]$", done.stdout, re.MULTILINE)
    assert report("--verify", **no_compiler).returncode == 0


def test_verify_fails_where_a_compatible_op_does_not_compile(report, tmp_path):
    compiler = tmp_path / "failing-g++"
    compiler.write_text("#!/bin/sh\necho 'any.cpp:1: error: no' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = report("--verify", CXX=str(compiler))
    assert done.returncode == 1
    assert done.stdout.count("[FAIL]") == len(CPU_OPS)
    assert "any.cpp:1: error: no" in done.stdout


def test_cache_lists_what_was_verified_and_clears_it(report, tmp_path):
    root = tmp_path / "extensions"
    empty = f"cache root: {root}\n0 built ops, 0.0 MB\n"
    assert report("--cache").stdout == empty
    assert report("--verify", "utils").returncode == 0
    listing = report("--cache").stdout
    assert re.search(r"^utils \.+ [0-9a-f]{32} +\d+ KB$", listing, re.MULTILINE)
    assert listing.endswith("1 built ops, 0.0 MB\n")
    (entry,) = json.loads(report("--cache", "--json").stdout)
    assert entry["op"] == "utils" and Path(entry["folder"]).parent == root / "utils"
    assert entry["bytes"] == sum(p.stat().st_size for p in Path(entry["folder"]).iterdir())
    assert report("--cache", "clear").stdout.startswith("removed 1 built ops, ")
    assert report("--cache").stdout == empty
    assert not list((root / "utils").glob("[0-9a-f]*"))
