"""Checkpoints around a learner: written while it trains, which of them stay, and that a resumed run is the same run."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training import checkpointing
from cleanrl_worker.training.channel import Command, PipeChannel
from cleanrl_worker.training.run import RunContext, Stop
from cleanrl_worker.training.standalone import stopped_by_signals
from mosaic_wire.checkpoints import good_checkpoints, last_good_checkpoint, read_checkpoint
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder
from mosaic_wire.testing import wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PROGRAM = Path(__file__).with_name("worlds") / "toy_learner.py"


class Listener:
    """A channel that records its messages, and writes a manifest on request, as the worker does."""

    def __init__(self, folder: Path, *, keeps_manifest: bool = False, commands: Mapping[int, Command] | None = None):
        self.folder, self.heard = RunFolder(folder), []
        self.commands = dict(commands or {})
        self.keeps_manifest = keeps_manifest
        self._polls = 0
        self._lock = threading.Lock()

    def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
        with self._lock:
            self.heard.append((kind, dict(message)))
            if self.keeps_manifest and kind in ("checkpoint_saved", "checkpoint_removed"):
                self._write_manifest()

    def _write_manifest(self) -> None:
        listed = {}
        for kind, facts in self.heard:
            if kind == "checkpoint_saved":
                listed[facts["path"]] = CheckpointEntry(
                    facts["path"], facts["step"], facts["sha256"], facts["checkpoint_kind"]
                )
            elif kind == "checkpoint_removed":
                listed.pop(facts["path"], None)
        AnalyticsManifest("01M7F8P2TF767091SW55X7DC97", checkpoints=tuple(listed.values())).write(self.folder.manifest)

    def poll(self, timeout_s: float = 0) -> list[Command]:
        self._polls += 1
        command = self.commands.get(self._polls)
        return [command] if command is not None else []

    def messages(self, kind: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.heard if name == kind]


class Trained:
    """A run of the toy learner in this process."""

    def __init__(self, folder: Path, resume: Path | None = None, channel: Listener | None = None, **flags: Any) -> None:
        from toy_learner import ToyArgs, train

        folder.mkdir(exist_ok=True)
        self.folder, self.channel = RunFolder(folder), channel or Listener(folder)
        self.run = RunContext("toy", folder, self.channel, resume=resume)
        with stopped_by_signals(self.run):
            self.evaluation = train(ToyArgs(**flags), self.run)
            self.run.end({})
        self.weights = np.load(folder / "weights.npy")

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in self.folder.checkpoints.glob("step-*"))

    def path(self, step: int) -> Path:
        return self.folder.checkpoints / f"step-{step}"


def scalars(*folders: Path, leave_out: str = "/SPS") -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of these attempts of one run.

    In the order of time: it takes the tenth file that a process makes in one second for older than the ninth.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    reader = EventAccumulator(str(folders[0] / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    for tag in reader.Tags()["scalars"]:
        if not tag.endswith(leave_out):
            events = sorted(reader.Scalars(tag), key=lambda event: event.wall_time)
            found[tag] = [(event.step, event.value) for event in events]
    return found


def segments(folder: RunFolder) -> set[str]:
    return {path.name for path in (folder.checkpoints / "replay").iterdir()}


def referred(*checkpoints: Path) -> set[str]:
    return {file["sha256"] for path in checkpoints for file in read_checkpoint(path).get("shared", [])}


# ---------------------------------------------------------------------- the same run, with or without an interruption


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_resumed_run_is_the_same_run_with_its_replay_buffer(tmp_path: Path, storage: str) -> None:
    whole = Trained(tmp_path / "whole", total_timesteps=1500, replay_storage=storage, checkpoint_freq=200)
    half = Trained(tmp_path / "half", total_timesteps=750, replay_storage=storage, checkpoint_freq=200)
    (tmp_path / "half" / "weights.npy").unlink()
    again = Trained(
        tmp_path / "half", half.path(750), total_timesteps=1500, replay_storage=storage, checkpoint_freq=200
    )
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert scalars(tmp_path / "half") == scalars(tmp_path / "whole")
    assert again.channel.messages("checkpoint_loaded")[0]["environments"] == "exact"
    assert "replay" not in again.channel.messages("checkpoint_loaded")[0]


def test_saving_and_evaluating_change_nothing(tmp_path: Path) -> None:
    plain = Trained(tmp_path / "plain", total_timesteps=1500)
    saved = Trained(tmp_path / "saved", total_timesteps=1500, checkpoint_freq=50)
    judged = Trained(tmp_path / "judged", total_timesteps=1500, eval_freq=150, eval_episodes=3)
    sampled = Trained(
        tmp_path / "sampled", total_timesteps=1500, eval_freq=150, eval_episodes=3, eval_deterministic=False
    )
    for other in (saved, judged, sampled):
        np.testing.assert_array_equal(other.weights, plain.weights)
        shown = {tag: points for tag, points in scalars(other.folder.root).items() if not tag.startswith("eval/")}
        assert shown == scalars(plain.folder.root)
    assert scalars(sampled.folder.root)["eval/episodic_return"] != scalars(judged.folder.root)["eval/episodic_return"]


def test_evaluation_leaves_every_random_stream_as_it_was() -> None:
    from cleanrl_worker.training.evaluation import preserved_generators

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(1))

    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = draw()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    with preserved_generators():
        draw()
    assert draw() == expected


def test_without_its_replay_buffer_a_run_reports_it_and_fills_a_new_one(tmp_path: Path) -> None:
    half = Trained(tmp_path / "run", total_timesteps=500, checkpoint_replay="none")
    assert not (half.folder.checkpoints / "replay").exists()
    assert "shared" not in read_checkpoint(half.path(500))
    again = Trained(tmp_path / "run", half.path(500), total_timesteps=700, checkpoint_replay="none")
    reported = again.channel.messages("checkpoint_loaded")[0]
    assert reported["replay"].startswith("empty: the checkpoint was written without it")
    charted = dict(scalars(tmp_path / "run")["charts/replay_size"])
    assert (charted[500], charted[550]) == (300, 50)
    moved = dict(scalars(tmp_path / "run")["weights"])
    assert moved[600] == moved[500] != moved[700]  # a hundred steps are collected before it learns again


def test_another_run_continues_from_a_checkpoint_and_has_everything_itself(tmp_path: Path) -> None:
    parent = Trained(tmp_path / "parent", total_timesteps=400, eval_freq=200, eval_episodes=2)
    assert parent.run.evaluation is not None
    child = Trained(tmp_path / "child", parent.path(400), total_timesteps=800, checkpoint_freq=200)
    shutil.rmtree(tmp_path / "parent")
    assert child.steps == [600, 800]
    assert all(last_good_checkpoint(child.folder) is not None for _ in (1, 2))
    grandchild = Trained(tmp_path / "grandchild", child.path(800), total_timesteps=1000)
    whole = Trained(tmp_path / "whole", total_timesteps=1000)
    np.testing.assert_array_equal(grandchild.weights, whole.weights)


# ---------------------------------------------------------------------- which of them stay


@pytest.mark.parametrize("keeps_manifest", [False, True])
def test_the_last_few_stay_and_the_segments_they_need(tmp_path: Path, keeps_manifest: bool) -> None:
    channel = Listener(tmp_path / "run", keeps_manifest=keeps_manifest)
    run = Trained(tmp_path / "run", channel=channel, total_timesteps=1050, checkpoint_freq=100, keep_checkpoints=2)
    assert run.steps == [900, 1000, 1050]
    assert [facts["checkpoint_kind"] for facts in channel.messages("checkpoint_saved")] == ["periodic"] * 10 + ["last"]
    assert [facts["step"] for facts in channel.messages("checkpoint_removed")] == list(range(100, 900, 100))
    assert segments(run.folder) == referred(*map(run.path, run.steps))
    assert [entry.step for entry in good_checkpoints(run.folder)] == [1050, 1000, 900]
    assert [path.name for path in run.folder.checkpoints.iterdir() if path.name.startswith(".")] == []
    for step in run.steps:
        Trained(tmp_path / f"from-{step}", run.path(step), total_timesteps=1100)


def test_nothing_is_removed_while_the_manifest_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_PATIENCE_S", 0.05)
    folder = RunFolder(tmp_path / "run")

    class Slow(Listener):
        """A worker that is stopped, and wakes up towards the end."""

        def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
            self.keeps_manifest = message.get("step", 0) >= 600
            super().send(kind, message, must_arrive=must_arrive)
            for entry in AnalyticsManifest.read(folder.manifest).checkpoints if folder.manifest.exists() else ():
                assert (folder.root / entry.path).is_dir(), f"{entry.path} is listed and gone"

    folder.root.mkdir()
    early = [CheckpointEntry(f"checkpoints/step-{step}", step, "0" * 64) for step in (100, 200, 300)]
    for entry in early:
        (folder.root / entry.path).mkdir(parents=True)
    AnalyticsManifest("01M7F8P2TF767091SW55X7DC97", checkpoints=tuple(early)).write(folder.manifest)
    run = Trained(folder.root, channel=Slow(folder.root), total_timesteps=700, checkpoint_freq=100, keep_checkpoints=1)
    assert run.steps == [600, 700]


def test_what_a_killed_attempt_left_too_many_is_removed_by_the_next(tmp_path: Path) -> None:
    first = Trained(tmp_path / "run", total_timesteps=500, checkpoint_freq=100, keep_checkpoints=5)
    assert first.steps == [100, 200, 300, 400, 500]
    (first.folder.checkpoints / ".step-600.abc.tmp").mkdir()
    (first.folder.checkpoints / "replay" / ".abc.tmp").write_bytes(b"x")
    again = Trained(tmp_path / "run", first.path(500), total_timesteps=600, checkpoint_freq=100, keep_checkpoints=2)
    assert again.steps == [400, 500, 600]
    assert segments(again.folder) == referred(*map(again.path, again.steps))
    assert not (first.folder.checkpoints / ".step-600.abc.tmp").exists()


def test_a_damaged_later_one_is_named_when_an_earlier_is_used_and_goes_when_training_has_passed_it(
    tmp_path: Path,
) -> None:
    first = Trained(tmp_path / "run", total_timesteps=400, checkpoint_freq=100, keep_checkpoints=9)
    state = first.path(400) / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    newest = last_good_checkpoint(first.folder)
    assert newest is not None
    assert newest.step == 300
    again = Trained(
        tmp_path / "run", tmp_path / "run" / newest.path, total_timesteps=500, checkpoint_freq=250, keep_checkpoints=9
    )
    (reported,) = again.channel.messages("checkpoint_loaded")
    assert reported["step"] == 300
    (passed_over,) = reported["passed_over"]
    assert passed_over.startswith("checkpoints/step-400: ")
    assert "SHA-256 differs" in passed_over
    assert again.steps == [100, 200, 300, 500]
    whole = Trained(tmp_path / "whole", total_timesteps=500)
    np.testing.assert_array_equal(again.weights, whole.weights)


# ---------------------------------------------------------------------- the best


def manifest_best(channel: Listener) -> dict[str, Any]:
    return channel.messages("best")[-1]


def test_the_best_by_evaluation_stays_whatever_comes_after(tmp_path: Path) -> None:
    run = Trained(
        tmp_path / "run", total_timesteps=3000, eval_freq=200, eval_episodes=4, checkpoint_freq=300, keep_checkpoints=1
    )
    judged = scalars(run.folder.root)["eval/episodic_return"]
    assert [step for step, _ in judged] == list(range(200, 3001, 200))
    step, score = max(judged, key=lambda point: (point[1], -point[0]))
    best = manifest_best(run.channel)
    assert (best["path"], best["step"], best["by"]) == (f"checkpoints/step-{step}", step, "evaluation")
    assert best["score"] == pytest.approx(score)
    assert run.steps == sorted({step, 2700, 3000})
    # Saved only when it became the best, and only then.
    rises = [judged[0]] + [
        later for index, later in enumerate(judged[1:], 1) if later[1] > max(value for _, value in judged[:index])
    ]
    reported = [
        facts["step"] for facts in run.channel.messages("checkpoint_saved") if facts["checkpoint_kind"] == "best"
    ]
    assert reported == [step for step, _ in rises]
    weights = torch.load(run.folder.root / "best.cleanrl_model", weights_only=True)["weights"].numpy()
    from safetensors.numpy import load_file

    np.testing.assert_array_equal(weights, load_file(run.path(step) / "state.safetensors")["agent.weights"])


def test_the_best_by_training_return_needs_a_hundred_episodes(tmp_path: Path) -> None:
    run = Trained(
        tmp_path / "run", total_timesteps=8000, checkpoint_freq=500, keep_checkpoints=2, learning_starts=10_000
    )
    returns = scalars(run.folder.root)["charts/episodic_return"]
    full = [step for step, _ in returns][99]
    kinds = {facts["step"]: facts["checkpoint_kind"] for facts in run.channel.messages("checkpoint_saved")}
    assert all(kind == "periodic" for step, kind in kinds.items() if step < full)
    assert "best" in kinds.values()
    best = manifest_best(run.channel)
    assert best["by"] == "training"
    means = {
        step: float(np.mean([value for at, value in returns if at <= step][-100:])) for step in kinds if step >= full
    }
    assert best["score"] == pytest.approx(max(means.values()))
    assert best["step"] in run.steps
    assert len(run.steps) <= 4


def test_a_resumed_run_knows_its_best(tmp_path: Path) -> None:
    flags = {"eval_freq": 200, "eval_episodes": 4}
    whole = Trained(tmp_path / "whole", total_timesteps=3000, **flags)
    half = Trained(tmp_path / "half", total_timesteps=1500, **flags)
    again = Trained(tmp_path / "half", half.path(1500), total_timesteps=3000, **flags)
    assert scalars(tmp_path / "half") == scalars(tmp_path / "whole")
    expected = manifest_best(whole.channel)
    found = again.channel.messages("best") or half.channel.messages("best")
    assert found[-1] == expected
    assert expected["step"] in again.steps


def test_the_evaluation_at_the_end_is_not_played_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cleanrl_worker.training import evaluation

    played = []
    real = evaluation.play_episodes
    monkeypatch.setattr(evaluation, "play_episodes", lambda *a, **k: (played.append(1), real(*a, **k))[1])
    run = Trained(tmp_path / "a", total_timesteps=400, eval_freq=200, eval_episodes=2)
    assert (len(played), run.evaluation) == (2, run.run.evaluation)
    run = Trained(tmp_path / "b", total_timesteps=500, eval_freq=200, eval_episodes=2)
    assert len(played) == 2 + 3
    assert run.evaluation is not None


def test_a_stop_in_an_evaluation_is_obeyed_and_a_resumed_run_makes_up_for_it(tmp_path: Path) -> None:
    flags = {"total_timesteps": 800, "eval_freq": 400, "eval_episodes": 3}
    whole = Trained(tmp_path / "whole", **flags)
    # Safe points before the first evaluation: at steps 0 to 350; the next look is the evaluation's own.
    channel = Listener(tmp_path / "run", commands={9: Command.STOP})
    stopped = Trained(tmp_path / "run", channel=channel, **flags)
    assert stopped.run.stopped is Stop.CANCELLED
    assert stopped.evaluation is None
    assert stopped.steps == [400]
    assert "eval/episodic_return" not in scalars(tmp_path / "run")
    again = Trained(tmp_path / "run", stopped.path(400), **flags)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert scalars(tmp_path / "run") == scalars(tmp_path / "whole")


def test_a_pause_in_an_evaluation_saves_first(tmp_path: Path) -> None:
    flags = {"total_timesteps": 800, "eval_freq": 400, "eval_episodes": 3}
    channel = Listener(tmp_path / "run", commands={9: Command.PAUSE, 10: Command.RESUME})
    run = Trained(tmp_path / "run", channel=channel, **flags)
    kinds = [kind for kind, _ in channel.heard if kind in ("checkpoint_saved", "paused", "resumed", "best")]
    # What was saved before the pause turns out to be the best afterwards; it is not written again.
    assert kinds[:5] == ["checkpoint_saved", "paused", "resumed", "best", "checkpoint_saved"]
    assert run.steps == [400, 800]
    whole = Trained(tmp_path / "whole", **flags)
    np.testing.assert_array_equal(run.weights, whole.weights)


# ---------------------------------------------------------------------- off the hot path


class Held:
    """Lets the writing thread come as far as its first fsync, and no further until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.error: OSError | None = None
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                self.reached.set()
                assert self.go_on.wait(60)
                if self.error is not None:
                    raise self.error
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


