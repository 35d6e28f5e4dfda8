"""``engine=ray``: workers are actors of Ray, on any number of machines; those that die are replaced.

Each node of the cluster gets the same number of actors, or as many as it has cores and GPUs for, also a node that joins
while the job is running. When a node dies, its actors' pieces are decoded by others. All files are read and written by
the process that started the job; the other machines need seqgen, and the models under the same path.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
import time
from typing import Any

from seqgen.addons.jobs.workers import STARTS, Builder, Decoding, Event, Piece, Workers
from seqgen.extend import ConfigError, ResourceError

NODES_SECONDS = 2.0
"""Seconds between two looks at the nodes of the cluster."""
CONNECT_SECONDS = 10.0
"""Seconds to wait for the machine at the address of a cluster."""
NO_ACTOR_SECONDS = 120.0
"""Seconds without a node that can hold an actor, after which the job stops."""


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


class RayWorkers(Workers):
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

    kind = "an actor"
    advice = "choose a smaller ray.actors_per_node, or see the logs of Ray"

    def __init__(self, build: Builder, address: str, per_node: int, limit: int, gpus: float, cpus: float):
        super().__init__(build)
        self._ray = _connected(address)
        self._per_node, self._limit, self._gpus, self._cpus = per_node, limit, gpus, cpus
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
                if self._limit and len(self._workers) >= self._limit:
                    break
                if not any((actor.node, actor.number) == (node, number) for actor in self._workers):
                    self._workers.append(self._started(node, number))
        if self._workers:
            self._had_actors = time.monotonic()
        elif time.monotonic() - self._had_actors > NO_ACTOR_SECONDS:
            raise ResourceError(
                f"no node of the Ray cluster has {self._cpus:g} CPU cores and {self._gpus:g} GPUs for an actor; choose "
                "smaller ray.cpus and ray.gpus, or add nodes, and run the same command again"
            )

    def _rooms(self) -> dict[str, int]:
        """The number of actors that each node has cores and GPUs for, by its ID; Ray would let more of them wait."""
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
        )(Decoding)
        return _Actor(node, number, actor_class.remote(*self._arguments, number))

    def _send(self, worker: _Actor, piece: Piece) -> None:
        worker.call = worker.handle.decode.remote(piece)

    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens; see ``Workers``."""
        calls = {actor.call: actor for actor in self._workers if actor.call is not None}
        if not calls:
            time.sleep(min(seconds, 0.1))
        done, _ = self._ray.wait(list(calls), timeout=seconds) if calls else ([], [])
        events = [self._returned(calls[call]) for call in done]
        self._look_at_nodes()
        return events

    def _returned(self, actor: _Actor) -> Event:
        """The event that the awaited call of an actor has returned."""
        try:
            result = self._ray.get(actor.call)
        except self._ray.exceptions.RayError as error:
            return self._lost(actor, error)
        actor.call = None
        return self._result(actor, result)

    def _lost(self, actor: _Actor, error: Exception) -> Event:
        """Forget an actor; another one is started, if its node is alive."""
        self._workers.remove(actor)
        self._looked = float("-inf")
        return self._died(actor, f"ended ({_cause(error)})", STARTS * self._per_node)  # a node's actors die at once

    def notes(self) -> list[str]:
        """Notes for the user on the cluster and its actors."""
        found = []
        if not self._gpus and self._ray.cluster_resources().get("GPU", 0.0) > 0:
            found.append(
                "the Ray cluster has GPUs, which the actors do not use; to use them, set ray.gpus=1 or a fraction"
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
        for actor in self._workers:
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
    except Exception as error:  # Ray has no class for a node that does not start in time
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        ray.shutdown()
        if address:
            raise ConfigError(f"ray.address={address}: Ray cannot be reached: {reason}") from None
        raise ResourceError(
            f"Ray does not start on this machine ({reason}); run the same command again when the machine is less "
            "busy, or remove engine=ray"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray installs a handler
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
