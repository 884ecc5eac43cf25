"""Help pages of the CleanRL worker's algorithms: what each is, where to begin, what its flags mean.

Data and HTML only: the worker is not imported, because it may live in another environment.
"""

from __future__ import annotations

from mosaic_wire.worker_spec import nearest

from gym_gui.Algo_docs.cleanrl_worker import c51, continuous_control, dqn, policy_optimization, ppo
from gym_gui.Algo_docs.cleanrl_worker.pages import Page, render

FAMILIES: dict[str, dict[str, Page]] = {
    "ppo": ppo.PAGES,
    "policy_optimization": policy_optimization.PAGES,
    "dqn": dqn.PAGES,
    "c51": c51.PAGES,
    "continuous_control": continuous_control.PAGES,
}

IMPLEMENTED = frozenset(
    {
        "c51",
        "c51_atari",
        "ddpg_continuous_action",
        "dqn",
        "dqn_atari",
        "ppg_procgen",
        "ppo",
        "ppo_atari",
        "ppo_atari_envpool",
        "ppo_atari_lstm",
        "ppo_atari_multigpu",
        "ppo_continuous_action",
        "ppo_pettingzoo_ma_atari",
        "ppo_procgen",
        "ppo_rnd_envpool",
        "pqn",
        "pqn_atari_envpool",
        "pqn_atari_envpool_lstm",
        "qdagger_dqn_atari_impalacnn",
        "rainbow_atari",
        "rpo_continuous_action",
        "sac_atari",
        "sac_continuous_action",
        "td3_continuous_action",
    }
)
"""Names MOSAIC has an implementation of its own for; a test compares them with the worker's registry"""


def documented() -> tuple[str, ...]:
    """Every algorithm that has a page."""
    return tuple(name for pages in FAMILIES.values() for name in pages)


def help_for(algo: str) -> str:
    """The page of an algorithm as an HTML fragment; for an unknown name, one that says so."""
    for pages in FAMILIES.values():
        if algo in pages:
            return render(algo, pages[algo], is_ours=algo in IMPLEMENTED)
    import html

    close = nearest(algo, documented())
    hint = f" Did you mean <code>{close}</code>?" if close else ""
    return f"<p>There is no help page for <code>{html.escape(algo)}</code>.{hint}</p>\n"
