"""Environments: several at once under one convention (`convention`), made by the name of a pipeline (`pipelines`).

`make_envs` chooses how they are stepped; `make_single` makes one of them for evaluation.
"""

from cleanrl_worker.training.envs.convention import EnvState, Step, VectorEnvs
from cleanrl_worker.training.envs.episodes import EpisodeLines, EpisodeTracker
from cleanrl_worker.training.envs.factory import make_envs
from cleanrl_worker.training.envs.making import is_image, register_family, said_of
from cleanrl_worker.training.envs.native import NativeCartPole
from cleanrl_worker.training.envs.pipelines import PIPELINES, make_single
from cleanrl_worker.training.envs.processes import AsyncEnvs
from cleanrl_worker.training.envs.sync import SyncEnvs

__all__ = [
    "PIPELINES",
    "AsyncEnvs",
    "EnvState",
    "EpisodeLines",
    "EpisodeTracker",
    "NativeCartPole",
    "Step",
    "SyncEnvs",
    "VectorEnvs",
    "is_image",
    "make_envs",
    "make_single",
    "register_family",
    "said_of",
]
