"""The LLM worker's form asks a real endpoint, shows the prompt, and a run of it shows its conversation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.dialog_factory import open_form
from gym_gui.ui.forms.llm_train_form import LlmTrainForm
from gym_gui.ui.replay.replay_tab import ReplayTab
from gym_gui.ui.workers.catalog import entries_from, find
from llm_worker.testing import FakeEndpoint, solve
from PySide6.QtWidgets import QPushButton, QTextBrowser

KEY = "canary-key-5512cc90ab"


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(solve, key=KEY) as endpoint:
        yield endpoint


@pytest.fixture
def form(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon, endpoint: FakeEndpoint
) -> LlmTrainForm:
    entry = find(entries_from(window_daemon.client.workers()), "llm")
    assert entry is not None
    assert entry.is_usable, entry.remedy
    form = open_form("train", entry, link=link, background=background, home=window_daemon.home)
    assert isinstance(form, LlmTrainForm)
    qtbot.addWidget(form)
    qtbot.waitUntil(lambda: form.parameters.row("base_url") is not None, timeout=10_000)
    form.core.set_values({"env_id": "FrozenLake-v1", "total_timesteps": 12})
    form.parameters.set_values({"base_url": endpoint.address, "api_key": KEY, "env_kwargs": "is_slippery=false"})
    return form


def test_models_test_and_first_prompt_come_from_the_endpoint(qtbot, form: LlmTrainForm) -> None:
    form.list_models()
    qtbot.waitUntil(lambda: form.models.count() == 2, timeout=60_000)
    assert form.parameters.row("model").value() == "first"
    address = form.parameters.row("base_url").value()
    for other in ("http://127.0.0.1:9/v1", address):  # the models of another endpoint are not offered
        form.parameters.set_values({**form.parameters.changed_values(), "base_url": other})
    assert form.models.count() == 0
    form.test()
    qtbot.waitUntil(lambda: "JSON schema" in form.endpoint_status.text(), timeout=60_000)
    form.template.setPlainText("Play {environment} with {actions}.\n{format}")
    form.show_prompt()
    qtbot.waitUntil(lambda: "Play FrozenLake-v1 with left, down" in form.prompt.toPlainText(), timeout=60_000)
    assert "You (A) are at row 0, column 0" in form.prompt.toPlainText()
    assert form.prompt_status.text().startswith("about ")
    (config,) = form.configs()
    parameters = config["metadata"]["worker"]["config"]["extras"]["algo_params"]
    assert parameters["prompt"] == "Play {environment} with {actions}.\n{format}"
    assert parameters["model"] == "first"


@pytest.mark.slow  # the worker's own tests ask with a wrong key in every CI
def test_a_wrong_key_is_said_in_the_workers_words_without_the_key(qtbot, form: LlmTrainForm) -> None:
    form.parameters.set_values({"base_url": form.parameters.row("base_url").value(), "api_key": "wrong-key-4711-ab"})
    form.test()
    qtbot.waitUntil(lambda: "refuses the key" in form.endpoint_status.text(), timeout=60_000)
    assert "wrong-key" not in form.endpoint_status.text()


def test_a_template_of_a_cloned_run_is_shown(qtbot, form: LlmTrainForm) -> None:
    form.parameters.set_values({"prompt": "Be brief. {actions}"})
    qtbot.waitUntil(lambda: form.template.toPlainText() == "Be brief. {actions}")


def test_a_run_shows_its_conversation_in_the_replay_and_its_clone_has_its_key(
    qtbot, form: LlmTrainForm, link: DaemonLink, window_daemon: RunningDaemon
) -> None:
    form.parameters.set_values({**form.parameters.changed_values(), "model": "first"})
    (config,) = form.configs()
    run = window_daemon.wait_for(window_daemon.client.submit(config).run.run_id)
    assert (run.outcome, KEY in str(run)) == ("completed", False)
    clone = open_form("clone", form.entry, link=link, background=form.background, home=form.home, run=run)
    qtbot.waitUntil(lambda: "those of this run" in clone.banner.text, timeout=30_000)
    assert clone.parameters.row("api_key").value() == ""
    with qtbot.waitSignal(clone.submitted, timeout=60_000) as submitted:
        clone.submit()
    assert window_daemon.wait_for(submitted.args[0][0]).outcome == "completed"
    tab = ReplayTab(link)
    qtbot.addWidget(tab)
    tab.resize(1000, 700)
    tab.show()
    tab.show_run(run)
    tab.set_active(True)

    def told() -> str:
        view = tab.findChild(QTextBrowser, "reasoning_text")
        return view.toPlainText() if view is not None else ""

    qtbot.waitUntil(lambda: "Answer" in told(), timeout=30_000)
    text = told()
    assert "You (A) are at row 0, column 0" in text
    assert '{"action": "down"}' in text
    assert "reward 0" in text


def test_the_offline_preset_offers_to_install_its_model_and_start(qtbot, form: LlmTrainForm) -> None:
    title = next(title for title in form.builtin_presets() if "SmolLM2" in title)
    form.load(form.builtin_presets()[title])
    form.parameters.set_values({"base_url": "", "api_key": ""})
    form.submit()
    qtbot.waitUntil(lambda: "llm_local" in form.banner.text, timeout=60_000)
    button = form.banner.findChild(QPushButton, "banner_action")
    assert button.text() == "Install and start"
    assert button.isVisibleTo(form.banner)
