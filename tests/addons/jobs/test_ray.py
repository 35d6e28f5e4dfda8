"""``engine=ray`` on a test cluster of several nodes on this machine: the same output whatever dies."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from seqgen.addons.jobs.ray_workers import RayWorkers
from seqgen.core.errors import ConfigError, ResourceError, UserError
from tests.addons.jobs.decoders import Bench, capitals, expected
from tests.addons.jobs.models import FAST, texts, train, write_lines
from tests.addons.jobs.test_jobs import refuse
from tests.commands import command, done

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without cores, and two nodes with two cores each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_actors_and_nodes_that_die(cluster: Any, tmp_path: Path) -> None:
    lines = [f"slow {number}" for number in range(120)]
    lines[77] = "kill"
    bench = Bench(tmp_path, part_lines=20, piece_lines=5)
    bench.write(lines)
    workers = RayWorkers(capitals, cluster.address, per_node=2, limit=0, gpus=0, cpus=1)
    faults: list[Callable[[], object]] = [
        lambda: cluster.add_node(num_cpus=2),
        lambda: cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False),
        lambda: ray.kill(workers._workers[0].handle),
    ]
    nodes = set[str]()

    def check() -> None:
        nodes.update(actor.node for actor in workers._workers)
        if faults and len(job.folder.done) > 3 - len(faults):
            faults.pop()()

    job = bench.job(check)
    with closing(workers):
        merged = bench.run(workers, job)
    assert merged == expected(lines, 77)
    assert not faults
    assert len(nodes) == 3, "the node that joined got actors"
    assert sum(known.failed for known in job.folder.done.values()) == 1
    assert any("another one" in message for message in bench.messages)


def test_the_command_writes_what_one_process_writes(cluster: Any, tmp_path: Path) -> None:
    run = train(tmp_path)
    write_lines(tmp_path / "in.txt", texts(100))
    keys = (f"path={run}", f"input={tmp_path}/in.txt", *FAST)
    of_ray = ("engine=ray", f"ray.address={cluster.address}", "job.part_lines=30", "ray.cpus=0.5")
    done("generate", *keys, *of_ray, f"output={tmp_path}/out.txt")
    assert (tmp_path / "out.txt").read_text() == command("generate", *keys).out
    local = command("generate", *keys, "job.part_lines=30", f"output={tmp_path}/out.txt")
    assert (local.code, "100 of 100 lines were decoded before" in local.err) == (0, True)


def test_what_cannot_work(cluster: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(["a"])
    with pytest.raises(ConfigError, match="Ray cannot be reached"):
        RayWorkers(capitals, "127.0.0.1:1", 1, 0, 0.0, 1.0)
    with pytest.raises(ResourceError, match="has 64 CPU cores and 0 GPUs for an actor"):
        RayWorkers(capitals, cluster.address, 1, 0, 0.0, 64.0)
    workers = RayWorkers(refuse, cluster.address, 1, 0, 0.0, 1.0)
    assert workers.notes() == []
    with closing(workers), pytest.raises(UserError, match="no such model"):
        bench.run(workers)


def test_more_actors_than_a_node_has_room_for(cluster: Any, tmp_path: Path) -> None:
    """A job with actors that Ray would never start uses those that fit, and says so."""
    lines = [f"line {number}" for number in range(40)]
    bench = Bench(tmp_path, part_lines=10, piece_lines=5)
    bench.write(lines)
    workers = RayWorkers(capitals, cluster.address, per_node=5, limit=0, gpus=0, cpus=0.7)
    with closing(workers):
        assert len(workers._workers) == 2 * 2
        (note,) = workers.notes()
        assert note.startswith("ray.actors_per_node=5: a node of the Ray cluster has room for 2 only")
        assert bench.run(workers) == expected(lines)
