"""What is imported when: the core without networks, commands without torch."""

from __future__ import annotations

import subprocess
import sys


def modules(code: str) -> set[str]:
    """What a fresh interpreter has imported after running this."""
    text = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_collection_needs_no_network_and_no_augmentation() -> None:
    found = modules("import fpmc\nfpmc.Collection\nfpmc.FPMC\nfpmc.Source")
    assert "fpmc.core.collection" in found
    for room in ("networks", "augmentation", "study", "learn", "report", "cli", "explore", "methods"):
        assert not any(name.startswith(f"fpmc.{room}") for name in found), room
    assert "numba" not in found


def test_importing_the_package_imports_no_torch() -> None:
    assert "torch" not in modules("import fpmc")


def test_networks_load_without_the_compiler() -> None:
    """A product of tensors without memory would import it, for more than a second."""
    found = modules("import fpmc\nfor name in ('fashion-ddpmpp', 'fashion-ncsnpp'): fpmc.load_network(name)")
    assert "torch" in found
    assert "torch._dynamo" not in found
