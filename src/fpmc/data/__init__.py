"""Readers, the writer, and the shipped data sets. `load_images` finds the reader by the content of a path."""

from __future__ import annotations

from .cifar10 import get_cifar10
from .load import load_images
from .packing import pack

__all__ = ["get_cifar10", "load_images", "pack"]