def context(folder: Path, channel: Listener | None = None) -> RunContext:
    folder.mkdir()
    return RunContext("toy", folder, channel or Listener(folder))


def learner_in(run: RunContext, **flags: Any) -> Any:
    from toy_learner import ToyArgs, ToyLearner

    args = ToyArgs(**flags)
    learner = ToyLearner(args, run.make_envs(args), run.folder.root)
    learner.begin_episodes()
    run.begin(0, args.total_timesteps, args)
    return learner


def test_training_continues_while_a_checkpoint_is_written_and_it_holds_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = context(tmp_path / "run")
    learner, held = learner_in(run), Held(monkeypatch)
    learner.learn(run)
    moment = learner.weights.copy()
    for _ in range(4):
        learner.learn(run)
    then = learner.weights.copy()
    run.save_if_due(250, 100, learner.snapshot)
    assert held.reached.wait(60)
    for _ in range(3):  # does not wait, and does not touch what is being written
        learner.learn(run)
        assert not run.should_stop(learner.step, learner.snapshot)
    assert run._channel.messages("checkpoint_saved") == []
    held.go_on.set()
    run.finish_saving()
    assert [facts["step"] for facts in run._channel.messages("checkpoint_saved")] == [250]
    from safetensors.numpy import load_file

    saved = load_file(run.folder.checkpoints / "step-250" / "state.safetensors")["agent.weights"]
    np.testing.assert_array_equal(saved, then)
    assert not np.array_equal(saved, moment)
    assert not np.array_equal(saved, learner.weights)
    run.writer.close()
    learner.envs.close()


