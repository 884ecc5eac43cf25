"""Recurrent agents, PPO's and PQN's: what they remember, that they learn to, and that no resume makes them forget."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.agents.atari import HIDDEN, RecurrentAgent, initial_state
from cleanrl_worker.algorithms import ppo_atari_lstm, pqn_lstm
from cleanrl_worker.algorithms.ppo import policy_change, policy_loss, value_loss
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.eval.batched import run_batched_evaluation
from cleanrl_worker.eval.interactive import PolicySession
from cleanrl_worker.modes import EvaluationSettings
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import make_envs, make_single
from cleanrl_worker.training.evaluation import Evaluator, play_episodes
from cleanrl_worker.training.policies import RecurrentPlay, set_episodes
from mosaic_wire.interactive import FrameSink

CPU = torch.device("cpu")
WORLD = {"env_id": "memory_worlds:Recall-v0", "env_backend": "sync", "num_envs": 4, "num_minibatches": 2}
SHORT = {**WORLD, "num_steps": 5, "total_timesteps": 80, "update_epochs": 1}
"""Rollouts shorter than an episode: the state is carried from one to the next"""
LEARNERS = {ppo_atari_lstm: ppo_atari_lstm.RecurrentPpoLearner, pqn_lstm: pqn_lstm.RecurrentPqnLearner}
both = pytest.mark.parametrize("module", LEARNERS, ids=["ppo", "pqn"])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)


def learner_of(module, **flags):
    args = module.Args(**{**SHORT, **flags})
    learner = LEARNERS[module](args, make_envs(args.env_id, args.num_envs), CPU, total=10_000)
    learner.begin_episodes()
    return learner


# -- what is remembered


def test_a_sequence_gives_what_its_steps_give_and_episodes_do_not_see_each_other():
    torch.manual_seed(0)
    agent = RecurrentAgent(1)
    images = torch.randint(0, 255, (6, 2, 1, 84, 84), dtype=torch.uint8)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[2, 0] = starts[4, 1] = starts[5, 1] = True
    before = tuple(torch.randn(1, 2, HIDDEN) for _ in range(2))
    with torch.no_grad():
        together, after = agent.features(images.flatten(0, 1), before, starts)
        together = together.reshape(6, 2, HIDDEN)
        for env, bounds in ((0, [0, 2, 6]), (1, [0, 4, 5, 6])):
            for begin, end in pairwise(bounds):
                state = tuple(part[:, env : env + 1] for part in before) if begin == 0 else initial_state(1, CPU)
                for t in range(begin, end):
                    alone, state = agent.features(images[t, env : env + 1], state, torch.zeros(1, 1, dtype=torch.bool))
                    torch.testing.assert_close(together[t, env], alone[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(after[0][:, env], state[0][:, 0], rtol=1e-4, atol=1e-5)


@both
def test_learning_sees_the_rollout_as_acting_saw_it(module):
    """Before the first descent the network gives for the stored sequences what it gave when they were played."""
    learner = learner_of(module)
    learner.collect(NoRun())  # the next rollout begins in the middle of episodes
    before = learner.lstm_state
    assert before[0].abs().sum() > 0
    batch = learner.collect(NoRun())
    everyone = torch.arange(4)
    starts = (learner.rollout.starts if module is ppo_atari_lstm else learner._starts)[:-1]
    assert starts.any()
    state = tuple(part.clone() for part in before)
    with torch.no_grad():
        if module is ppo_atari_lstm:
            losses = ppo_atari_lstm.recurrent_losses(
                learner.agent, batch.of(everyone), state, torch.from_numpy(starts), learner.args
            )
            assert abs(losses.approx_kl.item()) < 1e-6
            assert losses.clip_fraction.item() == 0
            _, values, _ = learner.agent(batch.obs.flatten(0, 1), state, torch.from_numpy(starts))
            torch.testing.assert_close(values, batch.values.flatten(), rtol=1e-4, atol=1e-5)
        else:
            loss, _ = pqn_lstm.squared_error(learner.agent, batch, everyone, state, torch.from_numpy(starts))
            values, _ = learner.agent(batch.obs.flatten(0, 1), state, torch.from_numpy(starts))
            chosen = values.gather(1, batch.actions.reshape(-1, 1)).squeeze(1)
            assert loss.item() == pytest.approx(((chosen - batch.returns.flatten()) ** 2).mean().item(), rel=1e-5)


@both
def test_an_episode_that_was_cut_is_worth_what_lies_beyond(module):
    learner = learner_of(module, num_steps=8, gamma=0.9)
    batch = learner.collect(NoRun())
    # All episodes began together and the time limit ended them with the last step of the rollout.
    assert learner.next_starts.all()
    envs = make_envs("memory_worlds:Recall-v0", 4)
    obs, state = envs.reset(learner.args.seed), initial_state(4, CPU)
    going_on = torch.zeros(1, 4, dtype=torch.bool)
    with torch.no_grad():
        for t in range(8):
            *_, state = learner.agent(torch.from_numpy(obs), state, going_on)
            step = envs.step(batch.actions[t].numpy())
            obs = step.obs
        seen = learner.agent(torch.from_numpy(step.final_obs), state, going_on)
    beyond = seen[1] if module is ppo_atari_lstm else seen[0].max(dim=1).values
    expected = torch.from_numpy(step.rewards) + 0.9 * beyond
    torch.testing.assert_close(batch.returns[-1], expected, rtol=1e-4, atol=1e-5)


def test_the_objective_equals_plain_arithmetic():
    rng = np.random.default_rng(0)
    log_ratio, advantages, values, returns, earlier = rng.normal(size=(5, 20))
    policy, value, moved = [], [], 0
    for row in range(20):
        ratio = np.exp(log_ratio[row])
        policy.append(-min(ratio * advantages[row], min(max(ratio, 0.8), 1.2) * advantages[row]))
        moved += abs(ratio - 1) > 0.2
        near = earlier[row] + min(max(values[row] - earlier[row], -0.2), 0.2)
        value.append(0.5 * max((values[row] - returns[row]) ** 2, (near - returns[row]) ** 2))
    found = policy_loss(torch.from_numpy(log_ratio), torch.from_numpy(advantages), 0.2)
    _, approx_kl, clip_fraction = policy_change(torch.from_numpy(log_ratio), 0.2)
    assert found.item() == pytest.approx(np.mean(policy))
    assert clip_fraction.item() == pytest.approx(moved / 20)
    assert approx_kl.item() == pytest.approx(np.mean(np.exp(log_ratio) - 1 - log_ratio))
    tensors = [torch.from_numpy(array) for array in (values, returns, earlier)]
    assert value_loss(*tensors, 0.2).item() == pytest.approx(np.mean(value))
    assert value_loss(*tensors, None).item() == pytest.approx(0.5 * np.mean((values - returns) ** 2))


# -- playing


def policy_of(module, tmp_path=None):
    """A fresh network; what it plays is arbitrary but depends on everything it has seen."""
    torch.manual_seed(5)
    spaces = make_single("memory_worlds:FatalRecall-v0")
    network = (module.Agent if module is ppo_atari_lstm else module.QNetwork)(1, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)  # so that memory turns the scale
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return module.make_policy("FatalRecall-v0", spaces.observation_space, spaces.action_space, weights)


@both
def test_episodes_are_played_the_same_whoever_plays_beside_them(module):
    found = []
    for together in (1, 3, 6):
        policy = policy_of(module)
        envs = [make_single("memory_worlds:FatalRecall-v0") for _ in range(together)]
        played = play_episodes(
            envs,
            lambda obs, rngs, policy=policy: policy.act(obs, None),
            episodes=6,
            seed=3,
            set_episodes=lambda episodes, policy=policy: set_episodes(policy, episodes),
        )
        found.append([(episode.length, episode.episode_return) for episode in played])
    assert found[0] == found[1] == found[2]
    assert len({length for length, _ in found[0]}) > 1  # some left early, so rows did move


def test_an_episode_begins_without_the_memory_of_another():
    torch.manual_seed(1)
    agent = pqn_lstm.QNetwork(1, 2)
    play = RecurrentPlay(agent, HIDDEN, CPU)
    image = np.random.default_rng(0).integers(255, size=(1, 1, 84, 84), dtype=np.uint8)
    play.set_episodes([7])
    first, second = play(image), play(image)
    assert not np.allclose(first, second)  # it remembers
    play.set_episodes([8])
    np.testing.assert_array_equal(play(image), first)
    play.set_episodes([8, 9])
    np.testing.assert_allclose(play(np.concatenate([image, image])), np.concatenate([second, first]), atol=1e-5)
    play.set_episodes([])
    play.set_episodes([8])
    np.testing.assert_array_equal(play(image), first)


class Notebook:
    """Plays Recall by heart: writes down what each episode has shown last."""

    def __init__(self):
        self._seen = {}

    def set_episodes(self, episodes):
        self._seen = {episode: self._seen.get(episode, 0) for episode in episodes}

    def act(self, obs, rngs):
        actions = np.array(list(self._seen.values()))
        bright = [int(image[0, 0, 83] > 0) for image in obs]
        self._seen = dict(zip(self._seen, bright, strict=True))
        return actions


def test_whoever_plays_a_policy_reports_it_which_episodes_it_acts_in():
    world = "memory_worlds:Recall-v0"
    settings = EvaluationSettings(episodes=5, batch_size=2, repeat=2)
    report = run_batched_evaluation(lambda env: Notebook(), world, settings)
    assert [episode.episode_return for batch in report.batches for episode in batch.episodes] == [8] * 10

    evaluator = Evaluator(world, episodes=20, seed=1)
    try:
        assert [evaluator.evaluate(Notebook()).min_return for _ in range(2)] == [8, 8]
    finally:
        evaluator.close()

    frames, said = FrameSink("test"), []
    session = PolicySession(make_single(world), world, Notebook(), frames, said.append)
    for _ in range(2):
        session.answer(b'{"cmd": "reset", "frames": "none"}')
        for _ in range(8):
            session.answer(b'{"cmd": "step"}')
    frames.close()
    assert [message["episode_reward"] for message in said if message["type"] == "episode_done"] == [8, 8]


# -- learning


@pytest.mark.slow  # what is remembered and what is not is tested without training in every CI
@both
def test_what_was_seen_one_step_ago_is_remembered(module, tmp_path):
    _, evaluation = train_here(
        module,
        tmp_path,
        module.Args(
            **{**WORLD, "num_envs": 8},
            num_steps=16,
            total_timesteps=1920,
            learning_rate=1e-3,
            gamma=0.5,
            anneal_lr=False,
            eval_episodes=8,
        ),
    )
    assert evaluation.mean_return >= 7.5  # of 8; without a memory 4.5


@pytest.mark.slow  # a resumed run is compared with an undisturbed one in every CI
@both
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(module, tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_here(module, tmp_path / name, module.Args(**SHORT, seed=seed))
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@both
def test_a_run_that_was_interrupted_within_episodes_ends_with_the_same_weights(module, tmp_path):
    args = module.Args(**SHORT)
    train_here(module, tmp_path / "whole", args)
    train_here(module, tmp_path / "parts", args, commands=[None, None, Command.STOP])
    checkpoint = tmp_path / "parts" / "checkpoints" / "step-40"  # each environment is at step 10: 2 into an episode
    run, _ = train_here(module, tmp_path / "parts", args, resume=checkpoint)
    loaded = next(message for kind, message in run._channel.messages if kind == "checkpoint_loaded")
    assert loaded["environments"] == "exact"
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
    assert charts(tmp_path / "parts") == charts(tmp_path / "whole")


@both
def test_a_game_of_pong_continues_where_it_was(module, tmp_path, atari):
    algo = module.Args.exp_name
    args = module.Args(
        **{**SHORT, "env_id": "PongNoFrameskip-v4", "num_envs": 2, "num_steps": 8, "total_timesteps": 48}
    )
    train_here(module, tmp_path / "whole", args, algo=algo)
    train_here(module, tmp_path / "parts", args, algo=algo, commands=[None, None, Command.STOP])
    train_here(module, tmp_path / "parts", args, algo=algo, resume=tmp_path / "parts" / "checkpoints" / "step-32")
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
    assert charts(tmp_path / "parts") == charts(tmp_path / "whole")


@both
def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(module, tmp_path):
    args = module.Args(**{**SHORT, "update_epochs": 4}, learning_rate=1e38, max_grad_norm=1e38, checkpoint_freq=1)
    with pytest.raises(TrainingStopped, match="not finite at step 20: lower --learning-rate"):
        train_here(module, tmp_path, args)
    assert not (tmp_path / "checkpoints").exists()


# -- files and bad input


TRUNK = {
    "network.0.weight": (32, 1, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (512, 3136),
    "network.7.bias": (512,),
}
NORMALIZED_TRUNK = {
    "network.0.weight": (32, 1, 8, 8),
    "network.0.bias": (32,),
    "network.1.weight": (32, 20, 20),
    "network.1.bias": (32, 20, 20),
    "network.3.weight": (64, 32, 4, 4),
    "network.3.bias": (64,),
    "network.4.weight": (64, 9, 9),
    "network.4.bias": (64, 9, 9),
    "network.6.weight": (64, 64, 3, 3),
    "network.6.bias": (64,),
    "network.7.weight": (64, 7, 7),
    "network.7.bias": (64, 7, 7),
    "network.10.weight": (512, 3136),
    "network.10.bias": (512,),
    "network.11.weight": (512,),
    "network.11.bias": (512,),
}
LSTM = {
    "lstm.weight_ih_l0": (512, 512),
    "lstm.weight_hh_l0": (512, 128),
    "lstm.bias_ih_l0": (512,),
    "lstm.bias_hh_l0": (512,),
}
HEADS = {"actor.weight": (6, 128), "actor.bias": (6,), "critic.weight": (1, 128), "critic.bias": (1,)}


@pytest.mark.parametrize(
    ("make_network", "names"),
    [
        (lambda: ppo_atari_lstm.Agent(1, 6), {**TRUNK, **LSTM, **HEADS}),
        (lambda: pqn_lstm.QNetwork(1, 6), {**NORMALIZED_TRUNK, **LSTM, "q_func.weight": (6, 128), "q_func.bias": (6,)}),
    ],
    ids=["ppo", "pqn"],
)
def test_parameters_have_upstream_s_names_and_shapes(make_network, names):
    assert {name: tuple(tensor.shape) for name, tensor in make_network().state_dict().items()} == names


@both
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        (
            {"num_envs": 6, "num_minibatches": 4},
            "--num-minibatches 4 does not divide --num-envs 6: a recurrent network",
        ),
        ({"env_id": "CartPole-v1", "env_backend": "sync"}, "needs images of 84 x 84 as observations"),
        ({"env_id": "Pendulum-v1", "env_backend": "sync"}, "needs discrete actions; Pendulum-v1 has Box actions"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(module, tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        train_here(module, tmp_path, module.Args(**flags))


def test_other_spaces_are_refused_as_a_policy():
    vector = gym.spaces.Box(0, 1, (4,), dtype=np.float32)
    with pytest.raises(BadInput, match="images of 84 x 84"):
        pqn_lstm.make_policy("X-v0", vector, gym.spaces.Discrete(2), {})
