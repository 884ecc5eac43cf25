"""The LLM worker: a language model plays an environment over many steps.

    python -m llm_worker.cli --algo llm --env-id FrozenLake-v1 --total-timesteps 50

It asks any OpenAI-compatible endpoint, Anthropic's, or a model that it serves itself, holds the answers to the legal
actions, and records every prompt, answer, action and result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_extras.env_construction import make_env, read_env_kwargs
from mosaic_extras.environments import sets_of_environment
from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import check_sets, enter
from mosaic_extras.pins import parse_sets
from mosaic_wire.checkpoints import last_good_checkpoint, read_checkpoint
from mosaic_wire.config_checks import CheckAnswer, problems_of_dry_run
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.ids import is_run_id, new_run_id
from mosaic_wire.paths import find_home
from mosaic_wire.redaction import is_ordinary, is_secret_ref, redact_document, redact_text, spellings_of, with_secrets
from mosaic_wire.run_request import Mode
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_run import Question, run_worker, state_to_resume
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from llm_worker import __version__, get_worker_metadata
from llm_worker.embedded import EmbeddedServer, problem_with_model, sets_of_model

if TYPE_CHECKING:
    from llm_worker.endpoint import Endpoint
    from llm_worker.play import LlmRun

MODULE = "llm_worker.cli"
RANDOM = "random"
ENDPOINT, PROMPT, BUDGET, PLAY = "Endpoint", "Prompt", "Budget", "Episodes"

FIELDS = (
    FieldSpec("total_timesteps", "int", 100, "how many steps to take", minimum=1, group=PLAY),
    FieldSpec("seed", "int", 1, "seed of the episodes, of the sampling and of random fallbacks", minimum=0, group=PLAY),
    FieldSpec(
        "model", "str", "smollm2", "name at the endpoint; without one smollm2 or the path of a .gguf", group=ENDPOINT
    ),
    FieldSpec("base_url", "str", "", "address such as http://127.0.0.1:11434/v1; empty: served here", group=ENDPOINT),
    FieldSpec("api", "str", "openai", "protocol of the endpoint", choices=("openai", "anthropic"), group=ENDPOINT),
    FieldSpec("api_key", "str", "", "key of the endpoint; kept in the secret store only", group=ENDPOINT),
    FieldSpec(
        "constraint",
        "str",
        "auto",
        "how answers are held to legal actions; auto: the strictest that the endpoint applies",
        choices=("auto", "json_schema", "grammar", "text"),
        group=ENDPOINT,
    ),
    FieldSpec("temperature", "float", 0.0, "randomness of answers", (), True, 0, 2, ENDPOINT),
    FieldSpec("max_tokens", "int", 256, "length of an answer", minimum=64, group=ENDPOINT),
    FieldSpec("timeout_s", "float", 60.0, "how long to wait for an answer", minimum=0.1, group=ENDPOINT),
    FieldSpec("max_retries", "int", 5, "how often a request is repeated", minimum=0, maximum=100, group=ENDPOINT),
    FieldSpec("retry_wait_s", "float", 1.0, "wait before the first repetition; doubles", minimum=0, group=ENDPOINT),
    FieldSpec("context", "int", 4096, "context of a model that is served here", minimum=512, group=ENDPOINT),
    FieldSpec(
        "prompt",
        "str",
        "",
        "instructions with {environment} {goal} {actions} {format}; empty: usual ones",
        group=PROMPT,
    ),
    FieldSpec("history", "int", 8, "earlier turns that a prompt shows", minimum=0, maximum=1000, group=PROMPT),
    FieldSpec("plan_every", "int", 0, "ask for a plan every so many steps; 0: never", minimum=0, group=PROMPT),
    FieldSpec(
        "describer",
        "str",
        "",
        "your function (observation, env) -> text: module:function or file.py:function",
        group=PROMPT,
    ),
    FieldSpec("max_total_tokens", "int", 0, "end after so many tokens; 0: no limit", minimum=0, group=BUDGET),
    FieldSpec("max_cost", "float", 0.0, "end after this cost; 0: no limit", minimum=0, group=BUDGET),
    FieldSpec("input_price", "float", 0.0, "price of a million tokens of prompts", minimum=0, group=BUDGET),
    FieldSpec("output_price", "float", 0.0, "price of a million tokens of answers", minimum=0, group=BUDGET),
    FieldSpec("max_minutes", "float", 0.0, "end after so many minutes; 0: no limit", minimum=0, group=BUDGET),
    FieldSpec("on_budget", "str", "complete", "what a reached limit does", choices=("complete", "pause"), group=BUDGET),
    FieldSpec("parallel", "int", 1, "episodes that are played at the same time", minimum=1, maximum=64, group=PLAY),
    FieldSpec("env_kwargs", "str", "", "arguments of the environment: is_slippery=false, or JSON", group=PLAY),
    FieldSpec("record_frames", "bool", False, "keep a frame of every step for replays", group=PLAY),
    FieldSpec("checkpoint_every", "int", 100, "steps between checkpoints; 0: only at the end", minimum=0, group=PLAY),
)
_NOT_LEARNING = (
    *("api_key", "base_url", "timeout_s", "max_retries", "retry_wait_s", "parallel", "record_frames"),
    *("checkpoint_every", "max_total_tokens", "max_cost", "input_price", "output_price", "max_minutes", "on_budget"),
)


def describe() -> WorkerSpec:
    """Return what `--describe` prints."""
    modes = (Mode.TRAIN.value, Mode.RESUME.value, Mode.EVALUATE.value)
    return WorkerSpec(
        name="llm",
        display_name="LLM Multi-Step Worker",
        version=__version__,
        capabilities=get_worker_metadata(),
        module=MODULE,
        argv=(sys.executable, "-m", MODULE),
        algorithms=(
            AlgorithmSpec(
                "llm",
                "a language model plays: it is asked for one legal action a step",
                FIELDS,
                action_spaces=("discrete", "continuous"),
                requirement_sets=("base",),
                modes=modes,
            ),
        ),
        non_learning=_NOT_LEARNING,
        prepares=True,
        checks=True,
    )


# ---------------------------------------------------------------------- configs


def parameters_of(config: WorkerConfig) -> dict[str, Any]:
    """Return all parameters: defaults, those of an evaluated run, then the given ones; secrets are references."""
    defaults = {field.name: field.default for field in FIELDS if field.name not in ("total_timesteps", "seed")}
    known = _evaluated_parameters(config) if config.extras.get("mode") == Mode.EVALUATE else {}
    kwargs = config.extras.get("env_kwargs")
    return {**defaults, **known, **config.parameters, **({"env_kwargs": kwargs} if kwargs else {})}


def _evaluated_parameters(config: WorkerConfig) -> Mapping[str, Any]:
    """Return the parameters of the run or checkpoint that is evaluated; raise ConfigProblems or DamagedCheckpoint."""
    named = config.extras.get("checkpoint_path") or config.extras.get("policy_path")
    if not named:
        return {}
    path = Path(named)
    if is_run_id(named):
        folder = find_home().run_folder(named)
        if (entry := last_good_checkpoint(folder)) is None:
            problem = Problem("extras.checkpoint_path", f"run {named} has no checkpoint to evaluate")
            raise ConfigProblems("the worker config", [problem])
        path = folder.root / entry.path
    state = read_checkpoint(path)
    if state.get("algo") != config.algo:
        problem = Problem("extras.checkpoint_path", f"{path} is not a checkpoint of {config.algo!r}")
        raise ConfigProblems("the worker config", [problem])
    return dict(state.get("parameters", {}))


def sets_needed(config: WorkerConfig) -> tuple[str, ...]:
    """Return the requirement sets of a run: those of its environment, its model, and requested ones."""
    parameters = parameters_of(config)
    is_needed = config.extras.get("eval_policy") != RANDOM and not problem_with_model(parameters)
    model = sets_of_model(parameters) if is_needed else ()
    requested = parse_sets(config.extras.get("requirements") or ())
    return tuple(sorted({*sets_of_environment(config.env_id), *model, *requested} - {"base"}))


def problems_of(config: WorkerConfig) -> list[Problem]:
    """Return what is wrong with a config, without making anything."""
    given = {name: value for name, value in config.parameters.items() if not is_secret_ref(value)}
    problems = check_algorithm_choice(describe(), config.algo, config.env_id, given)
    if problems:
        return problems
    parameters = parameters_of(config)
    mode = config.extras.get("mode", Mode.TRAIN)
    if mode not in (Mode.TRAIN, Mode.RESUME, Mode.EVALUATE):
        problems.append(
            Problem("extras.mode", f"{mode!r} is no mode of this worker: train, resume_training, policy_eval")
        )
    if config.extras.get("eval_policy") != RANDOM and (wrong := problem_with_model(parameters)):
        problems.append(Problem("model", wrong))
    is_open = not is_secret_ref(parameters["base_url"])  # an address with a password is a secret
    if parameters["base_url"] and is_open and not str(parameters["base_url"]).startswith(("http://", "https://")):
        problems.append(Problem("base_url", f"must begin with http:// or https://, not {parameters['base_url']!r}"))
    if parameters["max_cost"] and not (parameters["input_price"] or parameters["output_price"]):
        problems.append(Problem("max_cost", "needs the prices of tokens: --input-price and --output-price"))
    try:
        read_env_kwargs(parameters["env_kwargs"])
    except ConfigProblems as error:
        problems += error.problems
    return problems


def check(document: Mapping[str, Any]) -> CheckAnswer:
    """Return what is wrong with a config that is to be queued."""
    config = WorkerConfig.from_json(document, make_run_id=new_run_id)
    problems = problems_of(config)
    missing, message = _missing_sets(config)
    if missing and config.extras.get("install_missing") is not True:
        problems.append(Problem("extras.install_missing", f"{message}, or add --install-missing"))
    elif message and not missing:
        problems.append(Problem("extras.requirements", message))
    if not problems and not missing:
        problems = problems_of_dry_run(MODULE, document)
    return CheckAnswer(problems, missing_sets=missing)


def _missing_sets(config: WorkerConfig) -> tuple[tuple[str, ...], str]:
    """Return the sets to install and a text with the command, or what else is wrong with them."""
    try:
        answer = check_sets(find_home(), sets_needed(config))
    except RequirementSetError as error:
        return (), str(error)
    return answer.missing, "" if answer.is_ready else answer.message


def prepare(config: WorkerConfig) -> int:
    """Install the sets that a run lacks."""
    from mosaic_extras.install_extras import prepare

    return prepare(find_home(), sets_needed(config))


def load(config: WorkerConfig) -> LlmRun:
    """Return the run of a config, with its environments; raise ConfigProblems."""
    problems = problems_of(config)
    is_evaluation = config.extras.get("mode") == Mode.EVALUATE
    state = {} if is_evaluation else state_to_resume(config, problems)
    _, message = _missing_sets(config)
    if message:
        problems.append(Problem("extras.requirements", message))
    if problems:
        raise ConfigProblems("the worker config", problems)
    home, brought = find_home(), sets_of_environment(config.env_id)
    enter(home, brought, MODULE, sys.argv[1:])
    from llm_worker.describers import describe_game
    from llm_worker.play import LlmRun

    parameters = with_secrets(parameters_of(config), os.environ)
    shown = {name: value for name, value in parameters.items() if name != "api_key"}
    key = str(parameters["api_key"])
    shown = redact_document(shown, () if is_ordinary(key) else spellings_of({key}))
    kwargs = read_env_kwargs(parameters["env_kwargs"])
    environments = [make_env(config.env_id, kwargs) for _ in range(parameters["parallel"])]
    try:
        game = describe_game(environments[0], parameters["describer"])
    except ConfigProblems:
        for env in environments:
            env.close()
        raise
    return LlmRun(config, parameters, environments, game, state, shown=shown)


def _with_extras(config: WorkerConfig, extras: Mapping[str, Any]) -> WorkerConfig:
    from dataclasses import replace

    return replace(config, extras=extras)  # type: ignore[arg-type]  # a copy of them


# ---------------------------------------------------------------------- questions of a form


def _ask_endpoint(arguments: argparse.Namespace, question: Callable[[Endpoint], Awaitable[Mapping[str, Any]]]) -> int:
    """Put a question to the endpoint of a config and print the answer."""
    import asyncio

    from llm_worker.endpoint import Endpoint

    config = _draft(arguments)
    problems = [each for each in problems_of(config) if each.path in ("model", "base_url")]
    # An empty name is no mistake here: the list of models is asked for to choose one.
    if problems and not (arguments.models and parameters_of(config)["base_url"]):
        raise ConfigProblems("the worker config", problems)
    parameters = {**with_secrets(parameters_of(config), os.environ), "max_retries": 0}
    server = None
    key, address = str(parameters["api_key"]), str(parameters["base_url"])
    if sets_of_model(parameters):
        server = EmbeddedServer(find_home(), parameters, is_stopping=lambda: False)
        key, address = server.key, server.address

    async def answer() -> Mapping[str, Any]:
        async with Endpoint(address, parameters, key=key, seed=0) as endpoint:
            return await question(endpoint)

    try:
        print(redact_text(json.dumps(asyncio.run(answer())), [key]))
    finally:
        if server is not None:
            server.close()
    return 0


def _draft(arguments: argparse.Namespace) -> WorkerConfig:
    return WorkerConfig.load(arguments.config, {}, make_run_id=new_run_id)


def _models(arguments: argparse.Namespace) -> int:
    async def question(endpoint: Endpoint) -> Mapping[str, Any]:
        return {"models": await endpoint.models()}

    return _ask_endpoint(arguments, question)


def _probe(arguments: argparse.Namespace) -> int:
    async def question(endpoint: Endpoint) -> Mapping[str, Any]:
        from llm_worker.endpoint import probe

        return {"constraint": str(await probe(endpoint))}

    return _ask_endpoint(arguments, question)


def _preview(arguments: argparse.Namespace) -> int:
    from llm_worker.prompt import estimated_tokens

    config = _draft(arguments)
    with redirect_stdout(sys.stderr):  # an environment or a describer may print, too
        run = load(_with_extras(config, {**config.extras, "algo_params": {**config.parameters, "parallel": 1}}))
        try:
            conversation = run.first_prompt()
        finally:
            run.close()
    print(json.dumps({"messages": conversation, "estimated_tokens": estimated_tokens(conversation)}))
    return 0


QUESTIONS = (
    Question("--models", "print the models of the endpoint, as JSON", _models),
    Question("--probe", "print how the endpoint can be held to legal actions, as JSON", _probe),
    Question("--preview", "print the first prompt, as JSON", _preview),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # This process has no display for SDL, and pygame must not print its greeting.
    os.environ |= {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    return run_worker(MODULE, describe, load, check=check, prepare=prepare, questions=QUESTIONS, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
