"""Workers as Slurm jobs on nodes that share the daemon's disk, through sbatch, squeue, scancel, sinfo and sacct.

A job is known by its name, which holds the run's mark: so a submission whose answer was lost is found like any other.
The job starts the guard (`guard`), which takes the launch (`handover`) and is the local executor on its node. Slurm
never requeues a job: an attempt that it interrupts ends, and the dispatcher queues the next one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.files import open_plain

from gym_gui.config.settings import SlurmSettings
from gym_gui.services.trainer.errors import EngineUnavailable, NotPossibleNow, SpawnFailed
from gym_gui.services.trainer.executors.contract import NO_PROCESS, Attempt, EngineEnding, Machines, Node, Worker
from gym_gui.services.trainer.executors.handover import NodeReport, discard, launch_file, offer, withdraw
from gym_gui.services.trainer.executors.local import ForeignWorker, is_held
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.limits import StartedThreads, restore_limits
from gym_gui.services.trainer.process_tree import ProcessIdentity, read_process_table, send_signal
from gym_gui.services.trainer.records import NODE_LOST, PREEMPTED

logger = logging.getLogger(__name__)

_NAME_PREFIX = "mosaic-"
_COMMAND_S = 30.0
"""A command of Slurm that takes longer is ended; slurmctld answers within seconds or not at all"""
_CONCURRENT_COMMANDS = 4
"""In threads of their own, so that a slow slurmctld holds up nothing else"""
_RETRY_S = 5.0
"""Until the next submission after Slurm did not accept one"""
_CLOSE_POLL_S = 0.3
"""Between two polls while a caller waits for the start or the end of a job"""
_REPEAT_S = 5.0
"""Until a job that has not ended is signaled again"""
_FORCE_AFTER_S, _GIVE_UP_AFTER_S = 5.0, 60.0
"""After the guard's own grace: until Slurm kills the job itself, and until the caller hears that it could not"""
_MISSED_POLLS = 2
"""A job that so many polls did not list is no longer known to Slurm"""
_MINUTES_OF_GRACE = 5
"""Added to the run's own time limit, which the daemon enforces first (and which does not run while it is paused)"""

_TAIL_BYTES = 1000
_LOG = "slurm.log"
"""The output of the batch step, beside that of the worker"""
_FIELDS = ("Name", "JobID", "State", "Reason", "NodeList", "TimeUsed")
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_BY_SLURM = {
    "TIMEOUT": "out of time: its job reached the time limit of Slurm",
    "DEADLINE": "out of time: its job reached its deadline in Slurm",
    "OUT_OF_MEMORY": "Slurm ended it: its job used more memory than it had asked for",
    "CANCELLED": "its job was cancelled in Slurm, not by MOSAIC",
    "LAUNCH_FAILED": "Slurm could not launch its job",
}
_LOST = {
    "": "Slurm no longer knows its job {job}",
    "NODE_FAIL": "its node failed{where}",
    "BOOT_FAIL": "its node failed{where}",
    # A guard reports before it ends, unless it found no launch: an earlier start of the job has taken it.
    "COMPLETED": "Slurm forgot that job {job} was running, and started it again{where}",
}
_KILLED = "its job {job} was killed{where} ({state})"
_MAY_WORK_LATER = re.compile(
    r"contact slurm controller|timed out|temporarily|connect|zero bytes|MaxSubmit|not responding|in standby",
    re.IGNORECASE,
)
_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TZ", "LD_LIBRARY_PATH", "SLURM_CONF")
"""The environment of Slurm's commands, and of the batch step: no secret, and no SBATCH_… that changes a job"""


class _Refused(EngineUnavailable):
    """A command of Slurm answered with an error."""


