"""The name of `spade_bdi_worker` in older documents."""

from spade_bdi_worker import __version__ as __version__
from spade_bdi_worker import get_worker_metadata as get_worker_metadata
