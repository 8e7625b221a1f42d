"""Tables: aligned text, Markdown, LaTeX, CSV."""

from __future__ import annotations

from fpmc.report.table import csv_text, latex, markdown, plain, plus_minus

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
    assert plus_minus(-0.00049, 0.0001) == "0.000 ± 0.000"


def test_latex_escapes_and_greys():
    text = latex(("a_b", "r² ↑"), [("50 %", "0.5 ± 0.1"), ("τ & σ", "–")], grey=(1,))
    assert r"a\_b & \textcolor{gray}{r$^2$ $\uparrow$} \\" in text
    assert r"50 \% & \textcolor{gray}{0.5 $\pm$ 0.1} \\" in text
    assert r"$\tau$ \& $\sigma$ & \textcolor{gray}{--} \\" in text
    assert text.startswith(r"\begin{tabular}{lr}")
    assert text.isascii()


def test_csv_has_every_name_and_full_precision():
    assert csv_text([{"a": 1, "b": 0.1 + 0.2}, {"a": 2, "c": "x,y"}]).splitlines() == [
        "a,b,c", "1,0.30000000000000004,", '2,,"x,y"',
    ]
