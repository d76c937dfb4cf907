"""What it costs a learner to hand its policies to 64, 512 and 4,096 collectors, 64 on each host.

The real publisher, subscribers and relays, without a network: in each simulated tenth of a second
the learner has a new policy and every collector has looked for one. What is timed is the learner's
communication thread alone, in CPU seconds: it takes requests, and encodes and copies its answers,
as MPI does. Once every collector asks the learner, and once one of each host does, for all there.

    python tools/bench_policies.py                 a policy of 0.15 MB
    python tools/bench_policies.py --mb 5
"""

from __future__ import annotations

import statistics
import time
from collections import deque

import torch
from figures import Row, at_most, parsed, parser, show

from hpcdi.comm.codec import encode
from hpcdi.comm.messages import PolicyRequest, PolicyUpdate
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.collector.channels import PolicyRelay, PolicySubscriber
from hpcdi.roles.learner.publisher import PolicyPublisher
from hpcdi.run.placement import RankPlace, relay_for
from hpcdi.types import MAIN

LEARNER, A_HOST, PER_S = 1, 64, 10


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--collectors", type=int, nargs="+", default=[64, 512, 4096])
    command_line.add_argument("--mb", type=float, default=0.15, help="of a policy")
    given = parsed(command_line, collectors=[64, 512])
    torch.set_num_threads(1)
    parameters = torch.rand(int(given.mb * 1e6 / 4))
    for count in given.collectors:
        direct, direct_mb = of_run(count, count, parameters)
        relayed, relayed_mb = of_run(count, 1, parameters)
        name = f"{count} collectors: learner's"
        ratio = relayed / direct
        show(
            [
                at_most(f"{name} thread for policies, a relay on each host", 100 * relayed,
                        "% of core", 10, ratio=ratio, peer=f"{100 * direct:.3g}, each asks it"),
                Row(f"{name} policies on the network", relayed_mb, "MB/s",
                    ratio=relayed_mb / direct_mb, peer=f"{direct_mb:,.0f}, each asks it"),
            ],
            given.json,
        )  # fmt: skip


def of_run(count: int, above: int, parameters: torch.Tensor) -> tuple[float, float]:
    """Returns the share of a core that the learner's thread takes, and its MB a second."""
    run = Run(count, above)
    rounds: list[float] = []
    for version in range(4 if count > 1000 else 20):
        run.busy_s, run.sent_bytes = 0.0, 0
        run.look()
        run.publish(parameters, version)
        rounds.append(run.busy_s)
    # the first one is the start of all
    return PER_S * statistics.median(rounds[1:]), 1e-6 * PER_S * run.sent_bytes


class Run:
    """A learner, collectors, and the messages between them."""

    def __init__(self, count: int, above: int) -> None:
        config = compile_config(
            {"env": {"env_id": "CartPole-v1"}, "system": {"relay_policies_above": above}}
        ).config
        self.busy_s, self.sent_bytes = 0.0, 0
        self._messages: deque[tuple[int, int, PolicyRequest | PolicyUpdate]] = deque()
        self._learner = PolicyPublisher(self._send, None)
        self._subscribers: dict[int, PolicySubscriber] = {}
        self._relays: dict[int, PolicyRelay] = {}
        placement = placed(count)
        for rank in range(2, len(placement)):
            self._add(rank, placement, config)

    def _add(self, rank: int, placement: list[RankPlace], config: ExperimentConfig) -> None:
        def send(receiver: int, message: PolicyRequest | PolicyUpdate) -> None:
            self._messages.append((rank, receiver, message))

        relay = relay_for(rank, placement, config)
        self._subscribers[rank] = PolicySubscriber(send, [LEARNER], 0.0, relay=relay)
        self._relays[rank] = PolicyRelay(self._subscribers[rank], send, MAIN)

    def _send(self, rank: int, update: PolicyUpdate) -> None:
        """The learner sends an answer: it is encoded, and copied as MPI copies it."""
        encoded = encode(update)
        self.sent_bytes += sum(len(bytes(frame)) for frame in encoded.frames)
        self._messages.append((LEARNER, rank, update))

    def look(self) -> None:
        """Every collector looks for a newer policy."""
        for subscriber in self._subscribers.values():
            image = subscriber.image
            subscriber.newer_than(-1 if image is None else image.version)
        self._deliver()

    def publish(self, parameters: torch.Tensor, version: int) -> None:
        """The learner has a new policy."""
        began = time.process_time()
        self._learner.publish({"parameters": parameters}, version)
        self.busy_s += time.process_time() - began
        self._deliver()
        versions = {s.image.version for s in self._subscribers.values() if s.image is not None}
        assert versions == {version}, "all collectors have it"

    def _deliver(self) -> None:
        while self._messages:
            sender, rank, message = self._messages.popleft()
            if isinstance(message, PolicyUpdate):
                self._subscribers[rank].take(sender, message)
                self._relays[rank].look()
            elif rank == LEARNER:
                began = time.process_time()
                self._learner.request(sender, message)
                self.busy_s += time.process_time() - began
            else:
                self._relays[rank].request(sender, message)


def placed(count: int) -> list[RankPlace]:
    """Rank 0, a learner, and collectors on as many hosts as they fill."""
    found = [RankPlace("node0", rank=0, role="coordinator")]
    found.append(RankPlace("node0", rank=LEARNER, role="learner"))
    for number in range(count):
        host = f"node{number // A_HOST}"
        found.append(RankPlace(host, rank=2 + number, role="collector"))
    return found


if __name__ == "__main__":
    main()
