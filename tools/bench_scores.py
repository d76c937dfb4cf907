"""The gallery: which score does each configuration reach, beside what is published for its task?

Each seed is a real run, in one process or over ranks; then its best policy plays 100 episodes from
a seed that it has not seen. A task is reached by a seed whose mean return is at least the published
mean minus its standard deviation.

    python tools/bench_scores.py --quick                   tasks of some minutes, two seeds each
    python tools/bench_scores.py                           all tasks, five seeds each: many hours
    python tools/bench_scores.py cartpole_ppo --seeds 3    one task
    python tools/bench_scores.py pendulum_sac --command train     in the other mode
    python tools/bench_scores.py --jobs 8                  eight runs side by side
    python tools/bench_scores.py --quick --write           also into configs/SCORES.md
    python tools/bench_scores.py --write --seeds 0         the table anew, without a run

`--write` keeps every run in configs/scores.jsonl, and makes the table and the curves in
configs/SCORES.md anew from all that is there. Several of this tool may do so side by side.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, pstdev

from figures import at_least, parser, show

import hpcdi
from hpcdi.env.games import Pincer
from hpcdi.utils.metrics import human_count

CONFIGS = Path(__file__).parent.parent / "configs"
RUNS, CURVES, PAGE = CONFIGS / "scores.jsonl", CONFIGS / "curves", CONFIGS / "SCORES.md"
BEGIN, END = "<!-- made by tools/bench_scores.py: begin -->", "<!-- end -->"
EPISODES, HELD_OUT_SEED = 100, 1000


@dataclass(frozen=True)
class Task:
    """A configuration, and what others publish for its task.

    Attributes:
        name: of the task, and of the file in configs/ unless `config` names another.
        command: serial or train.
        published, spread: mean return and its standard deviation.
        source: who publishes it, after how many environment steps.
        quick: takes some minutes on two cores.
        config: file in configs/, without its ending.
        overrides: settings that differ from the file's, as ``hpcdi`` takes them.
        episodes: of a run's best policy, that are its score; more where their returns differ more
            than runs do.
        judge: a run's folder -> its score, where the mean return of episodes does not tell.
    """

    name: str
    command: str
    published: float
    spread: float
    source: str
    quick: bool = True
    config: str = ""
    overrides: tuple[str, ...] = ()
    episodes: int = EPISODES
    judge: Callable[[Path], float] | None = None

    @property
    def file(self) -> str:
        """Name of the configuration in configs/."""
        return f"{self.config or self.name}.yaml"

    @property
    def goal(self) -> float:
        """The least mean return of a seed that reaches the task."""
        return self.published - self.spread


def pincer(run_dir: Path) -> float:
    """The mean return at the optimum, less what both teams lose to the best against them."""
    game = Pincer()
    return game.optimum - game.gap(hpcdi.load(run_dir, which="latest").act) / game.agents


CLEANRL, ZOO, TIANSHOU = "CleanRL", "rl-baselines3-zoo", "tianshou"
DOORKEY = "minigrid_doorkey_ppo_lstm"
RETURNS = ("policy.model.v_min=-100", "policy.model.v_max=0")
TASKS = (
    Task("cartpole_dqn_475", "train", 488.7, 16.1, f"{CLEANRL}, 500k"),
    Task("cartpole_c51", "train", 481, 21, f"{CLEANRL}, 500k"),
    Task("cartpole_discrete_sac", "serial", 150, 0, "RLlib's test, 100k"),
    Task("cartpole_ppo", "serial", 490.0, 6.1, f"{CLEANRL}, 500k"),
    Task("cartpole_impala", "train", 450, 0, "RLlib's test, 2M"),
    Task("cartpole_novel_ppo_lstm", "serial", 500, 0, f"{ZOO}, 100k"),
    Task("cartpole_novel_impala_lstm", "serial", 350, 0, "RLlib's test, 2M"),
    Task("acrobot_dqn", "serial", -91.5, 7.2, f"{CLEANRL}, 500k"),
    Task("acrobot_c51", "serial", -87.7, 5.5, f"{CLEANRL}, 500k", config="acrobot_dqn",
         overrides=("policy.type=c51", *RETURNS)),
    Task("acrobot_qrdqn", "serial", -69.1, 10, f"{ZOO}, 100k"),
    Task("acrobot_ppo", "serial", -86.4, 1.3, f"{CLEANRL}, 500k"),
    Task("mountaincar_dqn", "serial", -100.8, 9.9, f"{ZOO}, 120k"),
    Task("mountaincar_qrdqn", "serial", -106, 15.5, f"{ZOO}, 120k", config="mountaincar_dqn",
         overrides=("policy.type=qrdqn",)),
    Task("mountaincar_ppo", "serial", -110.4, 19.5, f"{ZOO}, 1M", quick=False),
    Task("mountaincar_continuous_ppo", "serial", 88.3, 2.6, f"{ZOO}, 20k"),
    Task("mountaincar_continuous_sac", "serial", 94.7, 1.1, f"{ZOO}, 50k"),
    Task("pendulum_ppo", "serial", -172, 104, f"{ZOO}, 100k"),
    Task("pendulum_sac", "serial", -157, 89, f"{ZOO}, 20k"),
    Task("pendulum_tqc", "serial", -157, 89, f"{ZOO}'s SAC, 20k"),
    Task("pendulum_td3", "serial", -152, 90, f"{ZOO}, 20k"),
    Task("pendulum_ddpg", "serial", -152, 94, f"{ZOO}, 20k", config="pendulum_td3",
         overrides=("policy.learn.critics=1", "policy.learn.policy_delay=1",
                    "policy.learn.target_noise=0")),
    Task("pendulum_novel_ppo_lstm", "serial", -218, 140, f"{ZOO}, 100k"),
    Task("memory_len_r2d2", "serial", 1.0, 0, "the best possible"),
    Task("memory_len_r2d2_gtrxl", "serial", 1.0, 0, "the best possible"),
    Task("cartpole_novel_ppo_gtrxl", "serial", 500, 0, f"{ZOO}, 100k",
         config="cartpole_novel_ppo_lstm",
         overrides=("policy.model.memory=gtrxl", "policy.model.memory_size=32",
                    "policy.model.memory_len=8")),
    Task("bitflip_dqn_her", "serial", 1.0, 0.05, "the best possible"),
    Task("reach_sac_her", "serial", -3.97, 0.6, "the best possible"),
    Task("reach_td3_her", "serial", -3.97, 0.6, "the best possible", config="reach_sac_her",
         overrides=("policy.type=td3",)),
    Task("deepsea_ppo_rnd", "serial", 0.99, 0.09, "the best possible"),
    Task("deepsea_ppo_icm", "serial", 0.99, 0.09, "the best possible", config="deepsea_ppo_rnd",
         overrides=("policy.exploration_bonus.type=icm",
                    "policy.exploration_bonus.learning_rate=0.003", "env.stop_value=0.95")),
    Task("lock_ppo_curriculum", "serial", 1.0, 0.05, "the best possible"),
    Task("simple_spread_mappo", "serial", -9.1, 0, "MAPPO's authors, 20M, converted: below",
         quick=False, episodes=2000),
    Task("pincer_mappo", "serial", Pincer().optimum, 0, "the best possible", judge=pincer),
    Task("pincer_qmix", "serial", Pincer().optimum, 0, "the best possible", judge=pincer),
    Task("recall_mappo_gru", "serial", 1.0, 0, "the best possible"),
    Task("recall_qmix_gru", "serial", 1.0, 0, "the best possible"),
    Task("lunarlander_dqn", "serial", 200, 0, "Gymnasium: solved", quick=False),
    Task("lunarlander_ppo", "train", 242, 32, f"{ZOO} (v2), 1M", quick=False),
    Task("lunarlander_continuous_sac", "serial", 260, 66, f"{ZOO}, 500k", quick=False),
    Task(DOORKEY, "serial", 0.964, 0.006, f"{ZOO}, 100k", quick=False),
    Task("minigrid_empty_ppo_lstm", "serial", 0.968, 0.013, f"{ZOO}, 100k",
         config=DOORKEY, overrides=("env.env_id=MiniGrid-Empty-Random-5x5-v0",)),
    Task("minigrid_unlock_ppo_lstm", "serial", 0.963, 0.016, f"{ZOO}, 100k",
         config=DOORKEY, overrides=("env.env_id=MiniGrid-Unlock-v0",)),
    Task("inverted_pendulum_ppo", "serial", 963, 22, f"{CLEANRL} (v4), 1M"),
    Task("hopper_ppo", "serial", 2383, 272, f"{CLEANRL} (v4), 1M", quick=False),
    Task("walker2d_ppo", "serial", 2288, 572, f"{CLEANRL} (v4), 1M", quick=False,
         config="hopper_ppo", overrides=("env.env_id=Walker2d-v5",)),
    Task("hopper_sac", "serial", 3542, 52, f"{TIANSHOU}, 1M", quick=False),
    Task("halfcheetah_sac", "serial", 9635, 1424, f"{CLEANRL} (v4), 1M", quick=False),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One seed of a task.

    Attributes:
        score, spread: mean return and its standard deviation over the task's `episodes`.
        env_steps: until the run ended.
        cpu_minutes: of all its processes together, start-up included: what other work on the
            machine hardly changes.
        curve: (environment steps, mean return) of its evaluations.
    """

    task: str
    command: str
    seed: int
    score: float
    spread: float
    env_steps: int
    cpu_minutes: float
    curve: list[tuple[int, float]]


