"""A run with folders nested 1,500 deep ends, is exported and is deleted like any other."""

from __future__ import annotations

import pytest
from gym_gui.services.trainer.run_files import remove
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config

DIGGER = """
wanted = config.extras["algo_params"]
session = open_session()
session.started({})
for top in wanted["tops"]:
    place = run_folder_of(config.run_id).root / top
    place.mkdir(exist_ok=True)
    os.chdir(place)
    for _ in range(wanted["depth"]):
        os.mkdir(wanted["folder"])
        os.chdir(wanted["folder"])
    Path("deep.txt").write_text("x")
    os.chmod(".", 0)
os._exit(3)
"""


@pytest.mark.parametrize(
    ("name", "depth", "tops"),
    [
        ("d", 1500, (".", "logs")),
        pytest.param(
            "a-longer-name-than-a-path-has-room-for",
            20_000,
            (".", "metrics", "tensorboard", "logs", "videos"),
            marks=pytest.mark.fault,
        ),
    ],
)
def test_folders_without_end_neither_keep_a_run_from_its_end_nor_from_deletion(
    emptied_daemon: RunningDaemon,
    request: pytest.FixtureRequest,
    tmp_path,
    name: str,
    depth: int,
    tops: tuple[str, ...],
) -> None:
    daemon = emptied_daemon
    # What a failed test leaves would end every later pytest with a RecursionError: it removes old folders.
    request.addfinalizer(lambda: [remove(path) for path in daemon.home.runs.iterdir()])
    install_scripted_worker(daemon.home, "digger", DIGGER)
    run = daemon.wait_for(
        daemon.client.submit(scripted_config("digger", folder=name, depth=depth, tops=list(tops))).run.run_id
    )
    assert (run.outcome, run.reason) == ("failed", "its process exited with code 3")
    assert daemon.manifest(run.run_id).finalised_by == "daemon"
    daemon.client.export_to(run.run_id, tmp_path / "run.tar.gz")
    daemon.client.delete(run.run_id)
    assert not daemon.home.run_folder(run.run_id).root.exists()
    imported = daemon.client.import_archive(tmp_path / "run.tar.gz")
    daemon.client.delete(imported.run_id)
    assert "Traceback" not in daemon.log()
