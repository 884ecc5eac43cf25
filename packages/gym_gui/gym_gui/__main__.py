"""`python -m gym_gui` opens the window; `python -m gym_gui COMMAND …` is `mosaic COMMAND …`.

Options alone (`--connect`, `--home`, `--theme`, …) belong to the window; `--help` and `--version` to the command.
"""

from __future__ import annotations

import sys

from gym_gui.cli import main

_WITH_VALUE = ("--home", "--connect", "--token-file", "--tls-ca", "--theme")


def arguments_for_mosaic(arguments: list[str]) -> list[str]:
    """Return the arguments for `mosaic`; `gui` is the default command."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if not argument.startswith("-") or argument in ("-h", "--help", "--version"):
            return arguments
        position += 2 if argument in _WITH_VALUE else 1
    return ["gui", *arguments]


if __name__ == "__main__":
    main(arguments_for_mosaic(sys.argv[1:]))
