"""The life of a run inside its worker, from the command line to the exit code.

    class MyRun(WorkerRun):
        def start(self): …                       registered: allocate what the run needs, return facts for `run_started`
        def train(self): …                       until the steps are used up, or `obey` returns an outcome
        def state(self): …                       what a checkpoint holds

    sys.exit(run_worker("my_worker.cli", describe, load))

`load` makes the run from its config, before anything is registered or written, and raises ConfigProblems for what is
wrong. A worker that needs something else uses `WorkerSession` directly.
"""

from __future__ import annotations

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic_wire.checkpoints import read_checkpoint, write_checkpoint
from mosaic_wire.config_checks import CheckAnswer, serve_checks
from mosaic_wire.errors import ConfigProblems, GivenUp, Problem, WireError
from mosaic_wire.exit_record import BAD_INPUT, ExitOutcome
from mosaic_wire.ids import new_run_id
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest, earlier_checkpoints
from mosaic_wire.run_request import Mode
from mosaic_wire.session import CommandKind, WorkerSession
from mosaic_wire.worker_config import WorkerConfig, add_worker_arguments, canonical_flags, daemon_target, overrides_from
from mosaic_wire.worker_spec import WorkerSpec


class WorkerRun(ABC):
    """One run, made from its config before it is registered."""

    session: WorkerSession
    """From `register` on"""

    def __init__(self, config: WorkerConfig, manifest: AnalyticsManifest, *, resumed_at: int | None = None) -> None:
        self.config, self.manifest = config, manifest
        self.step = resumed_at or 0
        self.resumed_at = resumed_at
        """Step of the checkpoint that the run continues from; None for a new one"""
        self.reason = ""
        """Why the run ended, where that is worth a sentence"""

    def preview(self) -> Mapping[str, Any]:
        """Return what a dry run prints."""
        return {"would_run": self.config.algo, "env_id": self.config.env_id, "steps": self.config.total_timesteps}

    def register(self) -> int | None:
        """Register with the daemon; return the exit code when that is not possible."""
        return self.session.open_or_explain()

    def start(self) -> Mapping[str, Any]:
        """Allocate what the run needs once it is registered; return facts for `run_started`."""
        return {}

    @abstractmethod
    def train(self) -> ExitOutcome:
        """Work until done, or until `obey` returns an outcome."""

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds, as JSON values."""
        return {}

    def result(self) -> Mapping[str, Any]:
        """Return facts for the event that ends the run."""
        return {"step": self.step}

    def close(self) -> None:
        """Release resources, also of a run that never started."""
        return

    def save(self, kind: str = "periodic") -> None:
        """Write a checkpoint, add it to the manifest and emit the event, in this order."""
        folder = self.session.run_folder
        entry = write_checkpoint(folder, self.step, {"algo": self.config.algo, **self.state()}, kind=kind)
        others = tuple(known for known in self.manifest.checkpoints if known.path != entry.path)
        self.manifest = replace(self.manifest, checkpoints=(*others, entry))
        self.manifest.write(folder.manifest)
        self.session.emit(LifecycleKind.CHECKPOINT_SAVED, entry.to_json())

    def obey(self) -> ExitOutcome | None:
        """Handle commands and signals at a safe point, after a checkpoint; return an outcome to end the run."""
        command = self.session.next_command()
        if command is None and not self.session.stop_requested.is_set():
            return None
        if type(self).state is not WorkerRun.state:
            self.save("last")
        if command is CommandKind.PAUSE:
            command = self.session.pause({"step": self.step})
        if self.session.stop_requested.is_set():
            return ExitOutcome.CANCELLED
        return ExitOutcome.RELEASED if command is CommandKind.RELEASE else None


def state_to_resume(config: WorkerConfig, problems: list[Problem]) -> dict[str, Any]:
    """Return the state of the checkpoint to resume from, or {}; add what is wrong with it to `problems`.

    Raises DamagedCheckpoint with the reason.
    """
    if (folder := config.checkpoint_to_resume) is not None:
        state = read_checkpoint(folder)
        if state.get("algo") == config.algo:
            return state
        problems.append(Problem("extras.checkpoint_path", f"{folder} is not a checkpoint of {config.algo!r}"))
    elif config.extras.get("mode", Mode.TRAIN) != Mode.TRAIN:
        problems.append(Problem("extras.mode", "must be 'train', or 'resume_training' with a checkpoint_path"))
    return {}


Load = Callable[[WorkerConfig], WorkerRun]


@dataclass(frozen=True)
class Question:
    """A flag that is answered instead of running anything."""

    flag: str
    help: str
    answer: Callable[[argparse.Namespace], int]
    """Print the answer and return the exit code; WireErrors are printed"""
    metavar: str | None = None
    """Name of the flag's value; None: it has none"""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further flags with a value that go with it, with their help"""


