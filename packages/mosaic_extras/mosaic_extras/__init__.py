"""Requirement sets: packages that only some runs need, installed as overlays on the base environment.

An overlay is a virtual environment that sees the base's packages through a .pth file and holds only what the base
lacks, so torch is never installed twice. `docs/requirement_sets.md` describes them.

| module | holds |
| --- | --- |
| `environments` | which set brings an environment: `sets_of_environment` |
| `pins` | the pin lists and descriptions of the sets |
| `overlays` | what is installed: `check_sets` (a millisecond, starts nothing), `interpreter_for`, `hold` |
| `installation` | `install`: pip, the wheel cache, the checks |
"""