@dataclass(frozen=True)
class Job:
    """A job as squeue lists it."""

    name: str
    job_id: str
    state: str
    reason: str
    node: str
    elapsed_s: float

    @classmethod
    def of_line(cls, line: str) -> Job | None:
        """Return the job of a line of squeue, or None for another line."""
        values = line.split("|")
        if len(values) <= len(_FIELDS):  # each field ends with a bar
            return None
        name, job_id, state, reason, node, elapsed = (value.strip() for value in values[: len(_FIELDS)])
        return cls(name, job_id, state, reason, node, _seconds(elapsed))


def _seconds(elapsed: str) -> float:
    """Return the seconds of [days-][hours:]minutes:seconds; 0 for what is no time."""
    days, _, rest = elapsed.rpartition("-")
    try:
        total = 0
        for part in rest.split(":"):
            total = 60 * total + int(part)
        return total + 86_400 * int(days or 0)
    except ValueError:
        return 0.0


class SlurmWorker(Worker):
    """A worker in a job; its executor's poll keeps it up to date."""

    def __init__(self, executor: SlurmExecutor, mark: str, stdout: Path, job_id: str) -> None:
        super().__init__(NO_PROCESS, mark, job_id=job_id)
        self.name, self.stdout = f"{_NAME_PREFIX}{mark}", stdout
        self.missed = 0
        self._executor = executor
        self._job: Job | None = None
        self._polled_at = 0.0
        self._started, self._ended = asyncio.Event(), asyncio.Event()
        self._ending: EngineEnding | None = None
        self._report: NodeReport | None = None
        self._is_being_ended = self._is_settling = False

    # -- what the poll found

    def update(self, job: Job) -> None:
        """Apply what squeue lists."""
        self._job, self.job_id, self.missed, self._polled_at = job, job.job_id, 0, time.monotonic()
        if job.state in _RUNNING:
            self._started.set()
        elif job.state not in _WAITING:
            self._executor.settle(self)

    async def settle(self, state: str) -> None:
        """Find out how the attempt ended; `state` is Slurm's last, or empty if Slurm has forgotten the job."""
        self._report = report = await asyncio.to_thread(NodeReport.read, self.stdout.parent, self.mark)
        if report is not None and report.exit_code is not None:
            self._started.set()  # it was over before a poll saw it run
        where = f" on {self.node}" if self.node else ""
        if state == "PREEMPTED":
            self._ending = EngineEnding(f"preempted by Slurm{where}", PREEMPTED)
        elif report is not None and report.is_interruption:
            self._ending = EngineEnding(report.problem, NODE_LOST)
        elif state in _BY_SLURM:
            self._ending = None if self._is_being_ended else EngineEnding(_BY_SLURM[state])
        elif not state and report is not None and report.was_told_to_end:
            # A job that slurmctld had not saved when it died: its node ends it when slurmctld is back.
            if not self._is_being_ended:
                self._ending = EngineEnding(f"Slurm no longer knows its job {self.job_id}, and ended it", NODE_LOST)
        elif report is None and (
            state in _LOST or not await asyncio.to_thread(self._executor.has_launch, self.mark)
        ):  # without its launch, its guard has started, and was killed before it could report
            what = _LOST.get(state, _KILLED).format(job=self.job_id, where=where, state=state)
            self._ending = EngineEnding(what, NODE_LOST)
            # Slurm has lost sight of the node, which may be alive: never start the next attempt beside this one.
            await ForeignWorker(NO_PROCESS, self.mark, self.stdout).wait()
        elif report is None:
            output = await asyncio.to_thread(_last_lines, self.stdout.with_name(_LOG))
            self._ending = EngineEnding(f"its job {self.job_id} ended ({state}{where}) without running it: {output}")
        await asyncio.to_thread(self._executor.discard_launch, self.mark)
        self._ended.set()

    def has_left_traces(self) -> bool:
        """Return whether a guard has started it: it reported, or processes still write (in a thread)."""
        return NodeReport.read(self.stdout.parent, self.mark) is not None or is_held(self.stdout)

    @property
    def is_over(self) -> bool:
        """Return whether its end is being found out or known."""
        return self._is_settling or self._ended.is_set()

    def begin_to_settle(self) -> str:
        """Note that the poll has seen its end; return Slurm's last state if it still lists the job."""
        self._is_settling = True
        return self._job.state if self._job is not None and not self.missed else ""

    # -- the contract

    async def started(self) -> None:
        """Wait until Slurm runs the job."""
        await self._started.wait()

    @property
    def waits_for(self) -> str:
        """Return Slurm's reason."""
        job, trouble = self._job, self._executor.silence()
        reason = (
            f"{job.state.capitalize()}: {job.reason}" if job is not None and job.reason != "None" else "handed over"
        )
        return f"{self._executor.name}: {trouble or reason}"

    @property
    def node(self) -> str:
        """Return the node of the job."""
        return self._job.node if self._job is not None else ""

    async def wait(self) -> int | None:
        """Wait until the job is over and return the worker's exit code as the guard saw it."""
        await self._ended.wait()
        return self._report.exit_code if self._report is not None else None

    async def stop_tree(self, grace_s: float) -> bool:
        """Let the guard end the tree, then let Slurm end the job; return whether it is over."""
        if self._ended.is_set():
            return True
        deadline, next_try = time.monotonic() + grace_s + _FORCE_AFTER_S, 0.0
        self._is_being_ended = self._is_being_ended or not self.is_over
        if not self.is_over and await self._executor.withdraw(self):
            self._is_settling = True
            self._ended.set()  # no job can start it any more, whether Slurm answers now or not
            return True
        with self._executor.polling_closely():
            while not self._ended.is_set():
                now = time.monotonic()
                if now > deadline + _GIVE_UP_AFTER_S:
                    return False
                if now >= next_try:
                    next_try = now + _REPEAT_S
                    await self._executor.end_job(self, by_force=now > deadline)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _CLOSE_POLL_S)
        return True

    @property
    def engine_ending(self) -> EngineEnding | None:
        """Return why Slurm ended it."""
        return self._ending

    async def pause_tree(self) -> None:
        """Let the guard stop the tree."""
        await self._executor.signal_guard(self, "USR1")

    async def continue_tree(self) -> None:
        """Let the guard continue the tree."""
        await self._executor.signal_guard(self, "USR2")

    def is_stopped(self) -> bool:
        """Return whether an administrator has suspended the job."""
        return self._job is not None and self._job.state in ("SUSPENDED", "STOPPED")

    @property
    def state(self) -> str:
        """Return Slurm's last state of the job; empty before the first poll."""
        return self._job.state if self._job is not None else ""

    def elapsed_s(self) -> float:
        """Return how long the job runs, by Slurm's clock."""
        if self._job is None or not self._started.is_set():
            return 0.0
        return self._job.elapsed_s + time.monotonic() - self._polled_at

    def limit_hit(self) -> str | None:
        """Return why the guard ended it, once it has."""
        report = self._report
        return report.problem or None if report is not None and not report.is_interruption else None

    def close(self) -> None:
        """Stop polling for it."""
        self._executor.forget(self)


