"""Phasic policy gradient: which loss reaches which weights, that it learns, and that phases survive a resume."""

from __future__ import annotations

from dataclasses import asdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import ppg
from cleanrl_worker.algorithms.ppg import Agent, Args, auxiliary_losses
from cleanrl_worker.algorithms.ppo import Batch, ppo_losses
from cleanrl_worker.declarations import declaration_of
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.testing import Quiet, charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.run import RunContext
from torch.nn import functional

IMAGE = (16, 16, 3)


class Colors(gym.Env):
    """Name the color of the picture; eight steps an episode, ended by a time limit."""

    observation_space = gym.spaces.Box(0, 255, IMAGE, dtype=np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._draw(), {}

    def step(self, action):
        right = action == self._color
        self._count += 1
        return self._draw(), float(right), False, self._count == 8, {}

    def _draw(self):
        self._color = int(self.np_random.integers(3))
        image = np.zeros(IMAGE, dtype=np.uint8)
        image[..., self._color] = 200
        return image


@pytest.fixture(autouse=True, scope="module")
def _test_environments():
    gym.register("Colors-v0", Colors)
    torch.set_num_threads(1)
    yield
    del gym.registry["Colors-v0"]


PHASES = {
    "env_id": "Colors-v0",
    "num_envs": 4,
    "num_steps": 5,
    "num_minibatches": 2,
    "n_iteration": 3,
    "e_auxiliary": 2,
    "total_timesteps": 130,
}
"""Phases of 60 steps; 130 make two of them"""


def some_batch(rows: int = 6) -> Batch:
    rng = np.random.default_rng(1)
    numbers = [torch.from_numpy(rng.normal(size=rows).astype(np.float32)) for _ in range(4)]
    obs = torch.from_numpy(rng.integers(255, size=(rows, *IMAGE), dtype=np.uint8))
    return Batch(obs, torch.from_numpy(rng.integers(3, size=rows)), *numbers)


# -- arithmetic


def test_the_policy_phase_is_ppo_s_objective():
    torch.manual_seed(0)
    agent, batch = Agent(3, IMAGE), some_batch()
    args = Args(adv_norm_fullbatch=True, clip_coef=0.2, ent_coef=0.1, vf_coef=0.3)
    with torch.no_grad():
        losses = ppo_losses(agent, batch, args)
        logits, values = agent(batch.obs)
    policy, value, entropy = [], [], []
    for row in range(6):
        log_probs = functional.log_softmax(logits[row], dim=0)
        entropy.append(-(log_probs.exp() * log_probs).sum().item())
        ratio = (log_probs[batch.actions[row]] - batch.log_probs[row]).exp().item()
        advantage = batch.advantages[row].item()
        policy.append(-min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
        found, earlier, wished = values[row].item(), batch.values[row].item(), batch.returns[row].item()
        near = earlier + min(max(found - earlier, -0.2), 0.2)
        value.append(0.5 * max((found - wished) ** 2, (near - wished) ** 2))
    expected = np.mean(policy) - 0.1 * np.mean(entropy) + 0.3 * np.mean(value)
    assert losses.total.item() == pytest.approx(expected, rel=1e-4)


def test_advantages_are_normalized_over_the_whole_batch_or_not_at_all():
    torch.manual_seed(0)
    agent, batch = Agent(3, IMAGE), some_batch()
    with torch.no_grad():
        logits, _ = agent(batch.obs)
        ratio = (logits.log_softmax(dim=1).gather(1, batch.actions[:, None])[:, 0] - batch.log_probs).exp()
        objective = torch.minimum(ratio * batch.advantages, ratio.clamp(0.8, 1.2) * batch.advantages)
        for whole in (False, True):  # a minibatch is taken as it comes
            found = ppo_losses(agent, batch, Args(adv_norm_fullbatch=whole)).policy
            assert found.item() == pytest.approx(-objective.mean().item(), rel=1e-5)


def test_a_phase_smaller_than_an_accumulation_step_is_trained_with_a_note(tmp_path):
    """As `ppg_procgen --num-envs 1 --n-iteration 1` upstream: one sequence where four make a minibatch."""
    args = Args(**{**PHASES, "num_envs": 1, "num_minibatches": 1, "n_iteration": 1, "total_timesteps": 10})
    train_here(ppg, tmp_path, args)
    assert [step for step, _ in charts(tmp_path)["losses/aux/kl_loss"]] == [5, 10]
    assert [note.partition(":")[0] for note in declaration_of(args).notes_on(asdict(args))] == [
        "the 1 sequences of a phase (--num-envs × --n-iteration) are not a multiple of 4 (--num-aux-rollouts × "
        "--n-aux-grad-accum)"
    ]


def test_gradients_that_no_step_follows_count_in_the_next_pass(tmp_path, monkeypatch):
    """A pass has three minibatches; with a step after every fourth, there is none."""
    steps: list[int] = []
    plain = ppg.PpgLearner._descend

    def counted(learner, learning_rate):
        steps[-1] += 1
        plain(learner, learning_rate)

    monkeypatch.setattr(ppg.PpgLearner, "_descend", counted)
    for accumulated in (2, 4):
        steps.append(0)
        alone = {**PHASES, "num_envs": 1, "num_minibatches": 1, "total_timesteps": 15}
        args = Args(**alone, num_aux_rollouts=1, n_aux_grad_accum=accumulated)
        train_here(ppg, tmp_path / str(accumulated), args)
    assert steps == [3 + 2, 3]  # three of the policy phase, and in the auxiliary phase one a pass or none


def test_the_auxiliary_phase_has_both_critics_errors_and_the_distance_to_the_old_policy():
    torch.manual_seed(0)
    agent, batch = Agent(3, IMAGE), some_batch()
    old_logits = torch.randn(6, 3)
    with torch.no_grad():
        losses = auxiliary_losses(agent, batch.obs, batch.returns, old_logits, 0.7)
        logits, values, auxiliary = agent.with_auxiliary(batch.obs)
    old, new = functional.softmax(old_logits, dim=1).numpy(), functional.softmax(logits, dim=1).numpy()
    clone = np.mean([sum(old[row] * np.log(old[row] / new[row])) for row in range(6)])
    assert losses.clone.item() == pytest.approx(clone, rel=1e-4)
    assert losses.auxiliary_value.item() == pytest.approx(0.5 * ((auxiliary - batch.returns) ** 2).mean().item())
    assert losses.value.item() == pytest.approx(0.5 * ((values - batch.returns) ** 2).mean().item())
    parts = losses.auxiliary_value + 0.7 * losses.clone + losses.value
    assert losses.total.item() == pytest.approx(parts.item())


def test_values_teach_the_features_through_the_auxiliary_critic_alone():
    agent, batch = Agent(3, IMAGE), some_batch()
    ppo_losses(agent, batch, Args()).value.backward()
    assert all(parameter.grad is None for parameter in agent.network.parameters())
    assert agent.critic.weight.grad.abs().sum() > 0
    losses = auxiliary_losses(agent, batch.obs, batch.returns, torch.zeros(6, 3), 1.0)
    losses.value.backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in agent.network.parameters())
    losses.auxiliary_value.backward()
    assert agent.network[5].weight.grad.abs().sum() > 0


def test_outputs_begin_with_weights_of_one_length():
    agent = Agent(15)
    for layer, norm in ((agent.network[0].conv, 1.0), (agent.network[5], 1.4), (agent.actor, 0.1)):
        torch.testing.assert_close(layer.weight.flatten(1).norm(dim=1), torch.full((len(layer.weight),), norm))
        assert not layer.bias.any()


# -- learning


@pytest.mark.slow  # its losses are plain arithmetic, tested in every CI
def test_the_colors_are_learned_and_the_policy_survives_the_auxiliary_phase(tmp_path):
    _, evaluation = train_here(
        ppg,
        tmp_path,
        Args(
            env_id="Colors-v0",
            num_envs=8,
            num_steps=16,
            num_minibatches=2,
            n_iteration=4,
            e_auxiliary=2,
            gamma=0.5,
            total_timesteps=2048,
            learning_rate=1e-3,
            eval_episodes=8,
        ),
    )
    assert evaluation.mean_return >= 7.5  # of 8; at random 2.7
    found = charts(tmp_path)
    assert [step for step, _ in found["losses/aux/kl_loss"]] == [512, 1024, 1536, 2048]
    errors = [value for _, value in found["losses/aux/aux_value_loss"]]
    assert errors[-1] < errors[0] / 2


@pytest.mark.slow  # a resumed run is compared with an undisturbed one in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run, _ = train_here(ppg, tmp_path / name, Args(**PHASES, seed=seed))
        assert run._step == 120  # whole phases only
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.parametrize(
    ("stop_after", "step"),
    [(2, 40), (10, 40), (12, 60), (20, 100)],
    ids=["policy phase", "auxiliary phase", "between phases", "last auxiliary phase"],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(tmp_path, stop_after, step):
    """Safe points of a phase: one before each of 3 iterations, then 3 + 2 × 3 in the auxiliary phase."""
    args = Args(**PHASES)
    train_here(ppg, tmp_path / "whole", args)
    stopped, _ = train_here(ppg, tmp_path / "parts", args, commands=[*[None] * stop_after, Command.STOP])
    assert stopped.stopped is not None
    checkpoints = [path.name for path in (tmp_path / "parts" / "checkpoints").glob("step-*")]
    assert checkpoints == [f"step-{step}"]
    run, _ = train_here(ppg, tmp_path / "parts", args, resume=tmp_path / "parts" / "checkpoints" / f"step-{step}")
    loaded = next(message for kind, message in run._channel.messages if kind == "checkpoint_loaded")
    assert loaded["environments"] == "exact"
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
    assert charts(tmp_path / "parts") == charts(tmp_path / "whole")


def test_a_pause_in_the_auxiliary_phase_changes_nothing(tmp_path):
    args = Args(**PHASES)
    train_here(ppg, tmp_path / "whole", args)
    run = RunContext("plain", tmp_path / "paused", Quiet([*[None] * 8, Command.PAUSE, Command.RESUME]))
    ppg.train(args, run)
    run.writer.close()
    assert "paused" in [kind for kind, _ in run._channel.messages]
    assert (tmp_path / "paused" / "checkpoints" / "step-40").is_dir()
    assert weights_digest(tmp_path / "paused") == weights_digest(tmp_path / "whole")


def test_gradients_of_several_minibatches_are_added_up(tmp_path):
    """Two sequences at once, or one after the other into the same gradient: the same but for rounding."""
    found = []
    for name, together, accumulated in (("a", 2, 1), ("b", 1, 2)):
        args = Args(**PHASES, num_aux_rollouts=together, n_aux_grad_accum=accumulated)
        train_here(ppg, tmp_path / name, args)
        found.append(torch.load(tmp_path / name / "ppg_procgen.cleanrl_model", weights_only=True)["aux_critic.weight"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-2, atol=1e-4)


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match="not finite at step 20: lower --learning-rate"):
        train_here(ppg, tmp_path, Args(**PHASES, learning_rate=1e38, max_grad_norm=1e38, checkpoint_freq=1))
    assert not (tmp_path / "checkpoints").exists()


# -- files and bad input


def _sequence(index: int, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    names = {"conv": inputs, **{f"res_block{block}.conv{at}": outputs for block in (0, 1) for at in (0, 1)}}
    shapes = {f"network.{index}.{name}.weight": (outputs, channels, 3, 3) for name, channels in names.items()}
    return shapes | {f"network.{index}.{name}.bias": (outputs,) for name in names}


NAMES = {
    **_sequence(0, 3, 16),
    **_sequence(1, 16, 32),
    **_sequence(2, 32, 32),
    "network.5.weight": (256, 2048),
    "network.5.bias": (256,),
    "actor.weight": (15, 256),
    "actor.bias": (15,),
    "critic.weight": (1, 256),
    "critic.bias": (1,),
    "aux_critic.weight": (1, 256),
    "aux_critic.bias": (1,),
}


def test_parameters_have_upstream_s_names_and_shapes():
    assert {name: tuple(tensor.shape) for name, tensor in Agent(15).state_dict().items()} == NAMES


def test_a_model_can_be_played(tmp_path):
    train_here(ppg, tmp_path, Args(**PHASES))
    saved = torch.load(tmp_path / "ppg_procgen.cleanrl_model", weights_only=True)
    weights = {name: tensor.numpy() for name, tensor in saved.items()}
    policy = ppg.make_policy("Colors-v0", Colors.observation_space, Colors.action_space, weights)
    images = np.random.default_rng(0).integers(255, size=(5, *IMAGE), dtype=np.uint8)
    agent = Agent(3, IMAGE)
    agent.load_state_dict(saved)
    with torch.no_grad():
        expected = agent(torch.from_numpy(images))[0].argmax(dim=1).numpy()
    np.testing.assert_array_equal(policy.act(images, None), expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        ({"v_value": 2}, "--v-value must be at most 1, got 2"),
        ({"num_minibatches": 3}, "--num-minibatches 3 does not divide the batch"),
        ({"env_id": "CartPole-v1"}, "needs images .height, width, channels. as observations"),
        ({"env_id": "picture_worlds:Quadrants-v0"}, "needs images .height, width, channels. as observations"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        train_here(ppg, tmp_path, Args(**flags))