def test_the_last_one_and_a_pause_wait_until_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = context(tmp_path / "run", Listener(tmp_path / "run", commands={1: Command.PAUSE, 2: Command.RESUME}))
    learner, held = learner_in(run), Held(monkeypatch)
    learner.learn(run)
    stopped: list[bool] = []
    training = threading.Thread(target=lambda: stopped.append(run.should_stop(learner.step, learner.snapshot)))
    training.start()
    assert held.reached.wait(60)
    assert run._channel.messages("paused") == []
    held.go_on.set()
    training.join(60)
    assert stopped == [False]
    order = [kind for kind, _ in run._channel.heard if kind != "progress"]
    assert order == ["parameters", "checkpoint_saved", "paused", "resumed"]
    run.writer.close()
    learner.envs.close()


def test_a_checkpoint_that_cannot_be_written_ends_training_at_the_next_safe_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = context(tmp_path / "run")
    learner, held = learner_in(run), Held(monkeypatch)
    for _ in range(8):
        learner.learn(run)
    held.go_on.set()
    run.save_if_due(400, 100, learner.snapshot)
    run.finish_saving()
    good = segments(run.folder)
    held.reached.clear()
    held.error = OSError(errno.ENOSPC, "No space left on device")
    learner.learn(run)
    run.save_if_due(450, 50, learner.snapshot)
    assert held.reached.wait(60)
    assert wait_until(lambda: run._checkpoints._writing.done())
    with pytest.raises(TrainingStopped, match=r"no checkpoint could be written to .* at step 450: No space left"):
        run.should_stop(450, learner.snapshot)
    assert segments(run.folder) == good  # half a checkpoint keeps no room
    assert [path.name for path in run.folder.checkpoints.glob("*step*")] == ["step-400"]
    for _ in range(20):
        learner.learn(run)  # and does not wait for it
    run.writer.close()
    learner.envs.close()