class SlurmExecutor:
    """Hands runs over to Slurm."""

    type = "slurm"

    def __init__(self, name: str, settings: SlurmSettings, config_home: Path) -> None:
        self.name, self.settings, self.max_submitted = name, settings, settings.max_submitted
        self._config_home = config_home
        self._workers: dict[str, SlurmWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._close_watchers = 0
        self._threads = StartedThreads(_CONCURRENT_COMMANDS, f"executor {name}")
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._silence, self._refusal, self._refused_until = "", "", 0.0

    # -- the contract

    def trouble(self) -> str:
        """Return why Slurm accepts no job now."""
        return f"{self.name}: {self._refusal}" if time.monotonic() < self._refused_until else ""

    async def submit(self, launch: Launch) -> Worker:
        """Submit the job; whatever becomes of the answer, the run is started once or not at all."""
        worker = SlurmWorker(self, launch.mark, launch.stdout, "")
        file = launch_file(self._config_home, launch.mark)
        await asyncio.to_thread(offer, file, launch)
        try:
            answer = await self._run(*self._sbatch(worker.name, launch), script=_script(self._python, file))
            worker.job_id = answer.split(";")[0].strip()  # ID[;CLUSTER]
        except EngineUnavailable as error:
            if await self.withdraw(worker):
                self._refusal, self._refused_until = str(error), time.monotonic() + _RETRY_S
                if isinstance(error, _Refused) and not _MAY_WORK_LATER.search(str(error)):
                    self._refused_until = 0.0  # only this run is refused
                    raise SpawnFailed(f"{self.name} does not accept it: {error}") from error
                raise EngineUnavailable(f"{self.name}: {error}") from error
            logger.info("run %s was submitted, although sbatch reported: %s", launch.run_id, error)
        return self._follow(worker)

    async def attach(self, attempt: Attempt) -> Worker | None:
        """Return the worker of a job that an earlier daemon submitted, or None if there is none and none will start."""
        if not attempt.mark:
            return None
        worker = SlurmWorker(self, attempt.mark, attempt.stdout, attempt.job_id)
        if not attempt.job_id and not await self._is_submitted(worker):
            return None
        return self._follow(worker)

    async def withdraw(self, worker: SlurmWorker) -> bool:
        """Take back the launch of a worker, so that no job starts it; return False if a job has."""
        if not await asyncio.to_thread(withdraw, launch_file(self._config_home, worker.mark)):
            return False
        self._spawn(self._cancel_by_name(worker.name))
        return True

    async def _is_submitted(self, worker: SlurmWorker) -> bool:
        """Return whether a submission was accepted and its answer lost; otherwise make sure that none will be."""
        await asyncio.to_thread(_end_submission, worker.name)
        job = (await self._query()).get(worker.name)
        if job is not None and job.state in _WAITING | _RUNNING:
            return True
        if await self.withdraw(worker):
            return False
        return await asyncio.to_thread(worker.has_left_traces)

    async def machines(self) -> Machines:
        """Return the nodes (of the partition, if one is set) and how many jobs wait."""
        where = [f"--partition={self.settings.partition}"] if self.settings.partition else []
        columns = ("NodeList", "StateLong", "CPUsState", "Memory", "Gres", "GresUsed")
        try:
            lines, pending = await asyncio.gather(
                self._run("sinfo", "--noheader", "--Node", f"--Format={_columns(columns)}", *where),
                self._run("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i", *where),
            )
        except EngineUnavailable as error:
            return Machines(problem=str(error))
        nodes = {node.name: node for line in lines.splitlines() if (node := self._node(line)) is not None}
        problem = "" if nodes else f"sinfo lists no node{' of partition ' + self.settings.partition if where else ''}"
        return Machines(tuple(nodes.values()), len(pending.split()), problem)

    def close(self) -> None:
        """Stop polling; jobs keep running."""
        for task in (*self._tasks, *([self._polling] if self._polling is not None else [])):
            task.cancel()
        for process in tuple(self._processes):
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- polling: one squeue for all runs

    def _follow(self, worker: SlurmWorker) -> SlurmWorker:
        self._workers[worker.name] = worker
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name=f"poll of {self.name}")
        return worker

    def forget(self, worker: SlurmWorker) -> None:
        """Stop polling for this worker."""
        self._workers.pop(worker.name, None)

    @contextmanager
    def polling_closely(self) -> Iterator[None]:
        """Poll more often while a caller waits."""
        self._close_watchers += 1
        self._nudge.set()
        try:
            yield
        finally:
            self._close_watchers -= 1

    async def _poll(self) -> None:
        while self._workers:
            try:
                await self._refresh()
            except Exception:
                # Boundary of the poll: no answer of Slurm, however odd, may leave the other runs unobserved.
                logger.exception("%s: the answer of squeue cannot be used; will retry", self.name)
            with suppress(TimeoutError):
                pace_s = _CLOSE_POLL_S if self._close_watchers else self.settings.poll_s
                await asyncio.wait_for(self._nudge.wait(), max(pace_s, _CLOSE_POLL_S))
                await asyncio.sleep(_CLOSE_POLL_S)
            if not self._close_watchers:
                self._nudge.clear()

    async def _refresh(self) -> None:
        asked = list(self._workers.values())
        try:
            jobs = await self._query()
        except EngineUnavailable as error:
            if not self._silence:
                logger.warning("%s does not answer; its runs keep running: %s", self.name, error)
            self._silence = f"Slurm does not answer: {error}"
            return
        self._silence = ""
        for worker in asked:
            if worker.is_over:
                continue
            if (job := jobs.get(worker.name)) is not None:
                worker.update(job)
            else:
                worker.missed += 1
                if worker.missed >= _MISSED_POLLS:
                    self.settle(worker)

    def has_launch(self, mark: str) -> bool:
        """Return whether no job has taken the launch of this attempt (in a thread)."""
        return launch_file(self._config_home, mark).exists()

    def discard_launch(self, mark: str) -> None:
        """Remove the launch of an attempt that is over, which may have ended before a job took it (in a thread)."""
        discard(launch_file(self._config_home, mark))

    def silence(self) -> str:
        """Return why Slurm does not answer, or an empty text."""
        return self._silence

    def settle(self, worker: SlurmWorker) -> None:
        """Find out how a worker ended."""
        self._spawn(self._settle(worker, worker.begin_to_settle()))

    async def _settle(self, worker: SlurmWorker, state: str) -> None:
        await worker.settle(state or await self._state_in_accounting(worker.job_id))

    async def _query(self) -> dict[str, Job]:
        """Return the jobs of this user by name, also those that ended within Slurm's MinJobAge (minutes)."""
        who = f"--user={os.getuid()}"
        lines = await self._run("squeue", "--noheader", "--states=all", f"--Format={_columns(_FIELDS)}", who)
        found = [job for line in lines.splitlines() if (job := Job.of_line(line)) is not None]
        return {job.name: job for job in found if job.name.startswith(_NAME_PREFIX)}

    async def _state_in_accounting(self, job_id: str) -> str:
        """Return the last state of a job that squeue has forgotten; empty where there is no accounting."""
        if not job_id:
            return ""
        try:
            lines = await self._run(
                "sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "-j", job_id
            )
        except EngineUnavailable:
            return ""
        words = lines.split()
        return words[0] if words else ""  # "CANCELLED by 1000"

    # -- jobs

    @property
    def _python(self) -> str:
        return str(self.settings.python or sys.executable)

    def _sbatch(self, name: str, launch: Launch) -> list[str]:
        settings = self.settings
        log = str(launch.stdout.with_name(_LOG)).replace("%", "%%")
        minutes = launch.max_wallclock_minutes
        options = {
            "--job-name": name,
            "--chdir": "/",
            "--input": "/dev/null",
            "--output": log,
            "--open-mode": "append",
            "--nodes": "1",
            "--ntasks": "1",
            "--cpus-per-task": str(max(1, math.ceil(launch.cpus))),
            "--mem": f"{launch.memory_mb}M" if launch.memory_mb else "",
            "--time": str(math.ceil(minutes) + _MINUTES_OF_GRACE) if minutes else "",
            "--gres": f"{settings.gres}:{launch.gpus}" if launch.gpus else "",
            "--partition": settings.partition,
            "--account": settings.account,
            "--qos": settings.qos,
        }
        given = [f"{option}={value}" for option, value in options.items() if value]
        return ["sbatch", "--parsable", "--no-requeue", *given, *settings.options]

    async def end_job(self, worker: SlurmWorker, *, by_force: bool) -> None:
        """Ask a job to end: its guard if it runs, Slurm if it waits or takes too long."""
        try:
            if not worker.job_id:
                await self._cancel_by_name(worker.name)
            elif by_force:
                await self._run("scancel", "--quiet", worker.job_id)
            else:
                if worker.state not in _RUNNING:
                    await self._run("scancel", "--quiet", "--state=PENDING", worker.job_id)
                await self._run("scancel", "--quiet", "--batch", "--signal=TERM", worker.job_id)
        except EngineUnavailable as error:
            logger.info("job %s cannot be ended now; will retry: %s", worker.job_id, error)

    async def signal_guard(self, worker: SlurmWorker, signal_name: str) -> None:
        """Send a signal to the guard of a running job."""
        try:
            await self._run("scancel", "--quiet", "--batch", f"--signal={signal_name}", worker.job_id)
        except EngineUnavailable as error:
            raise NotPossibleNow(f"{self.name} does not carry it out: {error}; try again later") from error

    async def _cancel_by_name(self, name: str) -> None:
        with suppress(EngineUnavailable):  # without its launch the job does nothing
            await self._run("scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}")

    def _node(self, line: str) -> Node | None:
        values = [value.strip() for value in line.split("|")]
        if len(values) <= 5:
            return None
        name, state, cpus, memory, gres, used = values[:6]
        counts = [int(count) if count.isdigit() else 0 for count in cpus.split("/")]
        if len(counts) != 4:  # allocated/idle/other/total
            return None
        kind = self.settings.gres.partition(":")[0]
        gpus, taken = _count_of(kind, gres), _count_of(kind, used)
        return Node(
            name, state, counts[3], counts[1], int(memory) if memory.isdigit() else 0, gpus, max(0, gpus - taken)
        )

    # -- commands

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, program: str, *arguments: str, script: str = "") -> str:
        """Run a command of Slurm and return its output; raise EngineUnavailable with its message."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run_in_thread, (program, *arguments), script)

    def _run_in_thread(self, argv: Sequence[str], script: str) -> str:
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        try:
            process = subprocess.Popen(
                argv,
                env={**variables, "LC_ALL": "C"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            remedy = "install Slurm's client programs here, or add their folder to the daemon's PATH"
            raise EngineUnavailable(f"{argv[0]} cannot be started ({error.strerror}): {remedy}") from error
        restore_limits(process.pid)
        with process:
            self._processes.add(process)
            try:
                output, errors = process.communicate(script.encode(), _COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise EngineUnavailable(f"{argv[0]} did not answer within {_COMMAND_S:g} s") from None
            finally:
                self._processes.discard(process)
        if process.returncode:
            text = " ".join(errors.decode(errors="replace").split())[-500:]
            raise _Refused(text or f"{argv[0]} ended with exit code {process.returncode}")
        return output.decode(errors="replace")


def _script(python: str, file: Path) -> str:
    guard = (python, "-P", "-m", "gym_gui.services.trainer.executors.guard", str(file))
    return f"#!/bin/sh\nexec {shlex.join(guard)}\n"


def _last_lines(log: Path) -> str:
    try:
        with open_plain(log) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return " ".join(stream.read().decode(errors="replace").split()) or f"{log} is empty"
    except OSError as error:
        return f"{log} cannot be read ({error.strerror}); do the nodes share this disk?"


def _columns(names: tuple[str, ...]) -> str:
    return ",".join(f"{name}:|" for name in names)


def _count_of(kind: str, gres: str) -> int:
    """Return how many of a resource `gpu:a100:4(S:0-1),…` names."""
    return sum(int(count) for count in re.findall(rf"\b{re.escape(kind)}(?::[^:,()]+)?:(\d+)", gres))


def _end_submission(name: str) -> None:
    """End an sbatch that an earlier daemon left running: it might submit the job after it was looked for."""
    option = f"--job-name={name}".encode()
    left: list[ProcessIdentity] = []
    for stat in read_process_table().values():
        with suppress(OSError):
            if option in Path(f"/proc/{stat.pid}/cmdline").read_bytes().split(b"\0"):
                left.append(ProcessIdentity.from_stat(stat))
    for process in left:
        send_signal(process, 9)
    if left:
        time.sleep(1)  # slurmctld may still be handling the request
