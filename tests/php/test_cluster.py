"""One queue of a Redis Cluster for PHP (phpredis' RedisCluster under Laravel's own classes) and qd, both ways.

On a cluster, Laravel 13 names the keys of queue `q` `queues:{q}`; with this release, the user names the queue `{q}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.php.laravel import JOBS, PREFIX, Laravel
from tests.support.project import Project
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server

pytestmark = pytest.mark.xdist_group("cluster")
Projects = Callable[..., Project]


@pytest.fixture
def laravel(cluster: Cluster, server: Server, tmp_path: Path) -> Iterator[Laravel]:
    folder = tmp_path / "laravel"
    folder.mkdir()
    application = Laravel(server, folder, RIG_CLUSTER=",".join(cluster.addresses))
    yield application
    application.close()


@pytest.fixture
def shop(laravel: Laravel, cluster: Cluster, project: Projects) -> Project:
    return project(JOBS, f'prefix = "{PREFIX}"\n', url=cluster.url)


def test_qd_runs_jobs_of_php_in_queues_on_several_nodes(laravel: Laravel, shop: Project) -> None:
    queues = ["a", "b", "c", "d"]
    for name in queues:
        laravel.push({"name": "shared.note", "queue": f"{{{name}}}", "count": 10, "number": "n"})
        laravel.push({"name": "shared.note", "queue": f"{{{name}}}", "delay": 1, "data": {"later": name}})
    work = shop.work(*queues, "-w", "2", **laravel.qd_env)
    ran = laravel.wait_ran(44)
    work.stop()
    assert len({each.id for each in ran}) == len(ran) == 44
    assert sorted(each.data["later"] for each in ran if "later" in each.data) == queues


def test_php_runs_jobs_of_qd_on_a_cluster(laravel: Laravel, shop: Project, cluster: Cluster) -> None:
    for name in ("a", "b"):
        done = shop.qd("dispatch", "shared.note", f"name={name}", "--queue", name, "--count", "5", **laravel.qd_env)
        assert done.returncode == 0, done.stderr
    php = laravel.worker("{a},{b}")
    ran = laravel.wait_ran(10)
    php.stop()
    assert sorted(each.data["name"] for each in ran) == ["a"] * 5 + ["b"] * 5
    assert {each.pid for each in ran} == {php.pid}
    left = cluster.keys()
    assert [key for key in left if "queues:" in key and not key.endswith(":notify")] == []
