"""A picture somebody drops on the page: bounded in bytes and pixels before anything of it is decoded."""

from __future__ import annotations

import io
import warnings

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fpmc.errors import InputError

MOST_BYTES = 4 << 20
MOST_SIDE = 4096                                        # pixels along one side
FORMATS = ("PNG", "JPEG")


def read_picture(data: bytes, shape: tuple[int, int, int]) -> Tensor:  # (1, C, H, W) in [−1, 1]
    """A PNG or JPEG as an image of the training images' shape, shrunk or enlarged where it has another size."""
    if len(data) > MOST_BYTES:
        raise InputError(f"the picture has {len(data):,} bytes; at most {MOST_BYTES:,} are read; make it smaller")
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"a picture has 1 or 3 channels, these images have {channels}; give z in Python instead")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)     # reads the header alone
            if max(picture.size) > MOST_SIDE:
                raise InputError(f"the picture is {picture.width}×{picture.height}; at most {MOST_SIDE} a side is read")
            picture = picture.convert("L" if channels == 1 else "RGB")
    except InputError:
        raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError, Warning) as error:
        raise InputError(f"this is no PNG or JPEG that can be read ({type(error).__name__}); try another") from error
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(picture, dtype=np.float32)).view(height, width, channels).permute(2, 0, 1)
    return ((pixels - 127.5) / 127.5)[None]
