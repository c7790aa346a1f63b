"""``ds_report``: which ops can be used here and why not, and the environment they run in.

Works without torch, GPU, compiler or a writable home. Its exit status is 0 for a report; with
``--verify`` it is 1 if a compatible op fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import environment_facts, git_version_info
from .op_verification import Verification, verify
from .ops.op_builder import cache
from .ops.op_builder.all_ops import ALL_OPS, IMPORT_FAILURES
from .ops.op_builder.binary_note import read_note
from .ops.op_builder.builder import OpBuilder
from .ops.op_builder.compatibility import check
from .ops.op_builder.errors import OpBuilderError
from .ops.op_builder.loader import prebuilt_status

_WIDTH = 80
_RULE = "-" * _WIDTH
_COLORS = {"[OKAY]": "32", "[FAIL]": "31", "[NO]": "33", "[YES]": "32"}


@dataclass(frozen=True, slots=True)
class OpStatus:
    """One row of the table."""

    name: str
    installed: bool
    compatible: bool
    cause: str = ""
    mend: str = ""
    not_installed_because: str = ""
    architectures: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Cause and mend in one text."""
        return f"{self.cause} {self.mend}".strip()


def op_status(name: str, builder: OpBuilder) -> OpStatus:
    """The row of one op; loads and builds nothing, and never raises."""
    compatible = check(builder)
    try:
        path, refusal = prebuilt_status(builder)
    except Exception as error:  # a foreign builder may raise anything
        path, refusal = None, f"{type(error).__name__}: {error}"
    skipped = git_version_info.skipped_ops.get(name, "")
    asked = "" if skipped == "not asked for" else skipped
    return OpStatus(
        name,
        path is not None,
        compatible.ok,
        compatible.cause,
        compatible.mend,
        "" if path else refusal or asked,
        _architectures(path),
    )


def _architectures(path: Path | None) -> tuple[str, ...]:
    """The code for GPUs in the installed binary."""
    note = read_note(path) if path else None
    return note.architectures if note else ()


def _use_color() -> bool:
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def _mark(text: str) -> str:
    return f"\033[{_COLORS[text]}m{text}\033[0m" if _use_color() else text


def _print(text: str = "") -> None:
    # A log that can't hold a character of a path gets a substitute rather than no report.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _dots(text: str, width: int) -> str:
    return f"{text} ".ljust(width - 1, ".") + " "


