"""Types of what `hpcdi/__init__.py` has when it is used."""

from hpcdi import data as data
from hpcdi.api import Policy as Policy
from hpcdi.api import Run as Run
from hpcdi.api import load as load
from hpcdi.api import train as train
from hpcdi.roles.callbacks import Callback as Callback

__version__: str
