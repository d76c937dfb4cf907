"""The command `hpcdi rehearse`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hpcdi.commands.options import add_experiment, add_ranks, at_least, make_parser, print_lines
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.errors import EXIT_DONE, EXIT_USAGE, LaunchError

HELP = """\
Rehearse an experiment on one host, without ranks, for about a minute: makes its environments as a
run would, plays them at random and by the fresh policy, evaluates it, and says what a run would
meet; then the plan for the ranks that are asked for.

  hpcdi rehearse my.yaml                                     before the job waits in a queue
  hpcdi rehearse my.yaml -n 64 env.collector_env_num=16      as it is meant to run
  hpcdi rehearse my.yaml --seconds 300 --steps 200000        look longer: rare faults, slow leaks

It says spaces and what is stored of a step; whether values are as the spaces say, and numbers;
times, episodes, scales of observations and rewards; whether arrays are reused, seeds repeat, memory
grows; what is printed, which signals are taken, whether one process can have several; how long an
evaluation takes, and whether the replay buffer fits. The environments live in processes of their
own: one that exits or hangs is named. Nothing is written.

The exit code is 2 if anything fails, all problems at once; warnings do not count.
"""
_SPARE_S = 60.0
"""For making environments, and a step or reset that is slow, before it is taken for hanging."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: there are too few ranks.
    """
    parser = make_parser("rehearse", HELP)
    add_experiment(parser)
    add_ranks(parser)
    parser.add_argument(
        "--seconds", type=at_least(1), default=60, metavar="S",
        help="time to play, about (default: 60; environments that are quick need less)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=at_least(100), default=25_000, metavar="N",
        help="environment steps after which it has seen enough of one (default: 25000)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return _rehearse(parser.parse_intermixed_args(arguments))


def _rehearse(options: argparse.Namespace) -> int:
    from hpcdi.commands.findings import ResultTable
    from hpcdi.commands.plan import plan
    from hpcdi.commands.rehearse.alone import Budget, look
    from hpcdi.commands.rehearse.apart import apart
    from hpcdi.commands.rehearse.as_a_run import play
    from hpcdi.commands.rehearse.checks import Facts, findings
    from hpcdi.commands.rehearse.facts import Alone, AsARun
    from hpcdi.env.create import get_env_cls
    from hpcdi.run.experiment import load_experiment
    from hpcdi.run.placement import check_world, default_world_size
    from hpcdi.run.start import as_yaml
    from hpcdi.utils.console import others_to_stderr
    from hpcdi.utils.host import free_bytes

    with as_yaml(options.config) as path:
        with others_to_stderr():
            compiled, spaces = load_experiment(str(path), [*options.override, *options.short])
        config = compiled.config
        if isinstance(config.env, MpiEnvConfig):
            how = "its program runs by itself under mpirun (HPCDI_ALONE_STEPS)"
            if config.env.is_class or config.env.coupling:  # no program changed by hpcdi.h
                how = "`hpcdi train` runs it"
            raise LaunchError(
                "an environment of type 'mpi' needs ranks of its own: `hpcdi plan` says which, and "
                f"{how}"
            )
        ranks = default_world_size(config) if options.ranks is None else options.ranks
        check_world(ranks, config)
        each_s = options.seconds / 3
        budget, limit_s = Budget(options.steps, each_s), 3 * each_s + _SPARE_S
        alone = None
        if get_env_cls(config.env).has_single(config.env):
            alone = apart(look, Alone(), config.env, budget, config.seed, limit_s=limit_s)
        run = apart(play, AsARun(), config, spaces, budget, limit_s=limit_s)
    table = ResultTable(is_json=options.json)
    for name, finding in findings(Facts(config, spaces, ranks, alone, run, free_bytes())):
        table.add(name, finding)
    if not options.json:
        print_lines(["", *plan(config, spaces, ranks), *(f"note: {n}" for n in compiled.notes)])
    return EXIT_DONE if table.finish() == EXIT_DONE else EXIT_USAGE
