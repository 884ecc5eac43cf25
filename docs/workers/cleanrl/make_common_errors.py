"""Makes common_errors.md: every error text of the worker, read out of its source, with cause and cure.

    python docs/workers/cleanrl/make_common_errors.py          writes the document
    python docs/workers/cleanrl/make_common_errors.py --check  says whether it is up to date

The texts come from the code, so none is missing or outdated; causes and cures are written here, by topic and, where a
topic is too coarse, by text.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKER = HERE.parents[2] / "workers" / "cleanrl_worker" / "cleanrl_worker"
WIRE = HERE.parents[2] / "packages" / "mosaic_wire" / "mosaic_wire"
DOCUMENT = HERE / "common_errors.md"

ERRORS = (
    "BadInput",
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
    "requirement_sets/overlays.py",
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
    cure: str


TOPICS = (
    Topic(
        "The config file",
        ("mosaic_wire/worker_config.py",),
        "the file cannot be read, is half-written, mixes the flat and the nested format, or has a wrong key or type",
        "write the file again; `path: what` names the place. [writing a worker](../writing_a_worker.md) has the format",
    ),
    Topic(
        "Flags and extras",
        ("cli.py", "config.py", "modes/__init__.py", "registry.py"),
        "a flag, extra, mode, algorithm or environment that does not exist or cannot be used here",
        "take the name the message suggests; `mosaic train ALGO --help` lists flags, `mosaic algos` algorithms",
    ),
    Topic(
        "Values that do not fit each other",
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
        "each value is possible, but no run can be made of them together, or the environment is not for this algorithm",
        "change one of the values the message names; a dry run tells all of them at once",
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
        "check the id; install the module of a `module:Env-v0` into the environment; try `gymnasium.make` yourself",
    ),
    Topic(
        "Before the start",
        ("preflight.py", "needs.py"),
        "the check before a run is queued (or a dry run) found something it would trip over: packages, memory, disk, a "
        "checkpoint of other shapes",
        "do what the message says; it names the flag or the command",
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
        "the checkpoint is missing, damaged, or of another algorithm, environment or shape; or a model file is none",
        "name another checkpoint (`mosaic show RUN` lists them) or train from the start",
    ),
    Topic(
        "The daemon",
        ("mosaic_wire/daemon_link.py",),
        "the worker could not register: nobody listens at --grpc-target, or the daemon does not expect this run",
        "start runs with `mosaic train`; by hand leave --grpc out, then files and standard output are all there is",
    ),
    Topic(
        "While it trains",
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
        "training started and could not go on; checkpoints written before are whole",
        "cure the reason, then `mosaic resume RUN` goes on from the last checkpoint",
    ),
    Topic(
        "Curricula",
        ("wrappers/schedule.py", "training/envs/curriculum.py"),
        "the schedule cannot be read, or its environments do not belong together",
        "correct the stage the message names; a condition is `steps>=N`, `episodes>=N` or `episode_return>=X`",
    ),
    Topic(
        "Scripts",
        ("scripts/checking.py", "scripts/reading.py", "scripts/runtime.py", "scripts/running.py", "scripts/custom.py"),
        "the script is not there, is no single-file script, or was asked for something only MOSAIC's algorithms can do",
        "check the path or CLEANRL_HOME; leave out what the message names",
    ),
    Topic(
        "Requirement sets",
        (
            "requirement_sets/pins.py",
            "requirement_sets/selection.py",
            "requirement_sets/overlays.py",
            "requirement_sets/installation.py",
            "requirement_sets/overlay_check.py",
            "tools/install_extras.py",
            "training/standalone.py",
        ),
        "packages that this run needs are not installed, not intact, or cannot be together",
        "run the command the message ends with; [requirement sets](requirement_sets.md) tells the rest",
    ),
)

SPECIFIC = {
    "does not divide the batch": (
        "minibatches would have different sizes",
        "choose --num-minibatches as a divisor of num_envs × num_steps",
    ),
    "are not finite": (
        "the loss became NaN or infinite: too large steps, or an environment that gives such numbers",
        "lower --learning-rate, or look at the rewards; resume from the checkpoint before",
    ),
    "no checkpoint could be written": (
        "usually: no space left on the device",
        "make room, then resume; the earlier checkpoints are whole",
    ),
    "the event file in": (
        "usually: no space left on the device",
        "make room, then resume",
    ),
    "no space left on the disk": (
        "the run filled its disk",
        "make room, raise --checkpoint-freq, then resume",
    ),
    "no step for more than": (
        "the environment hangs, or one step takes that long",
        "look at the logs; extras.no_progress_s raises the limit, extras.no_progress: leave switches it off",
    ),
    "of memory": (
        "a replay buffer or rollout is larger than what is free",
        "lower the flag the message names, or use a larger machine",
    ),
    "of disk": (
        "checkpoints would not fit",
        "raise --checkpoint-freq or make room",
    ),
    "needs a package that is not installed": (
        "the environment's family has a requirement set of its own",
        "`mosaic extras install SET`",
    ),
    "--env-kwargs": (
        "arguments of the environment that are no JSON object, or that it does not take",
        "write an object, with the names of the environment's own constructor",
    ),
    "ended with": (
        "the training process crashed, or somebody killed it; SIGKILL often means out of memory",
        "`mosaic logs RUN`; the end of its stderr is in the story",
    ),
    "cannot upload": (
        "--upload-model needs the Hugging Face hub and a token",
        "leave it out; the model stays in the run folder",
    ),
    "a script cannot be resumed": (
        "only MOSAIC's own algorithms write checkpoints that can be gone on from",
        "train it again",
    ),
    "is refused": (
        "a model file is unpickled only as plain weights, in a process of its own; this one held more",
        "use a file you trust and that holds weights only",
    ),
    "unknown algorithm": (
        "no algorithm of that name",
        "`mosaic algos` lists them",
    ),
    "cannot run now": (
        "MOSAIC has no implementation of its own yet",
        "--source upstream runs CleanRL's script",
    ),
    "unknown environment": (
        "the id is registered nowhere",
        "take the suggested id, or `module:Env-v0` for your own",
    ),
}
"""A part of the text → (cause, cure); the first that fits"""


def main(arguments: list[str]) -> int:
    text = render()
    if "--check" in arguments:
        fresh = DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text
        sys.stdout.write("up to date\n" if fresh else f"outdated: python {Path(__file__).name}\n")
        return 0 if fresh else 1
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """The document as it should be now."""
    lines = [INTRODUCTION]
    for topic in TOPICS:
        texts = [text for module in topic.modules for text in texts_of(module)]
        if not texts:
            continue
        lines += [f"## {topic.title}", "", f"*Cause:* {topic.cause}.", f"*Cure:* {topic.cure}.", ""]
        lines += [*(_item(text) for text in dict.fromkeys(texts)), ""]
    return "\n".join(lines)


INTRODUCTION = """# Errors of the CleanRL worker

