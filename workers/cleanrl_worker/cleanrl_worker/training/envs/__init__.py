"""Vector environments under one interface (`vector`), made by the name of a pipeline (`construction`).

`make_envs` chooses how they are stepped; `make_single` makes one environment for evaluation.
"""

from cleanrl_worker.training.envs.construction import (
    PIPELINES,
    environment_errors,
    is_image,
    make_single,
    register_family,
)
from cleanrl_worker.training.envs.factory import NativeCartPole, make_envs
from cleanrl_worker.training.envs.normalization import NormalizedEnvs, ObservationNormalizer
from cleanrl_worker.training.envs.processes import AsyncEnvs
from cleanrl_worker.training.envs.sync import SyncEnvs
from cleanrl_worker.training.envs.vector import EnvState, EpisodeLines, EpisodeTracker, Step, VectorEnvs

__all__ = [
    "PIPELINES",
    "AsyncEnvs",
    "EnvState",
    "EpisodeLines",
    "EpisodeTracker",
    "NativeCartPole",
    "NormalizedEnvs",
    "ObservationNormalizer",
    "Step",
    "SyncEnvs",
    "VectorEnvs",
    "environment_errors",
    "is_image",
    "make_envs",
    "make_single",
    "register_family",
]
