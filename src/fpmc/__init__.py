"""Filtered posterior mean collections: analytic denoisers for diffusion models.

The public surface is listed in `__init__.pyi`; names are imported when first used, so `import fpmc` is instant.
"""

import lazy_loader

__version__ = "0.2.0.dev0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
