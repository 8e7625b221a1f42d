"""Filtered posterior mean collections: analytic denoisers for diffusion models.

The public surface is listed in `__init__.pyi`; names are imported when first used, so `import fpmc` is instant.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
