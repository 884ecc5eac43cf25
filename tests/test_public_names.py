"""Names that other people's code and documents use stay importable, wherever the code behind them moves."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

import pytest

NAMES = {
    "gym_gui.services.trainer": ("TrainerDispatcher", "RunRegistry", "GPUAllocator"),
    "gym_gui.services.trainer.client": ("TrainerClient",),
    "gym_gui.services.trainer.fsm": ("RunStatus",),
    "gym_gui.services.trainer.streams": ("TelemetryAsyncHub",),
    "gym_gui.services.trainer.validation.train_config": ("validate_train_run_config",),
    "gym_gui.ui.workers.catalog": ("WorkerEntry",),
    "gym_gui.ui.presenters.workers.registry": ("CleanRlWorkerPresenter", "SpadeBdiWorkerPresenter"),
    "gym_gui.ui.panels.analytics_tabs": ("AnalyticsTabManager",),
    "gym_gui.ui.widgets.cleanrl_train_form": ("CleanRlTrainForm",),
    "gym_gui.ui.widgets.cleanrl_script_form": ("CleanRlScriptForm",),
    "gym_gui.ui.widgets.cleanrl_resume_form": ("CleanRlResumeForm",),
    "gym_gui.ui.widgets.cleanrl_policy_form": ("CleanRlPolicyForm",),
    "gym_gui.ui.widgets.spade_bdi_train_form": ("SpadeBdiTrainForm",),
    "gym_gui.validations.validation_cleanrl_worker_form": ("run_cleanrl_dry_run",),
    "gym_gui.logging_config.log_constants": (),
    "mosaic_wire.capabilities": ("WorkerCapabilities",),
    "mosaic_wire.frames": ("FastLaneWriter",),
    "mosaic_wire.lifecycle": ("RunLifecycleEvent",),
    "cleanrl_worker.cli": ("main",),
    "cleanrl_worker.config": ("CleanRLWorkerConfig",),
    "cleanrl_worker.runtime": ("CleanRLWorkerRuntime", "DEFAULT_ALGO_REGISTRY"),
    "cleanrl_worker.launcher": (),
    "cleanrl_worker.telemetry": ("LifecycleEmitter",),
    "cleanrl_worker.analytics": ("build_manifest",),
    "cleanrl_worker.fastlane": ("FastLaneTelemetryWrapper",),
    "cleanrl_worker.agents.minigrid": (),
    "cleanrl_worker.agents.mlp": (),
    "cleanrl_worker.wrappers.curriculum": ("BabyAITaskWrapper", "run_curriculum_training"),
    "cleanrl_worker.eval.batched": ("run_batched_evaluation",),
    "cleanrl_worker.tools.install_extras": ("main",),
}


@pytest.mark.parametrize("module", NAMES)
def test_a_public_name_is_importable(module):
    found = import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []


def test_a_run_status_has_the_long_names_of_older_documents():
    from gym_gui.services.trainer.fsm import RunStatus

    assert RunStatus.TERMINATED is RunStatus.TERM
    assert RunStatus.EXECUTING is RunStatus.EXEC


def test_workers_are_found_by_their_entry_point_group():
    assert {"cleanrl", "human", "random", "sweep"} <= {point.name for point in entry_points(group="mosaic.workers")}
