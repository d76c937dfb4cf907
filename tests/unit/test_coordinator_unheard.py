"""Deaths that MPI does not notice: two looks at the processes of this host."""

from __future__ import annotations

from hpcdi.roles.coordinator.coordinator import UnheardDeaths
from hpcdi.roles.coordinator.workers import Worker


def test_a_process_that_is_gone_is_a_dead_rank_at_the_second_look() -> None:
    gone = {30}
    looks = UnheardDeaths(("n1", "x"), lambda pid: pid not in gone)
    workers = [
        Worker(2, host="n1", pid=20, pid_space="x"), Worker(3, host="n1", pid=30, pid_space="x"),
        Worker(4, host="n2", pid=30, pid_space="x"), Worker(5, host="n1", pid_space="x"),
        Worker(6, host="n1", pid=30, pid_space="y"),  # in a container of its own
    ]  # fmt: skip
    assert looks.look(workers, 0.0) == []
    assert looks.look(workers, 0.5) == []
    assert looks.look(workers, 1.0) == [3]
    gone.add(20)
    assert looks.look(workers[:1], 2.0) == []
    gone.clear()  # it was a moment's error
    assert looks.look(workers[:1], 3.0) == []
