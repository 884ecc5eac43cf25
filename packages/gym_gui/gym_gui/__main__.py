"""`python -m gym_gui` opens the window; `python -m gym_gui COMMAND …` is `mosaic COMMAND …`.

Options alone (`--connect`, `--home`, `--theme`, …) belong to the window; `--help` and `--version` to the command.
"""

from __future__ import annotations

import sys

from gym_gui.cli import main

_WITH_VALUE = ("--home", "--connect", "--token-file", "--tls-ca", "--theme")


def arguments_for_mosaic(arguments: list[str]) -> list[str]:
    """What `mosaic` is to be called with: as given when there is a command in it, else with `gui` in front."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if not word.startswith("-") or word in ("-h", "--help", "--version"):
            return arguments
        position += 2 if word in _WITH_VALUE else 1
    return ["gui", *arguments]


if __name__ == "__main__":
    main(arguments_for_mosaic(sys.argv[1:]))
