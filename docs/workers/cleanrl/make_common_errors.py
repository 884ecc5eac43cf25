"""Make common_errors.md: every error message of the worker, read from its source, with cause and fix.

    python docs/workers/cleanrl/make_common_errors.py          write the document
    python docs/workers/cleanrl/make_common_errors.py --check  report whether it is up to date

The messages come from the code, so none is missing or outdated; causes and fixes are written here, by topic and, where
a topic is too coarse, by message.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKER = HERE.parents[2] / "workers" / "cleanrl_worker" / "cleanrl_worker"
PACKAGES = HERE.parents[2] / "packages"
DOCUMENT = HERE / "common_errors.md"

ERRORS = (
    "BadInput",
    "BadRequest",
    "TrainingStopped",
    "Problem",
    "UnknownSet",
    "BadPinList",
    "SetsDisagree",
    "BaseUnfit",
    "SetNotReady",
    "SetInUse",
    "InstallFailed",
    "DamagedCheckpoint",
    "RegistrationRefused",
    "SessionError",
)
"""What the worker raises or lists for people; the text is their argument"""

SENTENCES = (
    "declarations.py",
    "needs.py",
    "preflight.py",
    "environment_probe.py",
    "runtime.py",
    "scripts/checking.py",
    "scripts/runtime.py",
    "scripts/custom.py",
    "mosaic_extras/overlays.py",
    "mosaic_wire/worker_config.py",
)
"""Modules that also put their texts together elsewhere: there every sentence counts"""

PARTS = (
    ",",
    ";",
    " ",
    "{",
    "… -m pip",
    "… checkpoints of",
    "the base environment has",
    "in the base",
    "before training",
    "--learning-starts",
    "--total-timesteps",
    "the … sequences",
    "rollout and",
    "a minibatch and",
    "… (it has",
    "move it there",
)
"""Texts that are a part of another one, a note, or good news"""


@dataclass(frozen=True)
class Topic:
    """Texts of some modules that have one kind of cause."""

    title: str
    modules: tuple[str, ...]
    cause: str
    fix: str


TOPICS = (
    Topic(
        "The config file",
        ("mosaic_wire/worker_config.py",),
        "the file cannot be read, is half-written, mixes the flat and the nested format, or has a wrong key or type",
        "write the file again; the message names the key. The file is a worker config or a whole run config "
        "([configuration](../../configuration.md))",
    ),
    Topic(
        "Flags and extras",
        ("cli.py", "config.py", "modes/__init__.py", "registry.py"),
        "a flag, extra, mode, algorithm or environment does not exist or is not supported here",
        "use the suggested name; `mosaic train ALGO --help` lists flags, `mosaic algos` lists algorithms",
    ),
    Topic(
        "Incompatible values",
        (
            "declarations.py",
            "algorithms/ppo.py",
            "algorithms/c51.py",
            "algorithms/ddpg.py",
            "algorithms/dqn.py",
            "algorithms/ppg.py",
            "algorithms/ppo_atari_lstm.py",
            "algorithms/ppo_atari_multigpu.py",
            "algorithms/ppo_pettingzoo_ma_atari.py",
            "algorithms/ppo_rnd.py",
            "algorithms/pqn.py",
            "algorithms/pqn_lstm.py",
            "algorithms/qdagger.py",
            "algorithms/rainbow.py",
            "algorithms/sac.py",
            "algorithms/sac_discrete.py",
            "algorithms/td3.py",
            "training/args.py",
            "training/policies.py",
            "training/off_policy.py",
            "training/fast_cpu/__init__.py",
        ),
        "each value is valid, but their combination is not, or the algorithm does not support the environment",
        "change one of the named values; a dry run reports all problems at once",
    ),
    Topic(
        "Environments",
        (
            "environment_probe.py",
            "env_kwargs.py",
            "training/envs/construction.py",
            "training/envs/factory.py",
            "training/envs/processes.py",
            "training/envs/envpool_envs.py",
            "training/envs/procgen_games.py",
            "training/envs/two_players.py",
        ),
        "the id is not registered, a package is missing, or the environment's own code raised",
        "check the id; install the module of a `module:Env-v0` where the worker runs; test it with `gymnasium.make`",
    ),
    Topic(
        "Before the start",
        ("preflight.py", "needs.py"),
        "the check before a run is queued (or a dry run) found that it would fail: missing packages, memory, disk, a "
        "checkpoint of other shapes",
        "change the flag or run the command in the message",
    ),
    Topic(
        "Checkpoints and models",
        (
            "mosaic_wire/checkpoints.py",
            "modes/checkpoints.py",
            "training/checkpointing.py",
            "training/envs/normalization.py",
            "training/foreign_model.py",
            "training/weights_reader.py",
            "training/replay.py",
            "training/teacher.py",
        ),
        "the checkpoint is missing, damaged, or of another algorithm, environment or shape; or the file is not a model",
        "use another checkpoint (`mosaic show RUN` lists them) or train from the beginning",
    ),
    Topic(
        "The daemon",
        ("mosaic_wire/daemon_link.py",),
        "the worker could not register: no daemon listens at --grpc-target, or it does not expect this run",
        "start runs with `mosaic train`; to run the worker without a daemon, omit --grpc",
    ),
    Topic(
        "During training",
        (
            "runtime.py",
            "training/metrics.py",
            "training/run.py",
            "training/evaluation.py",
            "training/rendering.py",
            "training/distributed.py",
            "eval/batched.py",
            "eval/policies.py",
            "launcher.py",
        ),
        "training failed after its start; earlier checkpoints are intact",
        "fix the reason, then `mosaic resume RUN` resumes from the last checkpoint",
    ),
    Topic(
        "Curricula",
        ("wrappers/schedule.py", "training/envs/curriculum.py"),
        "the schedule is invalid, or its environments are incompatible",
        "correct the named stage; a condition is `steps>=N`, `episodes>=N` or `episode_return>=X`",
    ),
    Topic(
        "Scripts",
        ("scripts/checking.py", "scripts/reading.py", "scripts/runtime.py", "scripts/running.py", "scripts/custom.py"),
        "the script does not exist, is not a single-file script, or an option requires one of MOSAIC's algorithms",
        "check the path or CLEANRL_HOME; omit the named option",
    ),
    Topic(
        "Requirement sets",
        (
            "mosaic_extras/pins.py",
            "requirement_sets.py",
            "mosaic_extras/overlays.py",
            "mosaic_extras/installation.py",
            "mosaic_extras/overlay_check.py",
            "mosaic_extras/install_extras.py",
            "training/standalone.py",
        ),
        "packages that the run needs are not installed, damaged, or incompatible",
        "run the command at the end of the message; see [requirement sets](../../requirement_sets.md)",
    ),
)

SPECIFIC = {
    "does not divide the batch": (
        "minibatches would have different sizes",
        "choose --num-minibatches as a divisor of num_envs × num_steps",
    ),
    "are not finite": (
        "the loss became NaN or infinite: the learning rate is too large, or the environment returns such values",
        "lower --learning-rate, or check the rewards; resume from the previous checkpoint",
    ),
    "no checkpoint could be written": (
        "usually, no space is left on the device",
        "free disk space, then resume; earlier checkpoints are intact",
    ),
    "the event file in": ("usually, no space is left on the device", "free disk space, then resume"),
    "no space left on the disk": ("the run filled the disk", "free disk space, raise --checkpoint-freq, then resume"),
    "no step for more than": (
        "the environment hangs, or one step takes that long",
        "check the logs; extras.no_progress_s sets the limit, extras.no_progress: leave disables it",
    ),
    "of memory": (
        "a replay buffer or rollout is larger than the available memory",
        "lower the named flag, or use a larger machine",
    ),
    "of disk": ("there is not enough disk space", "free disk space; for checkpoints raise --checkpoint-freq"),
    "needs a package that is not installed": ("the environment needs a requirement set", "`mosaic extras install SET`"),
    "--env-kwargs": (
        "the value is not a JSON object, or the environment does not accept an argument",
        "write an object with arguments of the environment's constructor",
    ),
    "ended with": (
        "the training process crashed or was killed; SIGKILL often means out of memory",
        "check `mosaic logs RUN`; `mosaic history RUN` contains the end of its stderr",
    ),
    "cannot upload": (
        "--upload-model needs the Hugging Face hub and a token",
        "omit it; the model stays in the run folder",
    ),
    "a script cannot be resumed": ("only MOSAIC's own algorithms write checkpoints to resume from", "train it again"),
    "is refused": (
        "a model file is read as plain weights only, in a separate process; this file contains other objects",
        "use a trusted file that contains only weights",
    ),
    "unknown algorithm": ("there is no algorithm with this name", "`mosaic algos` lists them"),
    "cannot run now": ("MOSAIC has no implementation of it yet", "run CleanRL's script with --source upstream"),
    "unknown environment": ("the id is not registered", "use the suggested id, or `module:Env-v0` for your own"),
}
"""A part of the message → (cause, fix); the first that matches"""


def main(arguments: list[str]) -> int:
    text = render()
    if "--check" in arguments:
        fresh = DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text
        sys.stdout.write("up to date\n" if fresh else f"outdated: python {Path(__file__).name}\n")
        return 0 if fresh else 1
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """Return the document as it should be now."""
    lines = [INTRODUCTION]
    for topic in TOPICS:
        texts = [text for module in topic.modules for text in texts_of(module)]
        if not texts:
            continue
        lines += [f"## {topic.title}", "", f"*Cause:* {topic.cause}.", f"*Fix:* {topic.fix}.", ""]
        lines += [*(_item(text) for text in dict.fromkeys(texts)), ""]
    return "\n".join(lines)


INTRODUCTION = """# Errors of the CleanRL worker

