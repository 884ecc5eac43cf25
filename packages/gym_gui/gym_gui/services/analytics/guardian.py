"""Runs a program that must not outlive its owner; a script of its own, not imported.

    python -I guardian.py PROGRAM [ARGUMENT …]        with a pipe as standard input

The owner keeps the other end of the pipe. When it closes, because the owner is done or was killed with -9, the program
and everything it started is ended. A guardian that is killed itself takes the program along (Linux).
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

_GRACE_S = 3.0
_LOOK_EVERY_S = 0.5
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run the program until it ends or the owner's pipe closes; return its exit code."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's: it closes the pipe
    own_pid = os.getpid()
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: _die_with(own_pid)
        )
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started: {error.strerror or error}\n")
        return 127
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], _LOOK_EVERY_S)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
    finally:
        _end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def _die_with(guardian: int) -> None:
    """In the child before exec: let the kernel kill it when the guardian dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # killed in between
            os._exit(1)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate the program and its children, then kill them."""
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        if number is signal.SIGTERM and _has_group_ended(child.pid):
            return


def _has_group_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
