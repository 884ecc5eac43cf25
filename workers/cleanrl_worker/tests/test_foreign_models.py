"""Weights from files: every shape CleanRL writes is read, nothing in a file is executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.algorithms.ppo import Agent, Args, make_policy, train
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.training.envs import make_single
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.training.weights_reader import Refused, _reason, read


class Quiet:
    def __init__(self):
        self.messages = []

    def send(self, kind, message, *, must_arrive=True):
        self.messages.append((kind, dict(message)))

    def poll(self, timeout_s=0):
        return []


def save(path: Path, content) -> Path:
    torch.save(content, path)
    return path


@pytest.fixture(scope="module")
def agent() -> Agent:
    torch.manual_seed(3)
    return Agent(4, 2)


def test_every_shape_is_recognized(tmp_path, agent):
    state = agent.state_dict()
    half = {name: tensor.half() for name, tensor in state.items()}
    files = {
        "state_dict": save(tmp_path / "a.cleanrl_model", state),
        "model_weights": save(tmp_path / "b.cleanrl_model", {"model_weights": state, "args": {"gamma": 0.9, "x": []}}),
        "model_state_dict": save(
            tmp_path / "c.cleanrl_model", {"model_state_dict": half, "global_step": 7, "iteration": 2}
        ),
    }
    reported = {}
    for shape, file in files.items():
        tensors, reported[shape] = read(file)
        assert reported[shape]["shape"] == shape
        assert set(tensors) == set(state)
        np.testing.assert_allclose(tensors["actor.4.weight"].numpy(), state["actor.4.weight"].numpy(), atol=1e-3)
    assert reported["model_weights"]["args"] == {"gamma": 0.9}
    assert (reported["model_state_dict"]["global_step"], reported["model_state_dict"]["iteration"]) == (7, 2)


def test_a_tuple_of_networks_is_read_and_refused_by_an_algorithm_with_one(tmp_path, agent):
    state = agent.state_dict()
    model = read_foreign_model(save(tmp_path / "td3.cleanrl_model", (state, state, state)))
    assert (model.shape, model.facts["networks"]) == ("tuple", 3)
    assert "1.actor.4.weight" in model.weights
    with pytest.raises(BadInput, match=r"holds 3 networks \(actor, qf1 and qf2, as TD3 saves them\); ppo has one"):
        model.single_network("ppo")


class Malicious:
    """Unpickling this runs a command."""

    def __init__(self, target: Path):
        self._target = target

    def __reduce__(self):
        return os.system, (f"touch {self._target}",)


@pytest.mark.parametrize("with_torch", [True, False])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path, with_torch):
    target, file = tmp_path / "executed", tmp_path / "bad.cleanrl_model"
    if with_torch:
        torch.save({"actor.0.weight": Malicious(target)}, file)
    else:
        file.write_bytes(pickle.dumps(Malicious(target), protocol=2))
    with pytest.raises(BadInput, match=r"is refused: it would run code when it is loaded \((posix|os|nt)\.system\)"):
        read_foreign_model(file)
    assert not target.exists()
    pickle.loads(pickle.dumps(Malicious(target)))  # it would have, with plain pickle
    assert target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a torch file"),
        (b"not a model at all", "plain weights|torch file"),
        ([1, 2], "not one of state dicts"),
        ({"a": {"b": 1}}, "is dict, not a tensor"),
        ({}, "holds no weights"),
        (5, "holds int, not weights"),
    ],
)
def test_files_that_hold_no_weights_are_refused(tmp_path, content, message):
    file = tmp_path / "odd.cleanrl_model"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(Refused, match=message):
        read(file)


def test_a_truncated_file_is_refused(tmp_path, agent):
    file = save(tmp_path / "cut.cleanrl_model", agent.state_dict())
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(BadInput, match="cannot be read as a torch file"):
        read_foreign_model(file)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_foreign_model(tmp_path / "nowhere.cleanrl_model")


def test_an_old_torch_s_words_are_understood_too():
    assert "run code" in _reason(RuntimeError("Unsupported global: GLOBAL os.system was not an allowed global"))
    assert "more than plain weights" in _reason(RuntimeError("Weights only load failed"))


def test_training_begins_from_the_weights_of_a_file(tmp_path, agent):
    file = save(tmp_path / "a.cleanrl_model", agent.state_dict())
    run = RunContext("ppo", tmp_path / "run", Quiet(), resume=file)
    train(Args(total_timesteps=128, num_steps=32, learning_rate=0.0), run)  # learns nothing, so they come out again
    run.writer.close()
    loaded = next(message for kind, message in run._channel.messages if kind == "checkpoint_loaded")
    assert (loaded["weights_only"], loaded["step"], loaded["shape"]) == (True, 0, "state_dict")
    assert "only the weights" in loaded["note"]
    saved = torch.load(tmp_path / "run" / "ppo.cleanrl_model", weights_only=True)
    assert all(torch.equal(saved[name], tensor) for name, tensor in agent.state_dict().items())


def test_a_policy_from_a_file_plays_as_the_network_does(tmp_path, agent):
    file = save(tmp_path / "a.cleanrl_model", agent.state_dict())
    env = make_single("CartPole-v1")
    policy = TrainedPolicy.load(file, "ppo").for_env(ppo, "CartPole-v1", env)
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with torch.no_grad():
        expected = agent.actor(torch.from_numpy(obs)).argmax(1).numpy()
    np.testing.assert_array_equal(policy.act(obs, None), expected)
    acrobot = make_single("Acrobot-v1")
    weights = {name: tensor.numpy() for name, tensor in agent.state_dict().items()}
    with pytest.raises(BadInput, match="the policy does not fit this algorithm and environment"):
        make_policy("Acrobot-v1", acrobot.observation_space, acrobot.action_space, weights)
