"""CartPole by Sample Factory's APPO, for bench_throughput: arguments are Sample Factory's own.

Runs in an environment with sample-factory, not with hpcdi.
"""

import sys

import gymnasium
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl


def make(_name: str, _cfg: object, _env_config: object, render_mode: str | None = None) -> object:
    """One environment."""
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


register_env("cartpole", make)  # in each of its processes
if __name__ == "__main__":
    parser, _ = parse_sf_args(sys.argv[1:])
    sys.exit(run_rl(parse_full_cfg(parser, sys.argv[1:])))