def test_what_is_being_written_when_training_breaks_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    threading.Timer(0.3, held.go_on.set).start()
    channel = Listener(tmp_path / "run")
    with pytest.raises(ZeroDivisionError, match="the test wants it so"):
        Trained(tmp_path / "run", channel=channel, total_timesteps=1000, checkpoint_freq=100, break_at=150)
    assert [facts["step"] for facts in channel.messages("checkpoint_saved")] == [100]
    assert last_good_checkpoint(RunFolder(tmp_path / "run")) is not None


def test_a_stopped_run_with_a_large_buffer_saves_the_rest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "SAVED_AT_ONCE_BYTES", 1000)
    kept: list[bool] = []

    class Looking(Listener):
        def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
            super().send(kind, message, must_arrive=must_arrive)
            if kind == "checkpoint_saved":
                assert last_good_checkpoint(self.folder) is not None
                kept.append("replay" in read_checkpoint(self.folder.root / message["path"]))

    channel = Looking(tmp_path / "run", commands={9: Command.STOP})
    stopped = Trained(tmp_path / "run", channel=channel, total_timesteps=800)
    assert (stopped.steps, kept) == ([400], [False, True])
    again = Trained(tmp_path / "run", stopped.path(400), total_timesteps=800)
    np.testing.assert_array_equal(again.weights, Trained(tmp_path / "whole", total_timesteps=800).weights)


