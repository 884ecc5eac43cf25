"""Cutting the logs of a run never touches a file outside it."""

from __future__ import annotations

from gym_gui.services.trainer.worker_logs import cap_logs
from gym_gui.testing import install_scripted_worker, scripted_config
from mosaic_wire.testing import wait_until

LINKER = """
wanted = config.extras["algo_params"]
root, elsewhere = run_folder_of(config.run_id).root, Path(wanted["elsewhere"])
session = open_session()
session.started({})
if wanted["links_folder"]:
    (root / "logs").symlink_to(elsewhere)
else:
    (root / "logs").mkdir()
    (root / "logs" / "x.log").symlink_to(elsewhere / "x.log")
    os.link(elsewhere / "x.log", root / "logs" / "y.log")
    (root / "logs" / "z.log.1").symlink_to(elsewhere / "x.log")
    (root / "logs" / "z.log").write_bytes(b"z" * (3 << 20))
print("flood " * (1 << 19), flush=True)
session.stop_requested.wait()
"""


def test_links_hard_links_and_linked_folders_of_logs_are_left_alone(make_daemon, tmp_path) -> None:
    daemon = make_daemon(log_cap_mb=1)
    install_scripted_worker(daemon.home, "linker", LINKER)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "x.log"
    precious.write_bytes(b"precious" * (3 << 17))
    runs = [
        daemon.client.submit(scripted_config("linker", elsewhere=str(elsewhere), links_folder=links)).run.run_id
        for links in (True, False)
    ]
    for run_id in runs:
        log = daemon.home.run_logs(run_id) / "stdout.log"
        assert wait_until(lambda log=log: log.with_name("stdout.log.1").exists())
    own = daemon.home.run_folder(runs[1]).logs / "z.log"
    assert wait_until(lambda: own.stat().st_size == 0)
    for run_id in runs:
        daemon.client.cancel(run_id)
        daemon.wait_for(run_id)
    assert precious.read_bytes() == b"precious" * (3 << 17)
    assert [path.name for path in elsewhere.iterdir()] == ["x.log"]


def test_a_pipe_in_the_place_of_the_older_part_keeps_no_log_from_being_cut(tmp_path) -> None:
    import os

    (tmp_path / "a.log").write_bytes(b"a" * 1000)
    os.mkfifo(tmp_path / "a.log.1")
    os.mkfifo(tmp_path / "b.log")
    assert cap_logs([tmp_path], 100) == [tmp_path / "a.log.1"]
    assert (tmp_path / "a.log.1").read_bytes() == b"a" * 50
    assert (tmp_path / "a.log").stat().st_size == 0
