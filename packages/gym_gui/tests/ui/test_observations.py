"""What a step looks like: picture, grid, values or text."""

from __future__ import annotations

import numpy as np
import pytest
from gym_gui.ui.replay.observations import preview_of, preview_of_step, short
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import encode


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((84, 84), (84, 84, 3)),
        ((84, 84, 1), (84, 84, 3)),
        ((210, 160, 3), (210, 160, 3)),
        ((3, 96, 96), (96, 96, 3)),
        ((1, 84, 84), (84, 84, 3)),
        ((4, 84, 84), (84, 336, 3)),  # a stack, side by side
    ],
)
def test_large_arrays_are_images(shape: tuple[int, ...], shown: tuple[int, ...]) -> None:
    look = preview_of(np.zeros(shape, np.uint8))
    assert look.image is not None
    assert look.image.shape == shown
    assert look.image.dtype == np.uint8


def test_numbers_between_0_and_1_become_colors() -> None:
    look = preview_of(np.linspace(0, 1, 32 * 32 * 3, dtype=np.float32).reshape(32, 32, 3))
    assert look.image is not None
    assert (look.image.min(), look.image.max()) == (0, 255)


def test_a_small_board_is_a_grid() -> None:
    assert preview_of(np.array([[1, 2], [3, 4]])).grid == (("1", "2"), ("3", "4"))
    cells = preview_of(np.zeros((7, 7, 3), np.uint8)).grid  # MiniGrid: kind, color and state of each cell
    assert len(cells) == 7
    assert cells[0][0] == "0,0,0"


def test_a_vector_is_values() -> None:
    assert preview_of(np.array([0.5, -1.0])).values == (("0", "0.5"), ("1", "-1"))
    assert preview_of([1.5, 2]).values == (("0", "1.5"), ("1", "2"))
    assert preview_of(7).values == (("value", "7"),)


def test_a_long_vector_is_cut_and_reports_it() -> None:
    look = preview_of(np.zeros(5_000))
    assert len(look.values) == 400
    assert "400" in look.note


def test_a_dictionary_shows_its_image_and_the_rest_beside() -> None:
    look = preview_of({"mission": "go", "image": np.zeros((32, 32, 3), np.uint8).tolist(), "at": {"x": 1}})
    assert look.image is not None
    assert look.values == (("mission", "go"), ("at.x", "1"))
    assert look.note.startswith("image")


def test_text_is_text() -> None:
    assert preview_of("You are in a forest.").text == "You are in a forest."


def test_strange_values_are_shown_all_the_same() -> None:
    assert preview_of(np.zeros((2, 3, 4, 5))).text.startswith("array of 2×3×4×5")
    assert preview_of(np.array([])).values == ()
    assert preview_of(None).values == ()
    assert short(np.arange(100)) == "array 100 of int64"
    assert short([float("nan")]) == "[nan]"


def test_a_step() -> None:
    step = pb.RunStep(
        observation=encode(np.zeros((64, 64, 3), np.uint8)), action=encode(3), info_json='{"lives": 2, "a": {"b": "c"}}'
    )
    look = preview_of_step(step)
    assert look.observation.image is not None
    assert look.action == "3"
    assert look.info == (("lives", "2"), ("a.b", "c"))
    assert not look.problem


def test_a_damaged_step_reports_it() -> None:
    step = pb.RunStep(
        observation=pb.Payload(encoding="npy+gzip", data=b"\x1f\x8brubbish"),
        action=pb.Payload(encoding="secret", data=b"1"),
        info_json="{",
    )
    look = preview_of_step(step)
    for part in ("observation", "action", "info"):
        assert f"the {part} cannot be read" in look.problem
