from . import augmentation as augmentation
from . import data as data
from . import networks as networks
from . import presets as presets
from . import process as process
from . import reference as reference
from .augmentation import augment as augment
from .core.collection import Collection as Collection
from .core.fpmc import FPMC as FPMC
from .core.gaussian import Gaussian as Gaussian
from .core.group import Group as Group
from .core.sources import Source as Source
from .core.sources import Translations as Translations
from .data import load_images as load_images
from .errors import InputError as InputError
from .explore import explore as explore
from .images import ImageSet as ImageSet
from .metrics import compare as compare
from .networks import load_network as load_network
from .networks import sensitivity_maps as sensitivity_maps
from .sampling import sample as sample
from .study.levels import finetune as finetune
from .study.levels import fit_response as fit_response

__version__: str
