"""Starts the processes of a training run on this machine, waits for them, and reports which one failed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.run_lock import RunLock
from seqgen.config import TrainConfig
from seqgen.config.user_files import components_in_use, import_modules, modules_of, user_modules
from seqgen.config.values import from_dict, to_dict
from seqgen.data.store_builder import available_cores
from seqgen.errors import ResourceError, UserError
from seqgen.registry import TASKS
from seqgen.system.devices import keep_freed_memory, out_of_memory
from seqgen.system.processes import STOPPING, end_with, signals_wait
from seqgen.training.distributed import LostRanksError, ProcessGroup, join, leave
from seqgen.training.signals import StopSignals
from seqgen.training.training_loop import TrainingRun

GRACE = 5.0
"""Seconds to wait for the other processes after one has failed: the first failure reported may be a consequence."""


def launch(cfg: TrainConfig, folder: Path, device: torch.device, lock: RunLock | None = None) -> int:
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
    job["parent"] = os.getpid()
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    patience = 0.0
    with StopSignals() as signals:
        try:
            with signals_wait():
                for rank in range(world_size):
                    process, pipe = _start(modules, job, ProcessGroup(rank, world_size), lock if rank == 0 else None)
                    processes.append(process)
                    pipes.append(pipe)
            results = _wait(processes, pipes, signals)
            if any(isinstance(result, Exception) for result in results.values()):
                raise _cause(results, processes)
            patience = GRACE
        finally:
            _end(processes, patience)
    return signals.exit_code if results[0] and signals.received else int(results[0])


def _start(
    modules: list[tuple[str, str]], job: dict[str, Any], group: ProcessGroup, lock: RunLock | None
) -> tuple[BaseProcess, Connection]:
    """Start a process; return it and the pipe through which it sends its result."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, modules, job, group, lock))
    process.start()
    theirs.close()  # only the process has this end now: if it dies, reading from the pipe raises EOFError
    return process, mine


def _wait(processes: list[BaseProcess], pipes: list[Connection], signals: StopSignals) -> dict[int, Any]:
    """Wait for the results of the processes, and forward signals to them.

    Returns:
        For each rank, an exit code or an exception. After an exception that is the cause, results of the other ranks
        are not awaited; after one that may be a consequence, at most ``GRACE`` seconds.
    """
    results: dict[int, Any] = {}
    passed_on, deadline = False, float("inf")
    while len(results) < len(processes) and time.monotonic() < deadline:
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        for rank in [pipes.index(pipe) for pipe in wait(waiting, timeout=0.5) if isinstance(pipe, Connection)]:
            try:
                results[rank] = pipes[rank].recv()
            except EOFError:
                results[rank] = _death(processes, rank)
            if isinstance(results[rank], LostRanksError):
                deadline = min(deadline, time.monotonic() + GRACE)
            elif isinstance(results[rank], Exception):
                deadline = 0.0
        if signals.received and not passed_on:
            passed_on = True
            for process in processes:
                if process.pid is not None:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(process.pid, signal.SIGTERM)
    return results


def _death(processes: list[BaseProcess], rank: int) -> ResourceError:
    processes[rank].join(GRACE)
    code = processes[rank].exitcode
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        how += (
            ", which the operating system sends when memory runs out" if -code == getattr(signal, "SIGKILL", 0) else ""
        )
    return ResourceError(
        f"training process {rank} of {len(processes)} {how}; all processes were stopped; run the same command "
        "again to continue from the last checkpoint"
    )


def _cause(results: Mapping[int, Any], processes: list[BaseProcess]) -> Exception:
    """The failure that is the cause of the others."""
    failures = [result for result in results.values() if isinstance(result, Exception)]
    causes = [failure for failure in failures if not isinstance(failure, LostRanksError)]
    silent = [rank for rank in range(len(processes)) if rank not in results]
    if silent and not causes:
        which = f"process {silent[0]}" if len(silent) == 1 else f"processes {', '.join(map(str, silent))}"
        return ResourceError(
            f"training {which} of {len(processes)} did not answer within distributed_training.timeout seconds; all "
            "processes were stopped; run the same command again to continue from the last checkpoint"
        )
    return (causes or failures)[0]


def _end(processes: list[BaseProcess], patience: float) -> None:
    """Wait up to ``patience`` seconds for each process to end, then kill it."""
    for process in processes:
        if patience:
            process.join(patience)
        process.kill()
        process.join()


def _work(
    pipe: Connection, modules: list[tuple[str, str]], job: dict[str, Any], group: ProcessGroup, lock: RunLock | None
) -> None:
    """Main function of a started process: train, and send the exit code or the exception through the pipe."""
    end_with(job["parent"])
    with StopSignals(second_ends=False) as signals:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
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
    except UserError as error:
        return UserError(str(error))
    except Exception as error:
        if out_of_memory(error):
            return MemoryError(f"training process {group.rank}: {error}")
        import traceback

        return RuntimeError(f"training process {group.rank} failed: {error!r}\n{traceback.format_exc()}")


def _free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
