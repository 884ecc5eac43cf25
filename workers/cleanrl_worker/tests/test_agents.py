"""The two networks with a shared trunk, as they were drawn, and which one plays what."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.agents.minigrid import MinigridAgent, MinigridCNN
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.algorithms.ppo import Agent, choose_agent, make_agent
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.checkpointing import agent_of, load_weights
from torch import nn

FLAT, SEEN = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (7, 7, 3), dtype=np.uint8)
PICTURE, ACTIONS = gym.spaces.Box(0, 255, (96, 96, 3), dtype=np.uint8), gym.spaces.Discrete(7)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def test_the_grid_network_is_the_one_drawn():
    layers = [layer for layer in MinigridCNN().modules() if not isinstance(layer, nn.Sequential | MinigridCNN)]
    assert [type(layer).__name__ for layer in layers] == [
        "Conv2d",
        "ReLU",
        "Conv2d",
        "ReLU",
        "Conv2d",
        "ReLU",
        "Flatten",
        "Linear",
    ]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.padding) for c in convolutions] == [
        (3, 32, (3, 3), (1, 1)),
        (32, 64, (3, 3), (1, 1)),
        (64, 64, (3, 3), (1, 1)),
    ]
    assert (layers[-1].in_features, layers[-1].out_features) == (3136, 128)


def test_the_heads_are_the_ones_drawn():
    agent = MinigridAgent(7)
    for head, outputs in ((agent.actor, 7), (agent.critic, 1)):
        assert [type(layer).__name__ for layer in head] == ["Linear", "ReLU", "Linear"]
        assert (head[0].weight.shape, head[2].weight.shape) == ((128, 128), (outputs, 128))


def test_images_are_divided_by_255_and_channels_come_first():
    network, seen = MinigridCNN(), []
    network.convolutions[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 7, 7, 3), dtype=np.uint8))
    assert network(images).shape == (2, 128)
    torch.testing.assert_close(seen[0], images.permute(0, 3, 1, 2).float() / 255)


def test_the_flat_network_shares_its_trunk():
    agent = MLPAgent(4, 2)
    assert [type(layer).__name__ for layer in agent.network] == ["Linear", "Tanh", "Linear", "Tanh"]
    assert shapes(agent) == {
        "network.0.weight": (64, 4),
        "network.0.bias": (64,),
        "network.2.weight": (64, 64),
        "network.2.bias": (64,),
        "actor.weight": (2, 64),
        "actor.bias": (2,),
        "critic.weight": (1, 64),
        "critic.bias": (1,),
    }


@pytest.mark.parametrize("build", [lambda: MLPAgent(4, 3), lambda: MinigridAgent(3)], ids=["mlp", "minigrid"])
def test_weights_are_orthogonal_and_the_first_policy_nearly_uniform(build):
    agent = build()
    for name, tensor in agent.state_dict().items():
        if name.endswith("bias"):
            assert not tensor.any()
        elif tensor.shape[0] > 1:
            rows = tensor.flatten(1)
            gram = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
            torch.testing.assert_close(gram, torch.eye(len(gram)) * gram[0, 0], atol=1e-4, rtol=1e-4)
    obs = torch.rand(5, 4) if isinstance(agent, MLPAgent) else torch.randint(0, 255, (5, 7, 7, 3), dtype=torch.uint8)
    action, log_prob, entropy, value = agent.get_action_and_value(obs)
    assert (action.shape, log_prob.shape, entropy.shape, value.shape) == ((5,), (5,), (5,), (5, 1))
    assert entropy.min() > 1.05  # of at most log 3 = 1.099
    torch.testing.assert_close(agent.get_value(obs), value)


@pytest.mark.parametrize(
    ("expected", "space", "in_curriculum", "chosen"),
    [
        ("auto", FLAT, False, "separate"),
        ("auto", FLAT, True, "mlp"),
        ("auto", SEEN, False, "minigrid"),
        ("auto", SEEN, True, "minigrid"),
        ("auto", PICTURE, False, "separate"),
        ("mlp", FLAT, False, "mlp"),
        ("separate", FLAT, True, "separate"),
    ],
)
def test_which_network_plays_what(expected, space, in_curriculum, chosen):
    assert choose_agent(expected, space, in_curriculum=in_curriculum) == chosen


@pytest.mark.parametrize(
    ("kind", "space", "actions", "message"),
    [
        ("minigrid", FLAT, ACTIONS, "--agent minigrid needs images"),
        ("separate", PICTURE, ACTIONS, "--agent minigrid takes small images"),
        ("mlp", FLAT, gym.spaces.Box(-1, 1, (2,)), "ppo needs discrete actions"),
    ],
)
def test_a_network_that_cannot_play_an_environment_reports_it(kind, space, actions, message):
    with pytest.raises(BadInput, match=message):
        make_agent(kind, "Some-v0", space, actions)


@pytest.mark.parametrize(
    "build",
    [lambda: Agent(4, 2), lambda: MLPAgent(4, 2), lambda: MinigridAgent(2)],
    ids=["separate", "mlp", "minigrid"],
)
def test_weights_say_which_network_they_belong_to(build):
    agent = build()
    weights = {name: tensor.numpy() for name, tensor in agent.state_dict().items()}
    kinds = {Agent: "separate", MLPAgent: "mlp", MinigridAgent: "minigrid"}
    assert agent_of(weights) == kinds[type(agent)]
    assert agent_of({f"_orig_mod.{name}": array for name, array in weights.items()}) == kinds[type(agent)]


def test_weights_that_do_not_fit_are_refused_with_their_names():
    weights = {name: tensor.numpy() for name, tensor in Agent(4, 3).state_dict().items()}
    weights["extra.weight"] = weights.pop("critic.0.bias")
    with pytest.raises(BadInput) as caught:
        load_weights(Agent(4, 2), weights, what="the model")
    reported = str(caught.value)
    assert "critic.0.bias is missing" in reported
    assert "extra.weight belongs to another network" in reported
    assert "actor.4.weight has shape (3, 64), expected (2, 64)" in reported
