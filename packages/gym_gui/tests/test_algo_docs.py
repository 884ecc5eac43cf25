"""Help pages of the CleanRL worker's algorithms."""

from __future__ import annotations

import html
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from gym_gui.Algo_docs.cleanrl_worker import PAGES, help_for

UPSTREAM = json.loads(Path(__file__).with_name("upstream_flags.json").read_text(encoding="utf-8"))
"""Flags of CleanRL's scripts: algorithm → flag → [type, default]"""
OURS = sorted(name for name, entry in DEFAULT_ALGO_REGISTRY.items() if entry.module)


class Balanced(HTMLParser):
    """Notices tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_registered_algorithm_has_a_page_and_no_other():
    assert sorted(PAGES) == sorted(DEFAULT_ALGO_REGISTRY)


@pytest.mark.parametrize("algo", sorted(DEFAULT_ALGO_REGISTRY))
def test_a_page_says_what_it_is_where_to_begin_and_what_each_of_our_flags_means(algo):
    spec = DEFAULT_ALGO_REGISTRY[algo].spec()
    page = help_for(spec)
    assert Balanced(page).open == []
    for heading in ("<h2>", "Where to begin", "timesteps", "num_envs"):
        assert heading in page
    for field in spec.fields:
        assert f"<td>{field.flag}</td>" in page
        assert f"<td>{html.escape(field.help, quote=False)}</td>" in page
    assert page.count("<td>--") == len(spec.fields)
    assert ("Not implemented by MOSAIC yet" in page) == (algo not in OURS)
    assert ("--source upstream" in page) == (algo not in OURS)


@pytest.mark.parametrize("algo", OURS)
def test_the_help_promises_no_upload_to_a_hub(algo):
    assert "upload the weights" not in help_for(DEFAULT_ALGO_REGISTRY[algo].spec())


@pytest.mark.parametrize("algo", OURS)
def test_our_own_flags_and_defaults_are_upstreams(algo):
    ours = {field.name: (field.kind, field.default) for field in DEFAULT_ALGO_REGISTRY[algo].spec().fields}
    for name, (kind, default) in UPSTREAM[algo].items():
        if kind.startswith("List"):  # a form has no field for a list: ours is one text, its items parted by commas
            kind, default = "str", ",".join(map(str, default))
        assert name in ours
        assert ours[name][1] == default, name
        assert ours[name][0] == ("str" if kind.startswith("Literal") else kind), name
