"""Make the embedded images: `python scripts/make_embedded.py [FOLDER]`, FOLDER with Fashion-MNIST's four IDX files.

The first 1,200 train and 200 test images of each class, in the order of the official files, as compressed NumPy arrays
(6.2 MB; PNG sheets and xz are about a tenth smaller, and several times slower to read). The same files give the same
bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fpmc.data.fashion import DEBIAN, EMBEDDED
from fpmc.data.idx import read_folder
from fpmc.files import atomic

PER_CLASS = {"train": 1200, "test": 200}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEBIAN
    for split, count in PER_CLASS.items():
        images = read_folder(folder, split)
        labels = np.asarray(images.labels)
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))
        with atomic(EMBEDDED / f"fashion-{split}.npz") as part:
            np.savez_compressed(
                part,
                images=np.asarray(images.pixels)[chosen, 0],  # uint8 (N, 28, 28)
                labels=labels[chosen].astype(np.uint8),
                ids=np.asarray(images.ids)[chosen].astype(np.int32),
            )
        print(split, len(chosen), images.subset(chosen).checksum())


if __name__ == "__main__":
    main()
