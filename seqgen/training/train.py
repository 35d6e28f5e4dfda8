"""``train``: trains a model in one process or several, and writes the run folder.

If it starts the processes itself, it waits for them, and reports which one failed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from seqgen.config import TrainConfig
from seqgen.config.user_files import components_in_use, import_modules, modules_of, user_modules
from seqgen.config.values import from_dict, to_dict
from seqgen.data.token_store import available_cores
from seqgen.errors import ResourceError, UserError
from seqgen.registry import TASKS
from seqgen.system.devices import keep_freed_memory, out_of_memory
from seqgen.system.files import RunLock
from seqgen.system.processes import HANGUP, Child, NotedSignals, answering, receive_signals, sendable
from seqgen.task import Task
from seqgen.training.distributed import LostRanksError, ProcessGroup, group_from_environment, join, leave
from seqgen.training.training_loop import TrainingRun

_NOTE = b"\nstopping after this update and saving; a second signal stops immediately\n"


class StopSignals(NotedSignals):
    """Notes signals, and says that training stops after the update.

    Args:
        second_ends: whether a second signal ends the process immediately. False for a process that may get one request
            twice: from the terminal, and from the launcher, which forwards its signals.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        super().__init__()
        self.second_ends = second_ends

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            _leave_terminal()
        if self.received and not self.second_ends:
            return
        note = _NOTE if self.second_ends else b""  # otherwise the launcher prints it
        if self.received:
            note = b"\x1b[?25h" if os.isatty(2) else b""  # the bar hides the cursor
        with contextlib.suppress(OSError):
            os.write(2, note)
        super()._handle(number, frame)


