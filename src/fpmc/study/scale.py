"""How much of everything: the paper's numbers, what two CPU cores can do, and a quick look."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fpmc.learn.finetune import TEMPLATES, Tuning


@dataclass(frozen=True)
class Scale:
    """Sizes of all experiments; noise levels are named by their σ and looked up in the sampling grid."""

    name: str
    seeds: int                                  # samples of each denoiser
    expensive_seeds: int                        # of ELS and Lukoianov's, an image of which costs many times more
    batch: int                                  # seeds that are sampled, and kept, together
    els_images: int | None                      # training images of ELS; None: all
    points: int                                 # noisy images per noise level where denoiser errors are measured
    expensive_points: int                       # at most so many of them for ELS and Lukoianov's
    draws: int                                  # of sensitivity maps, where none come with the network
    tuning: Tuning                              # how Q and R are learned
    tuned: tuple[float, ...] | None             # levels of the fine-tuning figure; None: all of the grid
    joint: tuple[float, ...] | None             # levels of the results at which Q and R are learned together; None: all
    retune: bool                                # learn Q and R anew for each augmented source
    synthetic: int | None                       # synthetic images added in the results; None: as many as there are
    held_out: int                               # synthetic images that stand in where there is no test split
    kinds: tuple[str, ...]                      # augmentations compared
    amounts: tuple[float, ...]                  # of augmented images, relative to the training images
    augmented: tuple[float, ...]                # levels of the augmentation figure
    calibrated: tuple[str, ...]                 # methods whose schedule is searched
    calibration: int                            # noisy images per level there
    every: int                                  # one in so many of the patch sizes from 11 on, and of the thresholds
    fit: int                                    # noisy images per level that multi-scale weights are fitted on
    shown: int = 8                              # seeds in the picture of samples


KINDS = ("xflip", "yflip", "translate", "rotate", "scale", "synthetic")
_LAPTOP = Scale(
    name="laptop", seeds=256, expensive_seeds=64, batch=32, els_images=None, points=48, expensive_points=64, draws=2,
    tuning=TEMPLATES,
    tuned=None, joint=None, retune=True,
    synthetic=12_000, held_out=512,
    kinds=KINDS, amounts=(0.2, 0.5, 1.0, 2.0, 4.0), augmented=(0.14, 1.09, 3.26),
    calibrated=("pspc_square", "ls", "pspc_flex"), calibration=256, every=2, fit=128,
)
SCALES = {
    "laptop": _LAPTOP,
    "quick": replace(
        _LAPTOP, name="quick", seeds=32, expensive_seeds=8, els_images=500, points=24, expensive_points=16,
        tuned=(1.09, 0.14), joint=(3.26, 1.09, 0.585, 0.14), retune=False,
        synthetic=256, held_out=256, kinds=("xflip", "rotate"),
        amounts=(0.5, 1.0), augmented=(1.09,), calibrated=("pspc_square",), calibration=8, every=4, fit=64,
    ),
    "paper": Scale(
        name="paper", seeds=1000, expensive_seeds=1000, batch=50, els_images=None, points=1000, expensive_points=1000,
        draws=16, tuning=Tuning(),
        tuned=None, joint=None, retune=True, synthetic=None, held_out=10_000,
        kinds=KINDS, amounts=(0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0), augmented=(0.14, 1.09, 3.26),
        calibrated=("pspc_square", "ls", "els", "pspc_flex"), calibration=1000, every=1, fit=1000,
    ),
}
