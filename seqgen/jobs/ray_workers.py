"""``engine=ray``: workers are actors of Ray, on any number of machines; those that die are replaced.

Each node of the cluster gets the same number of actors, or as many as it has cores and GPUs for, also a node that joins
while the job is running. When a node dies, its actors' pieces are decoded by others. All files are read and written by
the process that started the job; the other machines need seqgen, and the models under the same path.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from seqgen.config.user_files import import_modules, user_modules
from seqgen.errors import ConfigError, ResourceError
from seqgen.jobs.line_decoder import Builder, Piece, answer
from seqgen.jobs.workers import STARTS, Answered, Died, Event, Ready, start_error

NODES_SECONDS = 2.0
"""Seconds between two looks at the nodes of the cluster."""
CONNECT_SECONDS = 10.0
"""Seconds to wait for the machine at the address of a cluster."""
NO_ACTOR_SECONDS = 120.0
"""The job stops if for so many seconds there is no node that can hold an actor."""


class _Decoding:
    """What an actor does: it loads the models once, and decodes pieces.

    Args:
        modules: the user's own modules, see ``import_modules``.
        build: makes the decoder, pickled.
        number: number of the actor on its node.
    """

    def __init__(self, modules: Sequence[tuple[str, str]], build: bytes, number: int):
        self._modules, self._build, self._number = modules, build, number

    def start(self) -> Ready | Exception:
        """Load the models; return an error that can be pickled, if that fails."""
        try:
            import_modules(self._modules)
            build: Builder = pickle.loads(self._build)
            self._decoder = build(self._number)
        except Exception as error:
            return start_error(error)
        return Ready(self._decoder.fingerprint, tuple(self._decoder.notes))

    def decode(self, piece: Piece) -> Any:
        """Decode a piece; return an error that is not one of its lines."""
        try:
            return answer(self._decoder, piece)
        except ResourceError as error:
            return error


class _Actor:
    """An actor and what it is doing.

    Attributes:
        node: ID of its node.
        ready: whether it has loaded the models.
        piece: what it decodes; ``None`` if it waits.
        call: the call whose result is awaited; ``None`` if it waits.
    """

    def __init__(self, node: str, number: int, handle: Any):
        self.node, self.number, self.handle = node, number, handle
        self.ready = False
        self.piece: Piece | None = None
        self.call: Any = handle.start.remote()


class RayWorkers:
    """Actors on the nodes of a Ray cluster; see ``Workers``.

    Args:
        build: makes the decoder of each actor.
        address: address of the cluster; empty to start Ray on this machine.
        per_node: number of actors on each node; fewer on one that has not enough cores or GPUs.
        limit: largest number of actors; 0 for no limit.
        gpus: GPUs of each actor; fractions are possible.
        cpus: CPU cores of each actor.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
        ResourceError: Ray cannot be started here, or the cluster has no node for an actor.
    """

    def __init__(self, build: Builder, address: str, per_node: int, limit: int, gpus: float, cpus: float):
        self._ray = _connected(address)
        self._arguments = user_modules(), pickle.dumps(build)
        self._per_node, self._limit, self._gpus, self._cpus = per_node, limit, gpus, cpus
        self._actors: list[_Actor] = []
        self._failed_starts = 0
        self._looked = self._had_actors = float("-inf")  # a cluster that has no node for an actor now is refused
        try:
            self._look_at_nodes()
        except BaseException:
            self.close()
            raise

    def _look_at_nodes(self) -> None:
        """Start the actors that are missing on the nodes that are alive."""
        if time.monotonic() - self._looked < NODES_SECONDS:
            return
        self._looked = time.monotonic()
        rooms = self._rooms()
        for number in range(self._per_node):
            for node in (node for node, room in rooms.items() if number < room):
                if self._limit and len(self._actors) >= self._limit:
                    break
                if not any((actor.node, actor.number) == (node, number) for actor in self._actors):
                    self._actors.append(self._started(node, number))
        if self._actors:
            self._had_actors = time.monotonic()
        elif time.monotonic() - self._had_actors > NO_ACTOR_SECONDS:
            raise ResourceError(
                f"no node of the Ray cluster has {self._cpus:g} CPU cores and {self._gpus:g} GPUs for an actor; choose "
                "smaller ray.cpus and ray.gpus, or add nodes, and run the same command again"
            )

    def _rooms(self) -> dict[str, int]:
        """How many actors each node has cores and GPUs for, by its ID; Ray would let further ones wait for ever."""
        needs = {"CPU": self._cpus, "GPU": self._gpus}
        try:
            nodes = self._ray.nodes()
        except self._ray.exceptions.RayError as error:
            raise ResourceError(
                f"the Ray cluster does not answer ({_cause(error)}); run the same command again"
            ) from None
        return {
            node["NodeID"]: min(
                (int(node["Resources"].get(name, 0.0) / need + 1e-9) for name, need in needs.items() if need),
                default=self._per_node,
            )
            for node in nodes
            if node["Alive"]
        }

    def _started(self, node: str, number: int) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor_class = self._ray.remote(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )(_Decoding)
        return _Actor(node, number, actor_class.remote(*self._arguments, number))

    def free(self) -> bool:
        """Whether an actor waits for a piece."""
        return any(actor.ready and actor.piece is None for actor in self._actors)

    def give(self, piece: Piece) -> None:
        """Let an actor that waits decode a piece."""
        actor = next(actor for actor in self._actors if actor.ready and actor.piece is None)
        actor.piece, actor.call = piece, actor.handle.decode.remote(piece)

    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens; see ``Workers``."""
        calls = {actor.call: actor for actor in self._actors if actor.call is not None}
        if not calls:
            time.sleep(min(seconds, 0.1))
        done, _ = self._ray.wait(list(calls), timeout=seconds) if calls else ([], [])
        events = [event for call in done if (event := self._result(calls[call])) is not None]
        self._look_at_nodes()
        return events

    def _result(self, actor: _Actor) -> Event | None:
        """What the awaited call of an actor has returned."""
        try:
            result = self._ray.get(actor.call)
        except self._ray.exceptions.RayError as error:
            return self._died(actor, error)
        actor.call = None
        if isinstance(result, Exception):
            raise result
        if isinstance(result, Ready):
            actor.ready, self._failed_starts = True, 0
            return result
        piece, actor.piece = actor.piece, None
        return None if piece is None else Answered(piece, result, f"actor {actor.number} of node {actor.node[:8]}")

    def _died(self, actor: _Actor, error: Exception) -> Event:
        """Forget an actor; another one is started, if its node is alive."""
        self._actors.remove(actor)
        self._looked = float("-inf")
        how = f"ended ({_cause(error)})"
        if not actor.ready:
            self._failed_starts += 1
            if self._failed_starts >= STARTS * self._per_node:  # all actors of a node that dies fail at once
                raise ResourceError(
                    f"{self._failed_starts} times in a row an actor {how} while it loaded the models; choose a smaller "
                    "ray.actors_per_node, or see the logs of Ray"
                )
        return Died(actor.piece, how)

    def notes(self) -> list[str]:
        """What the user should know about the cluster and its actors."""
        found = []
        if not self._gpus and self._ray.cluster_resources().get("GPU", 0.0) > 0:
            found.append(
                "the Ray cluster has GPUs, which the actors do not use; to use them, give ray.gpus=1 or a fraction"
            )
        least = min((room for room in self._rooms().values() if room), default=self._per_node)
        if least < self._per_node:
            found.append(
                f"ray.actors_per_node={self._per_node}: a node of the Ray cluster has room for {least} only, with "
                f"ray.cpus={self._cpus:g} and ray.gpus={self._gpus:g} of each actor; smaller values make room for more"
            )
        return found

    def close(self) -> None:
        """End all actors immediately, and Ray if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._ray.shutdown()


def _connected(address: str) -> Any:
    """Ray, connected to a cluster or started here.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
        ResourceError: Ray cannot be started here.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use over the network
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ConfigError("engine=ray needs a package: pip install ray") from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        _check_address(address)
        ray.init(
            address=address or "local",
            logging_level=logging.ERROR,
            log_to_driver=False,
            include_dashboard=None if address else False,
        )
    except Exception as error:  # Ray has no class of its own for a node that does not start in time
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        ray.shutdown()
        if address:
            raise ConfigError(f"ray.address={address}: Ray cannot be reached: {reason}") from None
        raise ResourceError(
            f"Ray does not start on this machine ({reason}); run the same command again when the machine has less to "
            "do, or leave out engine=ray"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray installs its own handler
    return ray


def _check_address(address: str) -> None:
    """Try to reach a cluster, since Ray itself waits for minutes.

    Raises:
        OSError: it cannot be reached.
        ValueError: the address has no port.
    """
    if address in ("", "auto"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("the address is not of the form HOST:PORT")
    socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _cause(error: Exception) -> str:
    """The reason why an actor has ended, without Ray's advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "memory" in line.lower() or "node" in line.lower() or "exit" in line.lower()]
    return f"{type(error).__name__}: {(reasons or lines or ['no reason given'])[0]}"[:300]
