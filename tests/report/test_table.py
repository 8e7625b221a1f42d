"""Tables: aligned text and Markdown."""

from __future__ import annotations

from fpmc.report.table import markdown, plain, plus_minus

HEADERS = ("denoiser", "r²", "MSE")
ROWS = [("optimal", "−0.14", "17.90"), ("PSPC-Flex", "0.67", "4.18")]


def test_plain_lines_up():
    assert plain(HEADERS, ROWS).splitlines() == [
        "denoiser      r²    MSE",
        "─────────  ─────  ─────",
        "optimal    −0.14  17.90",
        "PSPC-Flex   0.67   4.18",
    ]


def test_markdown():
    assert markdown(HEADERS, [("a|b", "1", "2")]).splitlines() == [
        "| denoiser | r² | MSE |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1 | 2 |",
    ]


def test_no_rows_is_a_header():
    assert plain(HEADERS, []).count("\n") == 1


def test_plus_minus():
    assert plus_minus(0.67149, 0.0123) == "0.671 ± 0.012"
    assert plus_minus(0.67149, float("nan"), 2) == "0.67"