def run_worker(
    module: str,
    describe: Callable[[], WorkerSpec],
    load: Load,
    *,
    check: Callable[[Mapping[str, Any]], CheckAnswer] | None = None,
    prepare: Callable[[WorkerConfig], int] | None = None,
    questions: Sequence[Question] = (),
    argv: Sequence[str] | None = None,
) -> int:
    """Describe the worker, check configs, or run one; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    add_worker_arguments(parser)
    if check is not None:
        parser.add_argument("--check", action="store_true", help="answer a config a line on standard input")
    if prepare is not None:
        parser.add_argument("--prepare", action="store_true", help="install what the config needs, and exit")
    parser.add_argument("--emit-summary", action="store_true", help="with --dry-run: print the result as JSON")
    for question in questions:
        value: dict[str, Any] = {"metavar": question.metavar} if question.metavar else {"action": "store_true"}
        parser.add_argument(question.flag, help=question.help, **value)
        for flag, text in question.options.items():
            parser.add_argument(flag, help=text)
    arguments = parser.parse_args(canonical_flags(sys.argv[1:] if argv is None else argv))
    if arguments.describe:
        _print(describe().to_json())
        return 0
    if check is not None and arguments.check:
        return serve_checks(check)
    try:
        for question in questions:
            if getattr(arguments, question.flag.strip("-").replace("-", "_")):
                return question.answer(arguments)
        config = WorkerConfig.load(arguments.config, overrides_from(arguments), make_run_id=new_run_id)
        if prepare is not None and arguments.prepare:
            return prepare(config)
        run = load(config)
    except WireError as error:
        _print_refusal(error, as_json=arguments.dry_run and arguments.emit_summary)
        return BAD_INPUT
    with closing(run):
        if not arguments.dry_run:
            return _carry_out(run, describe(), daemon_target(arguments))
        _print(run.preview())
        return 0


def _carry_out(run: WorkerRun, spec: WorkerSpec, target: str | None) -> int:
    """Register, train and end the run; return the exit code."""
    config = run.config
    with WorkerSession.of(config, spec.capabilities, target) as session:
        run.session = session
        if (code := run.register()) is not None:
            return code
        known = earlier_checkpoints(session.run_folder.manifest, up_to_step=run.step)
        run.manifest = replace(run.manifest, checkpoints=known)
        try:
            facts = run.start()
            run.manifest.write(session.run_folder.manifest)
            common = {"seed": config.seed, "total_timesteps": config.total_timesteps, "step": run.step}
            session.started({**common, "module": spec.module, **facts})
            if run.manifest.tensorboard_dir is not None:
                session.follow_metrics(session.run_folder.root / run.manifest.tensorboard_dir)
            if run.resumed_at is not None:
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": run.resumed_at})
            outcome = run.train()
            return session.finish(outcome, reason=run.reason, payload=run.result(), manifest=run.manifest)
        except GivenUp as error:
            payload = {**run.result(), "final": True}
            return session.finish(ExitOutcome.FAILED, reason=str(error), payload=payload, manifest=run.manifest)
        except Exception as error:  # noqa: BLE001 - the process boundary: the run ends as failed
            return session.fail(error, run.result(), run.manifest)


def _print_refusal(error: WireError, *, as_json: bool) -> None:
    if not as_json:
        print(error, file=sys.stderr)  # noqa: T201 - the command's answer
        return
    problems = error.problems if isinstance(error, ConfigProblems) else [Problem("", str(error))]
    _print({"ok": False, "problems": [asdict(problem) for problem in problems]})


def _print(document: Mapping[str, Any]) -> None:
    print(json.dumps(document))  # noqa: T201 - the command's answer
