"""Replay buffers: what comes out is what went in, in memory, on disk, as single pictures, and after a checkpoint."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training import replay
from cleanrl_worker.training.replay import (
    FrameReplay,
    ReplayBuffer,
    SavedReplay,
    SegmentStore,
    Transitions,
    draw_rows,
    make_replay,
    on_disk,
)

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
PICTURES = gym.spaces.Box(0, 255, (4, 9, 8), np.uint8)
CHOICE = gym.spaces.Discrete(5)
PUSH = gym.spaces.Box(-1, 1, (2,), np.float32)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


class Steps:
    """Endless made-up steps of several environments whose observations are stacks of pictures.

    Episodes begin with a stack that repeats its first picture, or, as some environments do, begins with black ones.
    """

    def __init__(self, num_envs: int, seed: int = 1, *, shape: tuple[int, ...] = PICTURES.shape) -> None:
        self.rng, self.num_envs, self.shape = rng(seed), num_envs, shape
        self.obs = np.stack([self._first() for _ in range(num_envs)])

    def _picture(self) -> np.ndarray:
        # Few values: equal pictures, and equal stacks in different episodes, must do no harm.
        return np.full(self.shape[1:], self.rng.integers(6), dtype=np.uint8)

    def _first(self) -> np.ndarray:
        stack = np.repeat(self._picture()[None], self.shape[0], axis=0)
        stack[: self.rng.integers(self.shape[0])] = 0
        return stack

    def take(self) -> tuple[np.ndarray, ...]:
        next_obs = np.concatenate([self.obs[:, 1:], np.stack([self._picture() for _ in self.obs])[:, None]], axis=1)
        over = self.rng.random(self.num_envs) < 0.2
        step = (
            self.obs,
            self.rng.integers(5, size=self.num_envs),
            self.rng.random(self.num_envs).astype(np.float32),
            next_obs,
            over & (self.rng.random(self.num_envs) < 0.5),
        )
        self.obs = next_obs.copy()
        for env in np.flatnonzero(over):
            self.obs[env] = self._first()
        return step


def assert_same(ours: Transitions, theirs: Transitions) -> None:
    for name, mine, other in zip(Transitions._fields, ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=name)
        assert mine.dtype == other.dtype


# ---------------------------------------------------------------------- what a buffer gives back


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_full_ring_holds_the_last_transitions_and_no_other(num_envs: int) -> None:
    buffer = ReplayBuffer(10, VECTOR, PUSH)
    added = []
    for number in range(8 * num_envs):
        step = [np.full((num_envs, *shape), number, np.float32) for shape in ((3,), (2,), (), (3,), ())]
        step[2] += np.arange(num_envs) / 10
        buffer.add(*step)
        added += step[2].tolist()
    assert len(buffer) == min(10, len(added))
    np.testing.assert_allclose(np.sort(buffer.take(np.arange(len(buffer))).rewards), np.sort(added)[-10:])


def test_rows_are_drawn_uniformly_and_always_exist() -> None:
    counts = np.bincount(draw_rows(rng(), 7, 70_000), minlength=7)
    assert len(counts) == 7
    assert np.abs(counts / 10_000 - 1).max() < 0.05


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize("capacity", [40, 203])
def test_frames_stored_once_come_out_exactly_as_from_a_plain_buffer(num_envs: int, capacity: int) -> None:
    plain = ReplayBuffer(capacity, PICTURES, CHOICE)
    frames = FrameReplay(capacity, PICTURES, CHOICE, num_envs=num_envs)
    steps = Steps(num_envs, seed=capacity)
    for _ in range(1000):
        step = steps.take()
        plain.add(*step)
        frames.add(*step)
        if len(plain) > 2:
            assert_same(frames.sample(rng(len(plain)), 4), plain.sample(rng(len(plain)), 4))
    assert len(frames) == len(plain) == capacity
    everything = np.arange(capacity)
    assert_same(frames.take(everything), plain.take(everything))


def test_frames_take_an_eighth_of_the_memory_and_no_more_as_time_continues() -> None:
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    frames = FrameReplay(300, space, CHOICE, num_envs=1)
    plain = ReplayBuffer(300, space, CHOICE)
    images = rng().integers(256, size=(104, 84, 84), dtype=np.uint8)
    sizes = []
    for _ in range(30):  # episodes of a hundred steps
        for t in range(100):
            frames.add(images[None, t : t + 4], np.ones(1), np.ones(1), images[None, t + 1 : t + 5], np.ones(1))
        sizes.append(frames.nbytes)
    assert max(sizes[10:]) == max(sizes[20:])
    assert plain.nbytes / max(sizes) > 5  # so small a buffer has a reel too many; a large one comes to 7


def test_steps_that_name_a_stack_twice_store_it_once() -> None:
    # n-step transitions: (o0, o3), (o1, o4), …
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    frames = FrameReplay(2000, space, CHOICE, num_envs=1)
    plain = ReplayBuffer(2000, space, CHOICE)
    images = rng().integers(256, size=(510, 84, 84), dtype=np.uint8)
    for t in range(500):
        step = (images[None, t : t + 4], np.ones(1), np.ones(1), images[None, t + 3 : t + 7], np.ones(1))
        frames.add(*step)
        plain.add(*step)
    assert_same(frames.take(np.arange(500)), plain.take(np.arange(500)))
    assert sum(len(segment.columns[0]) for segment in frames.segments() if "pictures" in segment.name) < 540


def test_which_observations_are_stored_as_single_frames() -> None:
    def chosen(space: gym.Space) -> type:
        args = SimpleNamespace(buffer_size=20, replay_storage="memory")
        return type(make_replay(args, SimpleNamespace(observation_space=space, action_space=CHOICE, num_envs=1)))

    assert chosen(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)) is FrameReplay
    for plain in (VECTOR, gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), gym.spaces.Box(0, 255, (7, 7, 3), np.uint8)):
        assert chosen(plain) is ReplayBuffer
    assert chosen(gym.spaces.Box(0, 1, (4, 84, 84), np.float32)) is ReplayBuffer


# ---------------------------------------------------------------------- on disk


@pytest.mark.parametrize("space", [VECTOR, PICTURES], ids=["vectors", "pictures"])
def test_a_buffer_on_disk_is_the_same_and_leaves_nothing(tmp_path: Path, space: gym.Space) -> None:
    envs = SimpleNamespace(observation_space=space, action_space=CHOICE, num_envs=2)
    sizes = {"buffer_size": 90}
    in_memory = make_replay(SimpleNamespace(**sizes, replay_storage="memory"), envs)
    mapped = make_replay(SimpleNamespace(**sizes, replay_storage="disk"), envs, folder=tmp_path)
    steps = Steps(2)
    for _ in range(200):
        obs, actions, rewards, next_obs, terminated = steps.take()
        if space is VECTOR:
            obs, next_obs = (x[:, 0, 0, :3].astype(np.float32) for x in (obs, next_obs))
        for buffer in (in_memory, mapped):
            buffer.add(obs, actions, rewards, next_obs, terminated)
    assert_same(mapped.sample(rng(), 64), in_memory.sample(rng(), 64))
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/.replay-" in maps  # it really lies there
    assert list(tmp_path.iterdir()) == []  # and goes with the process


def test_a_buffer_larger_than_the_disk_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match=r"does not fit on the disk of .* lower --buffer-size"):
        on_disk(tmp_path)((1 << 50,), np.dtype(np.uint8))


def test_a_buffer_larger_than_the_memory_is_reported_in_one_line() -> None:
    args = SimpleNamespace(buffer_size=1 << 55, replay_storage="memory")
    envs = SimpleNamespace(observation_space=VECTOR, action_space=CHOICE, num_envs=1)
    with pytest.raises(BadInput, match=r"--buffer-size 36028797018963968; lower it, or .* --replay-storage disk"):
        make_replay(args, envs)


# ---------------------------------------------------------------------- segments


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SEGMENT_BYTES", 4 * 600 * 12)
    monkeypatch.setattr(replay, "FRAME_SEGMENT_BYTES", 72 * 20)


def make(kind: str, num_envs: int = 2, capacity: int = 100) -> ReplayBuffer:
    if kind == "pictures":
        return FrameReplay(capacity, PICTURES, CHOICE, num_envs=num_envs)
    return ReplayBuffer(capacity, gym.spaces.Box(0, 255, PICTURES.shape, np.uint8), CHOICE)


def saved(store: SegmentStore, buffer: ReplayBuffer) -> SavedReplay:
    return store.write(buffer.facts(), buffer.segments())


def loaded(document: SavedReplay) -> SavedReplay:
    """As another process reads it."""
    files = [file for _, file in document.files.values()]
    return SavedReplay.from_json(document.folder, document.to_json(), files)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("kind", ["plain", "pictures"])
def test_a_restored_buffer_is_the_saved_one_and_continues_like_it(tmp_path: Path, kind: str) -> None:
    buffer, steps, store = make(kind), Steps(2), SegmentStore(tmp_path)
    for moment in range(25):  # empty at first; later in the middle of a segment, at its edge, around the ring's end
        again = make(kind)
        loaded(saved(store, buffer)).read_into(again)
        assert (len(again), again.position) == (len(buffer), buffer.position)
        following = Steps(2, seed=moment)
        for _ in range(moment + 1):
            for either in (buffer, again):
                assert_same(either.take(np.arange(len(either))), buffer.take(np.arange(len(buffer))))
            step = following.take()
            buffer.add(*step)
            again.add(*step)
        assert_same(again.take(np.arange(len(again))), buffer.take(np.arange(len(buffer))))
        for _ in range(moment % 5):
            buffer.add(*steps.take())


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("kind", ["plain", "pictures"])
def test_only_what_changed_is_written_and_names_are_hashes(tmp_path: Path, kind: str) -> None:
    buffer, steps, store = make(kind), Steps(2), SegmentStore(tmp_path)
    for _ in range(80):
        buffer.add(*steps.take())
    first = saved(store, buffer)
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()}
    assert len(files) >= 5
    for name in files:
        assert hashlib.sha256((tmp_path / "replay" / name).read_bytes()).hexdigest() == name
    assert saved(store, buffer).files == first.files
    buffer.add(*steps.take())
    second = saved(store, buffer)
    changed = {name for name in second.files if second.files[name] != first.files.get(name)}
    assert 1 <= len(changed) <= 3
    assert all((tmp_path / "replay" / name).stat().st_mtime_ns == time for name, time in files.items())
    # A store of a later attempt knows what it finds.
    later = SegmentStore(tmp_path)
    later.know(loaded(second))
    again = make(kind)
    loaded(second).read_into(again)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()}
    assert saved(later, again).files == second.files
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()} == before
    # Unreferenced files are removed; a removed one is written again when it is needed.
    later.remove_all_but(file.path for _, file in second.files.values())
    kept = {path.name for path in (tmp_path / "replay").iterdir()}
    assert kept == {file.sha256 for _, file in second.files.values()} < set(before)
    later.remove_all_but(())
    assert list((tmp_path / "replay").iterdir()) == []
    assert saved(later, again).files == second.files
    loaded(second).read_into(make(kind))


@pytest.mark.parametrize("kind", ["plain", "pictures"])
def test_a_buffer_that_takes_the_place_of_another_is_not_taken_for_it(tmp_path: Path, kind: str) -> None:
    store = SegmentStore(tmp_path)
    for seed in (1, 2):
        buffer, steps = make(kind), Steps(2, seed=seed)
        for _ in range(30):
            buffer.add(*steps.take())
        again = make(kind)
        loaded(saved(store, buffer)).read_into(again)
        assert_same(again.take(np.arange(60)), buffer.take(np.arange(60)))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("kind", ["plain", "pictures"])
def test_what_is_saved_is_the_moment_of_the_snapshot_whatever_comes_after(tmp_path: Path, kind: str) -> None:
    buffer, steps = make(kind), Steps(2)
    for _ in range(73):
        buffer.add(*steps.take())
    everything = buffer.take(np.arange(len(buffer)))
    facts, segments = buffer.facts(), buffer.segments()
    go_on = threading.Event()
    filled = []

    def train() -> None:
        for _ in range(200):  # twice around the ring
            filled.append(len(filled))
            buffer.add(*steps.take())
        go_on.set()

    training = threading.Thread(target=train)
    training.start()
    training.join(0.2)  # the plain one has come as far as it may by now, or will while it is being written
    document = SegmentStore(tmp_path).write(facts, segments)
    assert go_on.wait(60), f"the ring still waits, after {len(filled)} steps, for what is on disk already"
    training.join()
    again = make(kind)
    loaded(document).read_into(again)
    assert_same(again.take(np.arange(100)), everything)


@pytest.mark.usefixtures("small_segments")
def test_the_ring_waits_for_a_segment_that_is_being_saved_and_for_no_other() -> None:
    buffer, steps = make("plain"), Steps(2)
    for _ in range(70):
        buffer.add(*steps.take())  # 140 rows: full, and 40 rows into the second lap
    segments = buffer.segments()
    waiting = threading.Event()

    def train() -> None:
        for _ in range(40):
            buffer.add(*steps.take())
        waiting.set()

    training = threading.Thread(target=train, daemon=True)
    training.start()
    assert not waiting.wait(0.3)
    held = buffer.position
    for segment in segments:
        assert not waiting.is_set()
        segment.release()
    assert waiting.wait(60)
    assert held != buffer.position


def test_a_failed_write_blocks_no_caller_and_leaves_no_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SEGMENT_BYTES", 700)
    buffer, steps, store = make("plain"), Steps(2), SegmentStore(tmp_path)
    for _ in range(70):
        buffer.add(*steps.take())
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved(store, buffer)
    assert len(list((tmp_path / "replay").iterdir())) == 2
    for _ in range(200):
        buffer.add(*steps.take())  # would wait for ever


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "longer": data + b"x", "flipped": bytes([data[0] ^ 1]) + data[1:]}[how])


@pytest.mark.parametrize("how", ["missing", "cut", "longer", "flipped"])
@pytest.mark.parametrize("kind", ["plain", "pictures"])
def test_a_damaged_segment_is_reported_by_its_name(tmp_path: Path, kind: str, how: str) -> None:
    buffer, steps = make(kind), Steps(2)
    for _ in range(20):
        buffer.add(*steps.take())
    document = saved(SegmentStore(tmp_path), buffer)
    _, file = list(document.files.values())[-1]
    damage(tmp_path / file.path, how)
    with pytest.raises(BadInput, match=file.sha256):
        loaded(document).read_into(make(kind))


def test_a_buffer_of_another_size_is_refused(tmp_path: Path) -> None:
    buffer, steps = make("plain"), Steps(2)
    buffer.add(*steps.take())
    document = loaded(saved(SegmentStore(tmp_path), buffer))
    with pytest.raises(BadInput, match="room for 100 transitions and this run's for 50; give the same --buffer-size"):
        document.read_into(make("plain", capacity=50))
    with pytest.raises(BadInput, match="replay buffer holds"):
        document.read_into(ReplayBuffer(100, VECTOR, CHOICE))
    images = make("pictures")
    images.add(*steps.take())
    with pytest.raises(BadInput, match="filled by 2 environments, this run has 1; give the same --num-envs"):
        loaded(saved(SegmentStore(tmp_path), images)).read_into(make("pictures", num_envs=1))


def test_odd_words_about_a_buffer_are_damage_and_no_crash(tmp_path: Path) -> None:
    from mosaic_wire.errors import DamagedCheckpoint

    odd: list[Any] = [None, [], {}, {"facts": 1, "segments": []}, {"facts": {}, "segments": [["a", 1]]}, {"facts": {}}]
    for document in odd:
        with pytest.raises(DamagedCheckpoint, match="replay buffer"):
            SavedReplay.from_json(tmp_path, document, [])