Generated by `make_common_errors.py` from the worker's source; `…` stands for variable parts. Invalid input ends
with exit code 2 before anything is started, and all problems are reported at once; a failed run ends with exit code 1,
and `mosaic show RUN` prints the reason. A message without its own cause and fix has those of its section.
For messages of the daemon and the command see [troubleshooting](../../runbooks/troubleshooting.md).
"""


def _item(text: str) -> str:
    shown = f"- `{' '.join(text.split()).replace('`', '')}`"
    specific = next((found for part, found in SPECIFIC.items() if part in text), None)
    return shown if specific is None else f"{shown}\n  *Cause:* {specific[0]}. *Fix:* {specific[1]}."


def modules() -> list[str]:
    """Return every module of the worker that has a text for people."""
    files = sorted(str(path.relative_to(WORKER)) for path in WORKER.rglob("*.py"))
    wire = [f"mosaic_wire/{name}.py" for name in ("worker_config", "checkpoints", "daemon_link")]
    extras = sorted(f"mosaic_extras/{path.name}" for path in (PACKAGES / "mosaic_extras/mosaic_extras").glob("*.py"))
    return [*wire, *(name for name in (*extras, *files) if texts_of(name))]


def texts_of(module: str) -> list[str]:
    """Return the error texts of one module, in the order of its source."""
    package = module.partition("/")[0]
    path = PACKAGES / package / module if package in ("mosaic_wire", "mosaic_extras") else WORKER / module
    if not path.is_file():
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(node.lineno, text) for node in ast.walk(tree) if (text := _error_text(node))]
    if module in SENTENCES:
        found += _sentences(tree)
    return [text for _, text in sorted(found)]


def _error_text(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    place = 1 if name == "Problem" else 0
    if name not in ERRORS or len(node.args) <= place:
        return ""
    return _text(node.args[place])


def _sentences(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the texts of four words or more that a function returns, stores or passes on."""
    quiet = {id(node) for node in ast.walk(tree) if _is_quiet(node) for node in ast.walk(node)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in quiet and id(node) not in inner:
            text = _text(node)
            if len(text.split()) >= 4 and not text.startswith(PARTS):
                found.append((node.lineno, text))
    return found


def _is_quiet(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return name in (
            *ERRORS,
            "debug",
            "info",
            "warning",
            "error",
            "exception",
            "search",
            "compile",
            "write",
            "add_argument",
        )
    return False


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return (left or "…") + (right or "…") if left or right else ""
    if isinstance(node, ast.IfExp):
        return _text(node.body) or _text(node.orelse)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
