"""Stands in for W&B where its package is not installed: writes down every call, and has trouble when asked to."""

from __future__ import annotations

import json
import os
import time

CALLS = "wandb_calls.jsonl"
_TROUBLE = os.environ.get("FAKE_WANDB_TROUBLE", "")


def _note(name: str, **facts) -> None:
    with open(os.path.join(os.environ["WANDB_DIR"], CALLS), "a") as stream:
        stream.write(json.dumps({"call": name, **facts}) + "\n")
    if name == _TROUBLE:
        raise ConnectionError(f"no {name} today")
    while f"{name} hangs" == _TROUBLE:
        time.sleep(60)


class Run:
    def __init__(self) -> None:
        self.offline = os.environ["WANDB_MODE"] == "offline"
        self.path = f"me/cleanRL/{os.environ['WANDB_RUN_ID']}"
        self.url = f"https://wandb.example/{self.path}"

    def define_metric(self, name, step_metric=None):
        pass

    def log(self, values):
        _note("log", values=values)

    def finish(self, exit_code=None):
        _note("finish", exit_code=exit_code)


def init(**arguments):
    variables = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    _note("init", arguments=arguments, variables=variables)
    return Run()
