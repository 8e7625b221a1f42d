from .checkpoint import load_network as load_network
from .checkpoint import save_network as save_network
from .mapfile import load_maps as load_maps
from .mapfile import save_maps as save_maps
from .maps import SensitivityMaps as SensitivityMaps
from .maps import sensitivity_maps as sensitivity_maps
from .precond import EDMPrecond as EDMPrecond
from .shipped import SHIPPED as SHIPPED