def main() -> None:
    """Run, print, and write."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("task", nargs="*", help="names of files in configs/ (default: all)")
    command_line.add_argument("--seeds", type=int, help="seeds of each (default: 5, or 2)")
    command_line.add_argument("--first-seed", type=int, default=0)
    command_line.add_argument("--command", choices=("serial", "train"), help="default: the table's")
    command_line.add_argument("--jobs", type=int, default=1, help="runs side by side")
    command_line.add_argument("--limit-min", type=float, default=60.0, help="minutes of a run")
    command_line.add_argument("--write", action="store_true", help="into configs/SCORES.md")
    given = command_line.parse_args()
    unknown = set(given.task) - {task.name for task in TASKS}
    if unknown:
        known = ", ".join(task.name for task in TASKS)
        command_line.error(
            f"no published score for {', '.join(sorted(unknown))}; there are {known}"
        )
    asked = [task for task in TASKS if (task.name in given.task or not given.task)]
    asked = [task for task in asked if given.task or task.quick or not given.quick]
    count = (2 if given.quick else 5) if given.seeds is None else given.seeds

    def ran(task: Task, seed: int) -> Run:
        """A run, kept and printed as soon as it is there."""
        run = played(task, given.command or task.command, seed, 60 * given.limit_min)
        if given.write:
            keep(run)
        if not given.json:
            print(f"  {task.name} ({run.command}), seed {seed}: {run.score:.4g} ± {run.spread:.3g} "
                  f"after {run.env_steps} env steps, {run.cpu_minutes:.1f} CPU minutes",
                  flush=True)  # fmt: skip
        return run

    with ThreadPoolExecutor(given.jobs) as pool:
        seeds = range(given.first_seed, given.first_seed + count)
        runs = [[pool.submit(ran, task, seed) for seed in seeds] for task in asked]
        for task, started in zip(asked, runs, strict=True):
            reached = sum(each.result().score >= task.goal for each in started)
            name = f"{task.name}: seeds of {count} that reach {task.goal:.4g} ({task.source})"
            show([at_least(name, reached, "", 0.8 * count)] if count else [], given.json)
    if given.write:
        write()


def played(task: Task, command: str, seed: int, limit_s: float) -> Run:
    """One run, ended in order when it takes too long, and the evaluation of its best policy."""
    called = [sys.executable, "-m", "hpcdi"]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = [command, str(CONFIGS / task.file), *task.overrides, f"seed={seed}"]
        with Path(folder, "printed").open("wb") as out:
            job = subprocess.Popen(
                [*called, *words, "--run-dir", str(run_dir)], stdout=out, stderr=subprocess.STDOUT
            )
            limit = threading.Timer(limit_s, job.terminate)
            limit.start()
            _, status, usage = os.wait4(job.pid, 0)  # with the processes that it has waited for
            limit.cancel()
        job.returncode = os.waitstatus_to_exitcode(status)
        if job.returncode not in (0, 85):
            raise SystemExit(f"{task.name}: {Path(folder, 'printed').read_text()}")
        asked = ["--episodes", str(task.episodes), "--seed", str(HELD_OUT_SEED + seed), "--json"]
        said = subprocess.run(
            [*called, "eval", str(run_dir), *asked], check=True, capture_output=True, text=True
        )
        figures = json.loads((run_dir / "run.json").read_text())["figures"]
        found = json.loads(said.stdout)
        score, spread = found["return_mean"], found["return_std"]
        if task.judge is not None:
            score, spread = task.judge(run_dir), 0.0
    curve = [(each["env_steps"], each["mean"]) for each in figures["evaluations"]]
    return Run(
        task.name, command, seed, score, spread, figures["env_steps"],
        (usage.ru_utime + usage.ru_stime) / 60, curve,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- gallery


def keep(run: Run) -> None:
    """Add a run to the file of all; one of the same task, command and seed is replaced."""
    with RUNS.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        runs = {(each.task, each.command, each.seed): each for each in (*kept(), run)}
        ordered = sorted(runs.values(), key=lambda each: (each.task, each.command, each.seed))
        RUNS.write_text("".join(json.dumps(asdict(each)) + "\n" for each in ordered))


def kept() -> list[Run]:
    """All runs of the file."""
    lines = RUNS.read_text().splitlines() if RUNS.exists() else []
    return [Run(**json.loads(line)) for line in lines]


def write() -> None:
    """The table in configs/SCORES.md, and the curves beside it, of all runs that were kept."""
    CURVES.mkdir(exist_ok=True)
    rows = []
    for task in TASKS:
        for command in ("serial", "train"):
            runs = [run for run in kept() if (run.task, run.command) == (task.name, command)]
            if runs:
                picture = CURVES / f"{task.name}_{command}.svg"
                picture.write_text(drawn(task, runs))
                rows.append(row(task, command, runs))
    head = (
        "| configuration | published | ours | reached by | env steps | CPU minutes | curve |",
        "|---|---|---|---|---|---|---|",
    )
    before, found, rest = PAGE.read_text().partition(BEGIN)
    if not found:
        raise SystemExit(f"{PAGE} has no line {BEGIN}")
    after = rest.partition(END)[2]
    PAGE.write_text(before + "\n".join((BEGIN, *head, *rows, END)) + after)


def row(task: Task, command: str, runs: list[Run]) -> str:
    """A line of the table: the mean over seeds, the medians of steps and CPU minutes."""
    scores = [run.score for run in runs]
    spread = f" ± {task.spread:g}" if task.spread else ""
    ours = f"{mean(scores):.4g} ± {pstdev(scores):.3g}"
    reached = f"{sum(score >= task.goal for score in scores)} of {len(runs)}"
    steps = human_count(median(run.env_steps for run in runs))
    minutes = f"{median(run.cpu_minutes for run in runs):.2g}"
    changed = "".join(f" `{override}`" for override in task.overrides)
    config = f"[{Path(task.file).stem}]({task.file}){changed}"
    published = f"{task.published:.4g}{spread} ({task.source})"
    return (
        f"| `{command}` {config} | {published} | {ours} | {reached} | {steps} | {minutes} "
        f"| ![curve](curves/{task.name}_{command}.svg) |"
    )


def drawn(task: Task, runs: list[Run], width: int = 240, height: int = 72) -> str:
    """Mean returns of evaluations over environment steps, a line a seed, as SVG.

    A dot is where a run ended. The dashed line is the published mean.
    """
    points = [point for run in runs for point in run.curve]
    last = max(step for step, _ in points) or 1
    values = [value for _, value in points] + [task.published]
    low, high = min(values), max(values)
    room = (high - low) or 1.0

    def place(step: float, value: float) -> str:
        return (
            f"{4 + (width - 8) * step / last:.1f},{4 + (height - 20) * (high - value) / room:.1f}"
        )

    lines = "".join(
        f'<polyline fill="none" stroke="#3b7dd8" stroke-width="1.2" stroke-opacity="0.8" '
        f'points="{" ".join(place(*point) for point in run.curve)}"/>'
        '<circle r="2" fill="#3b7dd8" cx="{}" cy="{}"/>'.format(*place(*run.curve[-1]).split(","))
        for run in runs
    )
    published = place(0, task.published).split(",")[1]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="9" fill="#888">'
        f'<line x1="4" x2="{width - 4}" y1="{published}" y2="{published}" stroke="#888" '
        f'stroke-dasharray="3 3"/>{lines}'
        f'<text x="4" y="{height - 4}">{low:.4g} to {high:.4g}</text>'
        f'<text x="{width - 4}" y="{height - 4}" text-anchor="end">{human_count(last)} env steps'
        "</text></svg>\n"
    )


if __name__ == "__main__":
    main()
