"""Data sets: get, check, decode, hold in memory, and hand out in augmented batches."""

from .augment import AUGMENTATIONS as AUGMENTATIONS
from .batches import batches as batches
from .dataset import DataError as DataError
from .dataset import DataSet as DataSet
from .dataset import from_arrays as from_arrays
from .dataset import from_folder as from_folder
from .dataset import stratified_split as stratified_split
from .sources import Availability as Availability
from .sources import available as available
from .sources import count as count
from .sources import data_root as data_root
from .sources import get as get
from .sources import load as load
from .sources import names as names
from .sources import register as register
