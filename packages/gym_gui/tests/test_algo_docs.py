"""Help pages of the CleanRL worker's algorithms."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from gym_gui.Algo_docs.cleanrl_worker import IMPLEMENTED, documented, help_for
from gym_gui.Algo_docs.cleanrl_worker.glossary import GLOSSARY
from gym_gui.Algo_docs.cleanrl_worker.pages import parameters


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
    assert sorted(documented()) == sorted(DEFAULT_ALGO_REGISTRY)


def test_the_pages_know_what_mosaic_has():
    assert {name for name, entry in DEFAULT_ALGO_REGISTRY.items() if entry.module} == IMPLEMENTED


@pytest.mark.parametrize("algo", sorted(DEFAULT_ALGO_REGISTRY))
def test_a_page_says_what_it_is_where_to_begin_and_what_each_flag_means(algo):
    page = help_for(algo)
    assert Balanced(page).open == []
    for heading in ("<h2>", "Where to begin", "timesteps", "num_envs", "Parameters"):
        assert heading in page
    for name in parameters()[algo]:
        assert f"--{name.replace('_', '-')}<" in page
    assert ("Not implemented by MOSAIC yet" in page) == (algo not in IMPLEMENTED)
    assert ("--source upstream" in page) == (algo not in IMPLEMENTED)


def test_the_glossary_has_every_flag_and_no_other():
    assert {name for flags in parameters().values() for name in flags} == set(GLOSSARY)


@pytest.mark.parametrize("algo", sorted(IMPLEMENTED))
def test_our_own_flags_and_defaults_are_upstreams(algo):
    ours = {field.name: (field.kind, field.default) for field in DEFAULT_ALGO_REGISTRY[algo].spec().fields}
    for name, (kind, default) in parameters()[algo].items():
        if kind.startswith("List"):  # a form has no field for a list: ours is one text, its items parted by commas
            kind, default = "str", ",".join(map(str, default))
        assert name in ours
        assert ours[name][1] == default, name
        assert ours[name][0] == ("str" if kind.startswith("Literal") else kind), name


def test_an_unknown_name_is_answered_with_the_nearest():
    assert "<code>ppo</code>" in help_for("pppo")
    assert "<script>" not in help_for("<script>")