def _leave_terminal() -> None:
    """Redirect output to the null device, since writing to a closed terminal raises an error."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(nowhere.fileno(), descriptor)


GRACE = 5.0
"""Seconds to wait for the other processes after one has failed: the first failure reported may be a consequence."""


def _launch(cfg: TrainConfig, folder: Path, device: torch.device, lock: RunLock | None = None) -> int:
    """Train in ``distributed_world_size`` processes on this machine; see ``train.train``.

    Args:
        cfg: the whole configuration.
        folder: the run's folder, in which the task is set up.
        device: where to compute; for CUDA, each process uses the device with the number of its rank.
        lock: the folder's lock, which is passed to rank 0, the process that writes.

    Returns:
        The exit code of rank 0.

    Raises:
        UserError: as in one process.
        ResourceError: a process died or does not answer.
        RuntimeError: the code of a model, task, ... failed in a process.
    """
    world_size = cfg.distributed_training.distributed_world_size
    if device.type == "cuda" and world_size > torch.cuda.device_count():
        raise UserError(
            f"distributed_training.distributed_world_size={world_size}: there are {torch.cuda.device_count()} CUDA "
            "devices"
        )
    modules = [*user_modules(), *modules_of(entry.component for _, entry in components_in_use(cfg))]
    threads = max(1, (cfg.common.threads or available_cores()) // world_size)
    job = {"plain": to_dict(cfg), "folder": folder, "device": str(device), "threads": threads, "port": _free_port()}
    children: list[Child] = []
    failed = True
    with StopSignals() as signals:
        try:
            for rank in range(world_size):
                group = ProcessGroup(rank, world_size)
                children.append(Child(_work, (modules, job, group, lock if rank == 0 else None)))
            results = _wait(children, signals)
            if any(isinstance(result, Exception) for result in results.values()):
                raise _cause(results, world_size)
            failed = False
        finally:
            for child in children:
                if not failed:
                    child.process.join(GRACE)
                child.kill()
    return signals.exit_code if results[0] and signals.received else int(results[0])


def _wait(children: Sequence[Child], signals: StopSignals) -> dict[int, Any]:
    """Wait for the results of the processes, and forward signals to them.

    Returns:
        For each rank, an exit code or an exception. After an exception that is the cause, results of the other ranks
        are not awaited; after one that may be a consequence, at most ``GRACE`` seconds.
    """
    results: dict[int, Any] = {}
    passed_on, deadline = False, float("inf")
    while len(results) < len(children) and time.monotonic() < deadline:
        waiting = [child for rank, child in enumerate(children) if rank not in results]
        for child in answering(waiting, 0.5):
            rank = children.index(child)
            results[rank] = result = _result(child, rank, len(children))
            if isinstance(result, LostRanksError):
                deadline = min(deadline, time.monotonic() + GRACE)
            elif isinstance(result, Exception):
                deadline = 0.0
        if signals.received and not passed_on:
            passed_on = True
            for child in children:
                child.process.terminate()
    return results


def _result(child: Child, rank: int, processes: int) -> Any:
    """The value that a process has sent; if it has died, an exception that says so."""
    try:
        return child.pipe.recv()
    except (EOFError, OSError):
        return ResourceError(
            f"training process {rank} of {processes} {child.ended(GRACE)}; all processes were stopped; run the same "
            "command again to continue from the last checkpoint"
        )


def _cause(results: Mapping[int, Any], processes: int) -> Exception:
    """The failure that is the cause of the others."""
    failures = [result for result in results.values() if isinstance(result, Exception)]
    causes = [failure for failure in failures if not isinstance(failure, LostRanksError)]
    silent = [rank for rank in range(processes) if rank not in results]
    if silent and not causes:
        which = f"process {silent[0]}" if len(silent) == 1 else f"processes {', '.join(map(str, silent))}"
        return ResourceError(
            f"training {which} of {processes} did not answer within distributed_training.timeout seconds; all "
            "processes were stopped; run the same command again to continue from the last checkpoint"
        )
    return (causes or failures)[0]


def _work(
    pipe: Connection, modules: list[tuple[str, str]], job: dict[str, Any], group: ProcessGroup, lock: RunLock | None
) -> None:
    """Main function of a started process: train, and send the exit code or the exception through the pipe."""
    with StopSignals(second_ends=False) as signals:
        receive_signals()
        if lock is not None:
            lock.sign()
        pipe.send(_train(modules, job, group, signals))
    leave()


def _train(modules: list[tuple[str, str]], job: dict[str, Any], group: ProcessGroup, signals: StopSignals) -> Any:
    """Train; return the exit code, or an exception that can be pickled."""
    try:
        import_modules(modules)
        cfg = from_dict(TrainConfig, job["plain"], "configuration")
        device = torch.device(job["device"])
        if device.type == "cuda":
            device = torch.device("cuda", group.rank)
            torch.cuda.set_device(device)
        torch.set_num_threads(job["threads"])
        if cfg.common.keep_freed_memory:
            keep_freed_memory()
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        join(group, cfg.distributed_training, device)
        task = TASKS.of(cfg.task).component.setup_task(cfg.task, job["folder"])  # type: ignore[attr-defined]
        return TrainingRun(cfg, task, job["folder"], device, group, signals).run()
    except LostRanksError as error:
        return error
    except Exception as error:
        if out_of_memory(error) and not isinstance(error, UserError):
            return MemoryError(f"training process {group.rank}: {error}")
        return sendable(error, f"training process {group.rank} failed")


def _free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def train(
    cfg: TrainConfig, task: Task, folder: Path, device: torch.device | str = "cpu", lock: RunLock | None = None
) -> int:
    """Train a model into a run folder, or resume the run in it.

    The caller holds the folder's lock and has written its ``config.yaml``. With ``distributed_world_size`` above 1,
    that many processes are started on this machine; under ``torchrun`` or ``srun``, this process joins the group.

    Args:
        cfg: the whole configuration.
        task: the task, set up in the folder.
        folder: the run's folder.
        device: where to compute.
        lock: the folder's lock; if several processes are started, rank 0 gets it.

    Returns:
        The exit code: 0 if training ended as configured; 130, 143 or 129 if SIGINT, SIGTERM or SIGHUP stopped it after
        saving, so that the same command resumes it.

    Raises:
        UserError: the configuration or the data cannot be used, a checkpoint is damaged, the disk is full, memory runs
            out, a process dies, or the loss is not finite.
    """
    device = torch.device(device)
    group = group_from_environment()
    if cfg.distributed_training.distributed_world_size > 1 and group.world_size == 1:
        for split in (cfg.dataset.train_subset, cfg.dataset.valid_subset):
            task.dataset(split)  # encodes the text once, instead of once in each process
        return _launch(cfg, folder, device, lock)
    join(group, cfg.distributed_training, device)
    try:
        with StopSignals(second_ends=group.world_size == 1) as signals:  # torchrun sends a second signal
            try:
                return TrainingRun(cfg, task, folder, device, group, signals).run()
            except LostRanksError:
                if _told_to_end(signals):  # torchrun ends all because of the error of one, which has been shown
                    return signals.exit_code
                raise
    finally:
        leave()


def _told_to_end(signals: StopSignals) -> bool:
    """True if a signal asks this process to end, now or within ``GRACE`` seconds."""
    deadline = time.monotonic() + GRACE
    while not signals.received and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(signals.received)
