"""What a person sees of a running build."""

import io
import os
import pty

import pytest
from deepspeed.ops.op_builder.progress import Progress, Step, parse_step
from hypothesis import given
from hypothesis import strategies as st

LINES = ["[1/3 0.512s] compile mini: a.cpp", "a.cpp:1:2: warning: hm", "[3/3 12.0s] link mini"]


def show(stream: io.TextIOBase) -> None:
    progress = Progress(stream)
    for line in LINES:
        progress.show(line + "\n")
    progress.close()


def test_a_log_gets_one_line_a_step_and_no_word_of_the_compilers():
    stream = io.StringIO()
    show(stream)
    assert stream.getvalue().splitlines() == [
        "[1/3 0.5s, 2 left] compile mini: a.cpp",
        "[3/3 12.0s, 0 left] link mini",
    ]


def test_a_terminal_gets_one_bar_redrawn_in_place():
    reader, writer = pty.openpty()
    with open(writer, "w", encoding="utf-8") as terminal:
        show(terminal)
        drawn = ""
        while "\n" not in drawn:
            drawn += os.read(reader, 4096).decode()
    os.close(reader)
    assert drawn.count("\r[") == 2 and drawn.count("\n") == 1
    assert "[######              ] [1/3 0.5s, 2 left] compile mini: a.cpp" in drawn
    assert drawn.rstrip().endswith("link mini\x1b[K")


@given(st.integers(1, 999), st.integers(1, 999), st.integers(2, 300), st.text(max_size=200))
def test_a_bar_never_reaches_the_last_column(finished, total, columns, name):
    bar = Step(min(finished, total), total, 1.0, name).bar(columns)
    assert len(bar) < columns


@pytest.mark.parametrize("line", ["", "ninja: no work to do.", "[1/x 0.1s] a", "see [1/2 0.1s] a"])
def test_other_lines_are_no_steps(line):
    assert parse_step(line) is None
