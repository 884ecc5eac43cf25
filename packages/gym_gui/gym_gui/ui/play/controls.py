"""Keys, buttons and sliders of a player, and the action they amount to at a moment. No Qt."""

from __future__ import annotations

from typing import Any

from gym_gui.ui.play.actions import ActionSpace
from gym_gui.ui.play.key_maps import KeyMap


class Controls:
    """What is held down now. In turns a press is a step; in real time each tick asks for the action."""

    def __init__(self, space: ActionSpace | None = None, key_map: KeyMap | None = None) -> None:
        self.space = space or ActionSpace("")
        self.key_map = key_map or KeyMap()
        self.vector: list[float] = self.space.rest_vector()
        """Where the sliders stand"""
        self._held: list[str] = []
        self._button: Any = None
        self.last: Any = None
        """The action that was taken last"""

    def press(self, key: str) -> Any:
        """A key went down; the action it makes in turns, None when it means nothing."""
        if key not in self.key_map.bound_keys():
            return None
        if key not in self._held:
            self._held.append(key)
        return self._from_keys()

    def release(self, key: str) -> None:
        if key in self._held:
            self._held.remove(key)

    def hold_button(self, action: Any) -> None:
        """A button on the screen went down; None: up again."""
        self._button = action

    def release_all(self) -> None:
        """The player looks elsewhere."""
        self._held.clear()
        self._button = None

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(self._held)

    def current(self) -> Any:
        """The action of this moment in real time; None: no step."""
        if self._button is not None:
            return self._button
        if self._held:
            return self._from_keys()
        if self.space.components and not self.space.is_discrete:
            return self.space.as_action(self.vector)
        return self.key_map.idle_action(self.space, self.last)

    def chosen(self) -> Any:
        """The action of the Step button: what is held, where the sliders stand, or doing nothing."""
        found = self.current()
        if found is not None or not self.space.is_discrete:
            return found
        return self.space.idle if self.space.idle is not None else self.last

    def _from_keys(self) -> Any:
        if self.space.is_discrete:
            return self.key_map.action_for(self._held, self.space, self.last)
        vector = list(self.vector)
        is_bound = False
        for binding in self.key_map.bindings:
            if set(binding.keys) <= set(self._held) and binding.component is not None:
                vector[binding.component] = binding.value
                is_bound = True
        return self.space.as_action(vector) if is_bound else None
