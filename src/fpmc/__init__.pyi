from . import augmentation as augmentation
from . import data as data
from . import networks as networks
from . import presets as presets
from . import process as process
from . import reference as reference
from .augmentation import augment as augment
from .collection import FPMC as FPMC
from .collection import Collection as Collection
from .data import load_images as load_images
from .errors import InputError as InputError
from .finetuning import finetune as finetune
from .fit import fit_response as fit_response
from .group import Group as Group
from .images import ImageSet as ImageSet
from .metrics import compare as compare
from .networks import load_network as load_network
from .networks import sensitivity_maps as sensitivity_maps
from .sampling import sample as sample
from .sources import Gaussian as Gaussian
from .sources import Source as Source
from .sources import Translations as Translations

__version__: str
