"""Starting the processes of a run that trains in several of them."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from seqgen.compose import from_dict, to_dict
from seqgen.config import TrainConfig
from seqgen.errors import UserError
from seqgen.registry import CRITERIA, LR_SCHEDULERS, MODELS, OPTIMIZERS, TASKS
from seqgen.training.distributed import Peers, join, leave
from seqgen.training.signals import StopSignals


def launch(cfg: TrainConfig, folder: Path, device: torch.device) -> int:
    """Train in ``distributed_world_size`` processes on this machine; see ``training_loop.train``.

    Args:
        cfg: the whole configuration.
        folder: the run's folder, in which the task is set up.
        device: where to compute; each process takes the CUDA device of its own rank.

    Returns:
        The exit code of the first process.

    Raises:
        UserError: as in one process.
        RuntimeError: a process died.
    """
    world_size = cfg.distributed_training.distributed_world_size
    if device.type == "cuda" and world_size > torch.cuda.device_count():
        raise UserError(
            f"distributed_training.distributed_world_size={world_size}: there are {torch.cuda.device_count()} CUDA "
            "devices"
        )
    groups = {TASKS: cfg.task, MODELS: cfg.model, CRITERIA: cfg.criterion}
    groups |= {OPTIMIZERS: cfg.optimizer, LR_SCHEDULERS: cfg.lr_scheduler}
    modules = modules_of(registry.of(part).component for registry, part in groups.items())
    threads = max(1, (cfg.common.threads or len(os.sched_getaffinity(0))) // world_size)
    job = {"plain": to_dict(cfg), "folder": folder, "device": str(device), "threads": threads, "port": _free_port()}
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    with StopSignals() as signals:
        for rank in range(world_size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, modules, job, Peers(rank, world_size)))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        return _wait(processes, pipes, signals)


def _wait(processes: list[BaseProcess], pipes: list[Connection], signals: StopSignals) -> int:
    """Wait for all processes, pass on a signal, and end the others when one fails."""
    results: dict[int, Any] = {}
    passed_on = False
    try:
        while len(results) < len(processes):
            waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
            for rank in [pipes.index(pipe) for pipe in wait(waiting, timeout=0.5) if isinstance(pipe, Connection)]:
                try:
                    results[rank] = pipes[rank].recv()
                except EOFError:
                    results[rank] = RuntimeError(f"training process {rank} died")
                if isinstance(results[rank], Exception):
                    raise results[rank]
            if signals.received and not passed_on:
                passed_on = True
                for process in processes:
                    if process.pid is not None:
                        os.kill(process.pid, signal.SIGTERM)
    finally:
        for process in processes:
            if len(results) < len(processes) or any(isinstance(result, Exception) for result in results.values()):
                process.kill()
            process.join()
    return signals.exit_code if results[0] and signals.received else int(results[0])


def _work(pipe: Connection, modules: list[tuple[str, str]], job: dict[str, Any], peers: Peers) -> None:
    """What a started process does; it answers with the exit code or the exception."""
    from seqgen.training.training_loop import TrainingRun

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent passes on what it gets
    try:
        import_modules(modules)
        cfg = from_dict(TrainConfig, job["plain"], "configuration")
        device = torch.device(job["device"])
        if device.type == "cuda":
            device = torch.device("cuda", peers.rank)
            torch.cuda.set_device(device)
        torch.set_num_threads(job["threads"])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        join(peers, cfg.distributed_training.distributed_backend, device)
        with StopSignals() as signals:
            task = TASKS.of(cfg.task).component.setup_task(cfg.task, job["folder"])  # type: ignore[attr-defined]
            answer: Any = TrainingRun(cfg, task, job["folder"], device, peers, signals).run()
    except UserError as error:
        answer = UserError(str(error))
    except Exception as error:
        import traceback

        answer = RuntimeError(f"training process {peers.rank} failed: {error!r}\n{traceback.format_exc()}")
    finally:
        leave()
    pipe.send(answer)


def _free_port() -> int:
    """A TCP port of this machine that nobody uses at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def modules_of(components: Iterable[type]) -> list[tuple[str, str]]:
    """Where classes are defined, so that a new process can import them though their folder is on no path.

    Args:
        components: the classes.

    Returns:
        Name and file of each module, a package before what is in it.
    """
    found: dict[str, str] = {}
    for component in components:
        parts = component.__module__.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            found[name] = str(getattr(sys.modules.get(name), "__file__", "") or "")
    return list(found.items())


def import_modules(modules: Iterable[tuple[str, str]]) -> None:
    """Import what ``modules_of`` found in another process, by name or else from the file."""
    for name, file in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            _import_file(name, Path(file))


def _import_file(name: str, file: Path) -> None:
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {name} from {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
