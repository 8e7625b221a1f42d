"""The dispatcher: instant help, suggestions, exit codes, one line per error."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import types
import warnings

import pytest

import fpmc as package
from fpmc import cli
from fpmc.errors import InputError


@pytest.mark.parametrize("args", [["--help"], ["--version"], [], *([name, "--help"] for name in cli.COMMANDS)], ids=str)
def test_help_needs_no_torch(args):
    code = f"import sys, fpmc.cli; code = fpmc.cli.main({args}); sys.exit(99 if 'torch' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "fpmc", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"fpmc {package.__version__}\n"), done.stderr


def test_help_lists_every_command(fpmc):
    text = fpmc("--help").out
    for name, what in cli.COMMANDS.items():
        assert name in text
        assert what in text
    assert fpmc() == fpmc("--help") == fpmc("help")


def test_version(fpmc):
    assert fpmc("--version").out == f"fpmc {package.__version__}\n"


@pytest.mark.parametrize(("typed", "meant"), [("smaple", "sample"), ("denoize", "denoise"), ("evalute", "evaluate")])
def test_a_mistyped_command_gets_a_suggestion(refused, typed, meant):
    assert f"did you mean {meant!r}?" in refused(typed)


def test_an_unknown_command_points_to_help(refused):
    assert "fpmc --help" in refused("xyzzy")


@pytest.fixture
def failing(monkeypatch, fpmc):
    """Run a command that raises."""

    def call(error: BaseException):
        module = types.ModuleType("fpmc.cli.doctor")

        def main(args):
            raise error

        module.main = main  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "fpmc.cli.doctor", module)
        return fpmc("doctor")

    return call


def test_bad_input_is_one_line_and_exit_code_2(failing):
    assert failing(InputError("sigma −1 is\nno noise level")) == (2, "", "fpmc: error: sigma −1 is no noise level\n")


def test_ctrl_c_tells_how_to_go_on(failing):
    code, _, err = failing(KeyboardInterrupt())
    assert code == 130
    assert "the same command goes on" in err


def test_ctrl_c_is_one_even_if_a_library_makes_another_error_of_it(monkeypatch, fpmc):
    module = types.ModuleType("fpmc.cli.doctor")

    def main(args):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:              # as compiled code does
            raise ValueError("no path") from error

    module.main = main  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "fpmc.cli.doctor", module)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)             # a command does not give it back
    before = signal.getsignal(signal.SIGINT)
    code, _, err = fpmc("doctor")
    assert code == 130
    assert "the same command goes on" in err
    assert signal.getsignal(signal.SIGINT) is before


HALF_MADE = """
import os, signal, sys, types
import fpmc.cli

class HalfMade:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.handle = 0

    def __del__(self):
        self.handle

doctor = types.ModuleType("fpmc.cli.doctor")
doctor.main = lambda args: HalfMade()
sys.modules["fpmc.cli.doctor"] = doctor
sys.exit(fpmc.cli.main(["doctor"]))
"""


def test_ctrl_c_is_quiet_about_what_was_half_made():
    done = subprocess.run([sys.executable, "-c", HALF_MADE], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "\nfpmc: interrupted; the same command goes on where it stopped\n"


def test_what_torch_says_of_its_own_insides_is_not_shown(monkeypatch, fpmc):
    module = types.ModuleType("fpmc.cli.doctor")

    def main(args):
        for where in ("torch.storage", "torch", "torchlike", "fpmc.cli.doctor"):
            warnings.warn_explicit(f"of {where}", UserWarning, f"{where}.py", 1, module=where)

    module.main = main  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "fpmc.cli.doctor", module)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert fpmc("doctor").code == 0
    assert [str(each.message) for each in shown] == ["of torchlike", "of fpmc.cli.doctor"]


def test_a_full_disk_is_no_traceback(failing):
    code, _, err = failing(OSError(errno.ENOSPC, "No space left on device", "samples.npy"))
    assert code == 1
    assert err == "fpmc: error: No space left on device: samples.npy\n"


def test_a_bug_keeps_its_traceback(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())
    with pytest.raises(FileNotFoundError):
        failing(FileNotFoundError(errno.ENOENT, "No such file"))


def test_unknown_options_are_refused(fpmc):
    code, _, err = fpmc("sample", "--outdir", "x", "--sigmamin", "3")
    assert code == 2
    assert "--sigmamin" in err
    assert "Traceback" not in err