Made by `make_common_errors.py` from the worker's source; `…` stands for what differs from run to run. Bad input ends
with exit code 2 before anything is started, and all that is wrong is told at once; a failed run ends with exit code 1
and its reason in `mosaic show RUN`. Where a text has no cause and cure of its own, those of its section hold.
What the daemon and the command say is in [troubleshooting](../../runbooks/troubleshooting.md).
"""


def _item(text: str) -> str:
    shown = f"- `{' '.join(text.split()).replace('`', '')}`"
    told = next((told for part, told in SPECIFIC.items() if part in text), None)
    return shown if told is None else f"{shown}\n  *Cause:* {told[0]}. *Cure:* {told[1]}."


def modules() -> list[str]:
    """Every module of the worker that has a text for people."""
    files = sorted(str(path.relative_to(WORKER)) for path in WORKER.rglob("*.py"))
    wire = [f"mosaic_wire/{name}.py" for name in ("worker_config", "checkpoints", "daemon_link")]
    return [*wire, *(name for name in files if texts_of(name))]


def texts_of(module: str) -> list[str]:
    """The error texts of one module, in the order of its source."""
    path = WIRE / module.removeprefix("mosaic_wire/") if module.startswith("mosaic_wire/") else WORKER / module
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
    """Texts of four words or more that a function returns, keeps or hands on; docstrings and log lines are not."""
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
