"""Mutation testing of the core with mutmut 3 (`pip install mutmut`): `python scripts/mutate.py --out mutants.json`.

Each module is changed in one small place at a time, and the tests beside it must notice. mutmut makes the mutants; of
every module `--each` are drawn at random (seeded), and pytest runs the module's tests for each in a process of its own.
Texts of error messages count like all else. Nothing is changed here: it happens in a copy under a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300                                          # seconds of a mutant's tests; one that hangs is noticed, too
CORE = ["tests/core/test_precision.py", "tests/core/test_response.py", "tests/core/test_sources.py"]
REDUCED = ["tests/engine/test_state.py", "tests/engine/test_reduced.py"]
MODULES = {                                             # and the quick tests beside them
    "core/precision.py": [*CORE, "tests/engine/test_plan.py"],
    "core/response.py": [*CORE, "tests/engine/test_plan.py"],
    "core/sources.py": [*CORE, "tests/engine/test_plan.py"],
    "engine/state.py": REDUCED,
    "engine/reduce/mass.py": REDUCED,
    "engine/reduce/mean.py": REDUCED,
    "engine/reduce/top.py": REDUCED,
    "engine/plan.py": ["tests/engine/test_plan.py", *REDUCED],
    "sampling.py": ["tests/test_sampling.py"],
    "metrics.py": ["tests/test_metrics.py"],
}
CONFIG = """

[tool.mutmut]
source_paths = ["src"]
only_mutate = ["src/fpmc/{module}"]
pytest_add_cli_args_test_selection = {tests}
"""


def mutmut(folder: Path, *args: str) -> str:
    """One call of mutmut in the copy; what it printed."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mutmut", *args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout + done.stderr


def survives(folder: Path, tests: list[str], mutant: str) -> bool:
    """Whether its tests pass; with no name, whether they do without any change."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MUTANT_UNDER_TEST": mutant}
    env["PYTHONPATH"] = os.pathsep.join([str(folder / "mutants/src"), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder / "mutants", env=env, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def campaign(folder: Path, module: str, each: int, seed: int, again: dict | None) -> dict:
    """The mutants drawn from one module: how many there are, were killed and survived, and the survivors' changes.

    again: what an earlier campaign found, of which only the survivors are tried.
    """
    tests = [test for test in MODULES[module] if (ROOT / test).exists()]
    text = (ROOT / "pyproject.toml").read_text() + CONFIG.format(module=module, tests=json.dumps(tests))
    (folder / "pyproject.toml").write_text(text)
    shutil.rmtree(folder / "mutants", ignore_errors=True)
    began = time.process_time() + _children()
    said = mutmut(folder, "run", "--max-children", "1", "no such mutant")      # makes them all, runs none
    made = folder / f"mutants/src/fpmc/{module}.meta"
    if not made.exists():
        raise SystemExit(f"mutmut made no mutants of {module}:\n{said[-2000:]}")
    names = sorted(json.loads(made.read_text())["exit_code_by_key"])
    drawn = sorted(again["survivors"] if again else random.Random(seed).sample(names, min(each, len(names))))
    if not survives(folder, tests, ""):
        raise SystemExit(f"the tests of {module} fail without any change: {' '.join(tests)}")
    alive = [name for name in drawn if survives(folder, tests, name)]
    count = again["drawn"] if again else len(drawn)
    return {
        "module": module, "tests": tests, "mutants": len(names), "drawn": count, "killed": count - len(alive),
        "processor_seconds": round(time.process_time() + _children() - began),
        "survivors": {name: _change(mutmut(folder, "show", name)) for name in alive},
    }


def _children() -> float:
    return os.times().children_user + os.times().children_system


def _change(diff: str) -> str:
    return "\n".join(line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--each", type=int, default=60, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only survivors of this earlier campaign, after tests were added")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    args = parser.parse_args()
    before = {one["module"]: one for one in json.loads(args.again.read_text())} if args.again else {}
    results = []
    with tempfile.TemporaryDirectory() as place:
        for name in ("src", "tests", "README.md"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(place) / name)
        shared = Path(place) / "tests/conftest.py"      # pools of threads do not survive a fork
        shared.write_text(shared.read_text().replace("torch.set_num_threads(2)", "torch.set_num_threads(1)"))
        for module in args.modules:
            again = before.get(module)
            if again is not None and not again["survivors"]:
                results.append(again)
                continue
            results.append(campaign(Path(place), module, args.each, args.seed, again))
            one = results[-1]
            score = f"{one['killed']} of {one['drawn']} killed, drawn from {one['mutants']}"
            print(f"{module}: {score}; {one['processor_seconds']} s of processor time", flush=True)
            args.out.write_text(json.dumps(results, indent=2) + "\n")
    killed, drawn = (sum(one[key] for one in results) for key in ("killed", "drawn"))
    print(f"all: {killed} of {drawn} killed ({100 * killed / drawn:.1f} %)")


if __name__ == "__main__":
    main()
