"""Fault 2: the daemon dies at each commit of a run in turn; no accepted run is lost, doubled or started twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, random_config, scripted_config
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

DOOMED = """
import itertools, logging, os, sys
from contextlib import contextmanager
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer import daemon
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.services.trainer.registry_database import RegistryDatabase
from mosaic_wire.paths import find_home

moment, last = {moment!r}, {last}
commits = itertools.count(1)

class DoomedDatabase(RegistryDatabase):
    @contextmanager
    def write(self, *, durable=True):
        with super().write(durable=durable) as connection:
            yield connection
            number = next(commits)
            if moment == "before" and number == last:
                os._exit(9)
        if moment == "after" and number == last:
            os._exit(9)

class DoomedRegistry(RunRegistry):
    def __init__(self, database):
        super().__init__(database)
        self._database.__class__ = DoomedDatabase

daemon.RunRegistry = DoomedRegistry
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(daemon.run_daemon(find_home(), load_settings()))
"""

Life = Callable[[RunningDaemon, str], pb.Run]


def a_plain_life(daemon: RunningDaemon, key: str) -> pb.Run:
    run = daemon.client.submit(random_config(timesteps=20), idempotency_key=key).run
    return until_it_ends(daemon, run.run_id)


def a_retried_life(daemon: RunningDaemon, key: str) -> pb.Run:
    config = random_config(
        timesteps=20, checkpoint_every=5, kill_at_step=12, faulty_attempts=1, scheduling={"retries": 1}
    )
    return until_it_ends(daemon, daemon.client.submit(config, idempotency_key=key).run.run_id)


def a_released_life(daemon: RunningDaemon, key: str) -> pb.Run:
    config = random_config(timesteps=200, steps_per_second=100)
    return until_it_ends(daemon, daemon.client.submit(config, idempotency_key=key).run.run_id, release=True)


def an_impossible_life(daemon: RunningDaemon, key: str) -> pb.Run:
    install_scripted_worker(daemon.home, "gone", "")
    file = daemon.home.workers / "gone" / "worker.json"
    program = file.with_name("program")
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o700)
    write_json_atomically(file, {**read_json_object(file), "argv": [str(program)]})
    config = scripted_config("gone")
    return until_it_ends(daemon, daemon.client.submit(config, idempotency_key=key).run.run_id)


def until_it_ends(daemon: RunningDaemon, run_id: str, *, release: bool = False) -> pb.Run:
    """Do what a patient user does until the run is over."""

    def is_over() -> bool:
        run = daemon.client.get(run_id)
        try:
            if release and run.status == "EXEC" and run.attempt == 1 and "pausing" not in run.flags:
                daemon.client.pause(run_id, release=True)
            elif run.status == "PAUSE" and "released" in run.flags:
                daemon.client.resume(run_id)
        except NotPossibleNow:
            pass  # it went on meanwhile
        return run.status == "TERM"

    if not wait_until(is_over, timeout_s=60):
        raise AssertionError(f"{daemon.client.get(run_id)}\n{daemon.event_kinds(run_id)}\n{daemon.log()[-4000:]}")
    return daemon.client.get(run_id)


def check_life_with_a_crash_at_every_commit(
    daemon: RunningDaemon, life: Life, *moments: str, outcome: str, attempts: set[int]
) -> None:
    daemon.start()  # the schema is there, a worker is described: only the run's own commits are counted
    daemon.client.workers()
    for last in count(1):
        daemon.stop()
        when = moments[last % len(moments)]
        daemon.script = DOOMED.format(moment=when, last=last)
        daemon.start()
        key = f"{life.__name__}-{when}-{last}"
        known = len(daemon.client.list().runs)
        try:
            life(daemon, key)
        except DaemonUnreachable:
            assert daemon.wait_for_exit() == 9
        # Some commits come after the run's end, so it may be dead by now, or die of its last one.
        crashed = daemon.stop() != 0
        daemon.script = ""
        daemon.start()
        run = life(daemon, key)
        where = f"crash {when} commit {last}: {daemon.event_kinds(run.run_id)}"
        assert len(daemon.client.list().runs) == known + 1, where
        assert run.outcome == outcome, where
        started = [event.attempt for event in daemon.lifecycle(run.run_id) if event.event is LifecycleKind.RUN_STARTED]
        assert len(started) == len(set(started)), where
        assert set(started) <= attempts, where
        assert bool(started) == bool(attempts), where
        events = list(daemon.client.history(run.run_id))
        assert sum(event.to_status == "TERM" for event in events) == 1, where
        assert processes_of(run.run_id) == [], where
        if attempts:
            assert daemon.manifest(run.run_id).outcome == outcome, where
        if not crashed:
            assert last > 3, "the crash points were never reached"
            assert daemon.client.health().cpus_free == daemon.client.health().cpus_total
            return


def test_a_life_with_a_crash_at_every_commit(make_daemon) -> None:
    # Before the odd and after the even ones: the second says that it is about to be started, the third that it was.
    check_life_with_a_crash_at_every_commit(
        make_daemon(start=False), a_plain_life, "after", "before", outcome="completed", attempts={1}
    )


@pytest.mark.slow  # a whole life is tried at every commit in every CI
def test_a_run_that_cannot_be_started_is_failed_whatever_commit_the_daemon_dies_at(make_daemon) -> None:
    check_life_with_a_crash_at_every_commit(
        make_daemon(start=False), an_impossible_life, "after", outcome="failed", attempts=set()
    )


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("life", "attempts"),
    [(a_plain_life, {1}), (a_retried_life, {1, 2}), (a_released_life, {1, 2})],
    ids=["plain", "retried", "released"],
)
def test_a_life_with_a_crash_before_and_after_every_commit(
    make_daemon, moment: str, life: Life, attempts: set[int]
) -> None:
    check_life_with_a_crash_at_every_commit(
        make_daemon(start=False), life, moment, outcome="completed", attempts=attempts
    )
