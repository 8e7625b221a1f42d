"""Networks to compare with: EDM's DDPM++ and NCSN++, read safely or trained; names are imported when first used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