def _print_wrapped(text: str, indent: str = "    ") -> None:
    for line in text.splitlines():
        _print(
            textwrap.fill(
                line,
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def _notes(rows: Sequence[OpStatus]) -> dict[str, list[str]]:
    """Reason → the ops it holds for: what stops all of them is said once."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.not_installed_because and row.not_installed_because != row.reason:
            notes.setdefault(f"not installed: {row.not_installed_because}", []).append(row.name)
        if not row.compatible:
            notes.setdefault(f"not compatible: {row.reason}", []).append(row.name)
        if row.architectures:
            built_for = f"built for {', '.join(row.architectures)}"
            notes.setdefault(built_for, []).append(row.name)
    for module, reason in IMPORT_FAILURES.items():
        notes.setdefault(f"could not be imported: {reason}", []).append(module)
    return notes


def print_ops(rows: Sequence[OpStatus], hide_errors: bool) -> None:
    """The op table, and below it the reason of each NO."""
    ninja = environment_facts.ninja_status()
    _print(_RULE)
    _print("DeepSpeed C++/CUDA op report")
    _print(_RULE)
    _print("An op that is compatible but not installed is compiled on its first use,")
    _print("which takes ninja and a C++ compiler.")
    _print(_RULE)
    _print(_dots("ninja", 36) + _mark("[OKAY]" if ninja else "[FAIL]"))
    if not ninja and not hide_errors:
        _print_wrapped("ninja was not found. Install it: `pip install ninja`.")
    _print(_RULE)
    _print(_dots("op name", 24) + _dots("installed", 12) + "compatible")
    _print(_RULE)
    for row in rows:
        installed = "[YES]" if row.installed else "[NO]"
        compatible = "[OKAY]" if row.compatible else "[NO]"
        gap = " " + "." * (10 - len(installed)) + " "
        _print(_dots(row.name, 24) + _mark(installed) + gap + _mark(compatible))
    notes = {} if hide_errors else _notes(rows)
    if notes:
        _print(_RULE)
    for reason, names in notes.items():
        _print_wrapped(", ".join(names), indent="")
        _print_wrapped(reason)
    _print(_RULE)


def print_environment(facts: dict[str, str]) -> None:
    """The second section."""
    _print("DeepSpeed general environment info:")
    for label, value in facts.items():
        _print(_dots(label, 31) + value)


def verify_ops(names: Sequence[str], rows: Sequence[OpStatus], quiet: bool):
    """Verify the compatible ones of ``names`` (all if empty), a printed line each."""
    results: dict[str, Verification] = {}
    for row in rows:
        if names and row.name not in names:
            continue
        if row.compatible:
            results[row.name] = verify(ALL_OPS[row.name])
        elif names:
            # Asked for by name: that it can't work here is a failure, not a footnote.
            results[row.name] = Verification(False, 0.0, row.reason)
        else:
            continue
        if not quiet:
            _print_verification(row.name, results[row.name])
    return results


def _print_verification(name: str, result: Verification) -> None:
    if result.ok:
        outcome = f"{_mark('[OKAY]')} loaded and checked in {result.seconds:.1f} s"
    else:
        outcome = _mark("[FAIL]")
    _print(_dots(name, 24) + outcome)
    _print_wrapped(result.reason)


def show_cache(action: str, as_json: bool) -> int:
    """``--cache``: list the built ops, or remove them."""
    if action == "clear":
        count, freed = cache.clear()
        _print(f"removed {count} built ops, {freed / 2**20:.1f} MB")
        return 0
    rows = [(e.op, e.key, e.size(), str(e.folder)) for e in cache.entries()]
    if as_json:
        _print(json.dumps([dict(zip(("op", "key", "bytes", "folder"), row)) for row in rows]))
        return 0
    for root in cache.readable_roots():
        _print(f"cache root: {root}")
    for op, key, size, _ in rows:
        _print(_dots(op, 24) + f"{key}  {size / 1024:9.0f} KB")
    _print(f"{len(rows)} built ops, {sum(row[2] for row in rows) / 2**20:.1f} MB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ds_report", description=__doc__.partition("\n")[0])
    parser.add_argument("--hide_operator_status", action="store_true", help="leave out the table")
    parser.add_argument(
        "--hide_errors_and_warnings",
        action="store_true",
        help="leave out the reasons below the table's rows",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--verify",
        nargs="*",
        metavar="OP",
        help="build or load each compatible op (or the ones named), run it, and "
        "compare its numbers with a reference",
    )
    parser.add_argument(
        "--cache",
        nargs="?",
        const="list",
        choices=("list", "clear"),
        help="list the ops built on first use, or remove them",
    )
    return parser


def _report(arguments: argparse.Namespace) -> int:
    if arguments.cache:
        return show_cache(arguments.cache, arguments.json)
    names = arguments.verify or []
    unknown = [name for name in names if name not in ALL_OPS]
    if unknown:
        raise OpBuilderError(
            f"There is no op {', '.join(unknown)}.", f"Name some of: {', '.join(ALL_OPS)}."
        )
    rows = [op_status(name, builder) for name, builder in sorted(ALL_OPS.items())]
    facts = environment_facts.collect()
    if not arguments.json:
        if not arguments.hide_operator_status:
            print_ops(rows, arguments.hide_errors_and_warnings)
        print_environment(facts)
    results: dict[str, Verification] = {}
    if arguments.verify is not None:
        if not arguments.json:
            _print(_RULE)
            _print("DeepSpeed op verification")
            _print(_RULE)
        results = verify_ops(names, rows, quiet=arguments.json)
    if arguments.json:
        _print(json.dumps(_as_json(rows, facts, results), indent=2))
    return 0 if all(result.ok for result in results.values()) else 1


def _as_json(rows, facts, results) -> dict[str, object]:
    ops = {row.name: {k: v for k, v in asdict(row).items() if k != "name"} for row in rows}
    for name, result in results.items():
        ops[name]["verification"] = asdict(result)
    return {
        "ninja": environment_facts.ninja_status(),
        "ops": ops,
        "environment": facts,
        "import_failures": dict(IMPORT_FAILURES),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return _report(arguments)
    except OpBuilderError as error:
        print(f"ds_report: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has gone; point stdout elsewhere so that exit doesn't fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
