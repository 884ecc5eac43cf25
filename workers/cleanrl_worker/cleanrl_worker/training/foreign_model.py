"""`.cleanrl_model` files: weights that a user saved with torch, read in another process (weights_reader)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire.files import chosen_file
from mosaic_wire.manifest import sha256_of_file
from safetensors.numpy import load_file

from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import damage_of
from cleanrl_worker.training.weights_reader import EXIT_REFUSED, PREFIX

_MAX_BYTES = 8 << 30
_PATIENCE_S = 600
_TUPLES = {2: "actor and qf1, as DDPG saves them", 3: "actor, qf1 and qf2, as TD3 saves them"}
_NETWORKS = {
    "ddpg_continuous_action": ("actor", "qf1"),
    "td3_continuous_action": ("actor", "qf1", "qf2"),
    "sac_continuous_action": ("actor", "qf1", "qf2"),
    "sac_atari": ("actor", "qf1", "qf2"),
}
"""Names of the networks of a tuple, in its order"""


@dataclass(frozen=True)
class ForeignModel:
    """The content of a file with weights."""

    path: Path
    sha256: str
    shape: str
    """state_dict | model_weights | model_state_dict | tuple"""
    weights: Mapping[str, np.ndarray]
    facts: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of the normalizer it was trained with: `obs_norm.mean` …"""

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the statistics `<prefix>.…`, without the prefix."""
        return {k.removeprefix(f"{prefix}."): v for k, v in self.statistics.items() if k.startswith(f"{prefix}.")}

    def weights_for(self, algo: str) -> Mapping[str, np.ndarray]:
        """Return the weights under the names this algorithm has for them; BadInput when the file is of another."""
        networks = _NETWORKS.get(algo)
        if networks is None:
            return self.single_network(algo)
        count = int(self.facts["networks"])
        if count != len(networks):
            raise BadInput(
                f"{self.path} holds {count} network{'s'[: count != 1]}; {algo} has {len(networks)}: "
                f"{', '.join(networks)}"
            )
        numbered = {f"{number}.": f"{network}." for number, network in enumerate(networks)}
        return {numbered[name[:2]] + name[2:]: array for name, array in self.weights.items()}

    def single_network(self, algo: str) -> Mapping[str, np.ndarray]:
        """Return the weights of an algorithm that has one network; BadInput when the file holds several."""
        if self.shape == "tuple":
            count = int(self.facts["networks"])
            known = _TUPLES.get(count, f"{count} networks")
            raise BadInput(f"{self.path} holds {count} networks ({known}); {algo} has one")
        return self.weights


def read_foreign_model(path: Path) -> ForeignModel:
    """Read the weights without executing anything of the file; BadInput with the reason when that is not possible."""
    try:
        size, digest = path.stat().st_size, sha256_of_file(path, opener=chosen_file)
    except OSError as error:
        raise BadInput(f"the model {path} cannot be read: {error.strerror or error}") from error
    if size > _MAX_BYTES:
        raise BadInput(f"the model {path} has {size >> 30} GiB, more than {_MAX_BYTES >> 30}")
    if damage := damage_of(path):
        raise BadInput(f"the model {path} is refused: {damage}")
    with tempfile.TemporaryDirectory(prefix="mosaic-weights-") as folder:
        destination = Path(folder) / "weights.safetensors"
        argv = [sys.executable, "-I", "-m", "cleanrl_worker.training.weights_reader", str(path.absolute())]
        try:
            answer = subprocess.run(
                [*argv, str(destination)],
                cwd=folder,
                env=_bare_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BadInput(f"the model {path} is refused: reading it took more than {_PATIENCE_S} s") from error
        if answer.returncode != 0:
            reason = (answer.stderr.strip().splitlines() or ["no message"])[-1]
            if answer.returncode != EXIT_REFUSED:
                reason = f"reading it ended with exit code {answer.returncode}: {reason}"
            raise BadInput(f"the model {path} is refused: {reason}")
        facts = json.loads(answer.stdout.strip().splitlines()[-1])
        arrays = load_file(destination)
        statistics = {name.removeprefix(PREFIX): arrays.pop(name) for name in [*arrays] if name.startswith(PREFIX)}
        return ForeignModel(path, digest, facts.pop("shape"), arrays, facts, statistics)


def _bare_environment() -> dict[str, str]:
    """Return an environment without tokens, keys and folders of the run."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
    return {**{name: os.environ[name] for name in kept if name in os.environ}, "OMP_NUM_THREADS": "1"}