def test_values_that_are_no_json_fail_the_run_and_not_the_thread_alone(tmp_path: Path) -> None:
    run = context(tmp_path / "run")
    learner = learner_in(run)
    learner.learn(run)
    learner.learns_from = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        run.save_last(50, learner.snapshot)
    run.writer.close()
    learner.envs.close()


def test_lines_of_two_threads_never_mix() -> None:
    control_read, control_write = os.pipe()
    read, write = os.pipe()
    channel = PipeChannel(control_read, write)
    lines: list[bytes] = []

    def listen() -> None:
        with os.fdopen(read, "rb") as stream:
            lines.extend(stream)

    listener = threading.Thread(target=listen)
    listener.start()
    talkers = [
        threading.Thread(target=lambda n=n: [channel.send("n", {"x": str(n) * 9000}) for _ in range(50)])
        for n in range(3)
    ]
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join()
    os.close(write)
    listener.join()
    os.close(control_read)
    os.close(control_write)
    assert len(lines) == 150
    assert {len(set(json.loads(line)["x"])) for line in lines} == {1}


# ---------------------------------------------------------------------- damage


def bad_resume(path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        Trained(path.parent.parent, path, total_timesteps=600, buffer_size=5000)
    return str(refused.value)


def test_a_checkpoint_with_a_damaged_segment_is_passed_over_and_refused(tmp_path: Path) -> None:
    run = Trained(tmp_path / "run", total_timesteps=500, checkpoint_freq=200, buffer_size=5000)
    only_newest = referred(run.path(500)) - referred(run.path(400))
    assert only_newest
    file = run.folder.checkpoints / "replay" / sorted(only_newest)[0]
    data = file.read_bytes()
    for content in (data[:-1], data + b"x", data[:10] + bytes([data[10] ^ 4]) + data[11:], None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        newest = last_good_checkpoint(run.folder)
        assert newest is not None
        assert newest.step == 400
        assert file.name in bad_resume(run.path(500))
    file.write_bytes(data)
    assert last_good_checkpoint(run.folder).step == 500  # type: ignore[union-attr]
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    assert last_good_checkpoint(run.folder).step == 400  # type: ignore[union-attr]
    assert "outside the folder" in bad_resume(run.path(500))


# ---------------------------------------------------------------------- kill -9


def killed_until_done(folder: Path, rng: random.Random, *, rounds: int, **flags: Any) -> int:
    """Train in processes that are killed at random moments; return how many were."""
    processes = multiprocessing.get_context("fork")  # nothing is imported again, so a round takes no time
    kills = 0
    while True:
        newest = last_good_checkpoint(RunFolder(folder))
        if newest is None:
            assert not list(folder.glob("checkpoints/step-*")), "there are checkpoints, and none is good"
        resume = folder / newest.path if newest is not None else None
        process = processes.Process(target=Trained, args=(folder, resume), kwargs=flags)
        then = _names(folder)
        process.start()
        try:
            if kills < rounds:
                # The moment that hurts is while something is written: wait for a sign of it, then a little longer.
                while _names(folder) == then and process.is_alive():
                    time.sleep(0.001)
                time.sleep(rng.random() * 0.06)
                process.kill()
            process.join(120)
        finally:
            process.kill()
            process.join()
        if process.exitcode == 0:
            return kills
        assert process.exitcode == -signal.SIGKILL
        kills += 1


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder / "checkpoints")) if (folder / "checkpoints").exists() else set()


