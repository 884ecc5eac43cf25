"""`python -m gym_gui` is `mosaic`."""

from __future__ import annotations

from gym_gui.cli import main

if __name__ == "__main__":
    main()
