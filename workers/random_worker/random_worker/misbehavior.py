"""Ways to go wrong on request, for the daemon's fault tests. A worker of your own has no such module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from mosaic_wire import env
from mosaic_wire.worker_spec import FieldSpec

FIELDS = (
    FieldSpec("never_register", "bool", False, "live on without registering or writing anything", group="faults"),
    FieldSpec("ignore_sigterm", "bool", False, "take no notice of SIGTERM", group="faults"),
    FieldSpec(
        "fork_and_exit", "bool", False, "leave a child behind in a session of its own and exit 0", group="faults"
    ),
    FieldSpec("spawn_children", "int", 0, "start this many children that sleep", minimum=0, group="faults"),
    FieldSpec("detach_children", "bool", False, "put the children into sessions of their own", group="faults"),
    FieldSpec("stubborn_children", "bool", False, "let the children ignore SIGTERM", group="faults"),
    FieldSpec("fork_bomb", "int", 0, "start children without end, up to this many", minimum=0, group="faults"),
    FieldSpec("threads", "int", 0, "start this many sleeping threads", minimum=0, group="faults"),
    FieldSpec("memory_mb", "int", 0, "allocate and touch this much memory", minimum=0, group="faults"),
    FieldSpec("log_line_chars", "int", 0, "print one line of this many characters", minimum=0, group="faults"),
    FieldSpec("log_mb", "int", 0, "print this much text", minimum=0, group="faults"),
    FieldSpec("lifecycle_garbage", "bool", False, "write torn and foreign lines into lifecycle.jsonl", group="faults"),
    FieldSpec("print_line", "str", "", "print this line", group="faults"),
    FieldSpec("faulty_attempts", "int", 0, "the faults below befall only the first attempts; 0: all", group="faults"),
    FieldSpec("fail_at_step", "int", 0, "raise an error at this step", minimum=0, group="faults"),
    FieldSpec("fail_with_variable", "str", "", "name an environment variable's value in the error", group="faults"),
    FieldSpec("exit_at_step", "int", 0, "exit at this step without a report", minimum=0, group="faults"),
    FieldSpec("exit_code", "int", 0, "exit code of exit_at_step", minimum=0, maximum=255, group="faults"),
    FieldSpec("kill_at_step", "int", 0, "die by kill_signal at this step", minimum=0, group="faults"),
    FieldSpec("kill_signal", "int", 9, "9 is SIGKILL, 11 SIGSEGV", minimum=1, maximum=31, group="faults"),
    FieldSpec("hang_at_step", "int", 0, "stand still at this step, heartbeats continue", minimum=0, group="faults"),
)

_SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
_STUBBORN = [sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"]
_hoard: list[bytearray] = []
"""Keeps memory_mb allocated until the process ends"""


class AskedToFail(RuntimeError):
    """The config asked for this failure."""


def before_registration(parameters: Mapping[str, Any]) -> None:
    """Faults of a worker that the daemon has not heard of yet."""
    if parameters.get("fork_and_exit"):
        subprocess.Popen(_SLEEPER, start_new_session=True)
        sys.stdout.flush()
        os._exit(0)
    while parameters.get("never_register"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN if parameters.get("ignore_sigterm") else signal.SIG_DFL)
        time.sleep(3600)


def after_start(parameters: Mapping[str, Any]) -> None:
    """Faults that begin once the run has started."""
    if parameters.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = _STUBBORN if parameters.get("stubborn_children") else _SLEEPER
    for _ in range(parameters.get("spawn_children", 0)):
        subprocess.Popen(child, start_new_session=bool(parameters.get("detach_children")))
    for _ in range(parameters.get("fork_bomb", 0)):
        subprocess.Popen(_SLEEPER)
    for _ in range(parameters.get("threads", 0)):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    for _ in range(parameters.get("memory_mb", 0)):
        _hoard.append(bytearray(os.urandom(1)) * (1 << 20))
    if characters := parameters.get("log_line_chars", 0):
        print("x" * characters, flush=True)  # noqa: T201 - the log is what is tested
    if line := parameters.get("print_line"):
        print(line, flush=True)  # noqa: T201
    for _ in range(parameters.get("log_mb", 0)):
        print(("y" * 1023 + "\n") * 1024, end="", flush=True)  # noqa: T201
    if parameters.get("lifecycle_garbage"):
        with open("lifecycle.jsonl", "ab") as stream:  # the working directory is the run folder
            stream.write(b'{"event":"run_comp\n\xff\xfe not JSON\n[]\n' + b"z" * (2 << 20) + b"\n")


def at_step(parameters: Mapping[str, Any], step: int) -> None:
    """Faults of a certain step."""
    attempt = int(os.environ.get(env.MOSAIC_RUN_ATTEMPT, "1"))
    if 0 < parameters.get("faulty_attempts", 0) < attempt:
        return
    if step == parameters.get("fail_at_step"):
        variable = os.environ.get(parameters.get("fail_with_variable", ""), "")
        raise AskedToFail(f"fail_at_step asked for an error at step {step} {variable}".rstrip())
    if step == parameters.get("exit_at_step"):
        os._exit(parameters.get("exit_code", 0))
    if step == parameters.get("kill_at_step"):
        os.kill(os.getpid(), parameters.get("kill_signal", 9))
    while step == parameters.get("hang_at_step"):
        time.sleep(3600)