@pytest.mark.expects_log("tensorboard: Detected out of order event.step")
@pytest.mark.parametrize(
    "rounds", [pytest.param(6, id="few"), pytest.param(150, id="many", marks=[pytest.mark.fault, pytest.mark.slow])]
)
def test_a_run_killed_again_and_again_ends_with_the_same_weights_and_charts(tmp_path: Path, rounds: int) -> None:
    flags = {
        "total_timesteps": 130 * rounds,
        "checkpoint_freq": 50,
        "keep_checkpoints": 2,
        "buffer_size": 3000,
        "eval_freq": 500,
        "eval_episodes": 2,
    }
    whole = Trained(tmp_path / "whole", **flags)
    killed = RunFolder(tmp_path / "killed")
    killed.root.mkdir()
    kills = killed_until_done(killed.root, random.Random(rounds), rounds=rounds, step_s=0.0004, **flags)
    assert kills > rounds / 4
    assert (killed.root / "weights.npy").read_bytes() == (whole.folder.root / "weights.npy").read_bytes()
    assert scalars(killed.root) == scalars(whole.folder.root)
    steps = [int(path.name[5:]) for path in killed.checkpoints.glob("step-*")]
    assert len(steps) <= 4
    assert sorted(entry.step for entry in good_checkpoints(killed)) == sorted(steps)
    assert segments(killed) == referred(*(killed.checkpoints / f"step-{step}" for step in steps))


@pytest.mark.expects_log("tensorboard: Detected out of order event.step")
def test_a_fresh_process_continues_from_what_a_killed_one_left(tmp_path: Path) -> None:
    flags = ["--total-timesteps", "1000", "--checkpoint-freq", "300", "--buffer-size", "400", "--step-s", "0.001"]
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    command = [sys.executable, str(PROGRAM), str(folder.root)]
    with subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: (folder.checkpoints / "step-600").exists(), timeout_s=120)
        finally:
            process.kill()
    newest = last_good_checkpoint(folder)
    assert newest is not None
    subprocess.run([*command, str(folder.root / newest.path), *flags], stdout=subprocess.DEVNULL, check=True)
    whole = Trained(tmp_path / "whole", total_timesteps=1000, checkpoint_freq=300, buffer_size=400)
    np.testing.assert_array_equal(np.load(folder.root / "weights.npy"), whole.weights)
    assert scalars(folder.root) == scalars(whole.folder.root)
