"""What is wrong with a run of odd environments, compared with what these say and do themselves.

Each stored episode is played again, action by action, in the bare environment; it must be in the
journal that the run's own environments have written, once; counters and curves must be those of the
stored episodes; batches must be of their rows, and as many as the replay ratio says.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fuzz_witness
import numpy as np
import odd_envs
from fuzz_witness import checksums
from gymnasium import spaces
from odd_envs import RECORD, digest, drawn

from hpcdi.config.load import load
from hpcdi.data import Episode, read_episodes
from hpcdi.env.wrappers import without_reward_wrappers, wrap
from hpcdi.store.atomic import read_json

_MOST = 3
"""Objections of a kind that are said."""
_WINDOW = 100
"""Of so few episodes curves show the mean of all."""


class Run:
    """What a run folder holds.

    Args:
        folder: of the run; beside it are what its environments and learners have noted.
        was_killed: a rank was, so that what was not stored yet is gone.
    """

    def __init__(self, folder: Path, *, was_killed: bool = False) -> None:
        self.folder, self.was_killed = folder, was_killed
        self.config = load(folder / "config.yaml").config
        self.facts, self.status = (read_json(folder / f"{n}.json") for n in ("run", "status"))
        self.figures: Mapping[str, Any] = self.facts.get("figures") or {}
        self.damaged: list[Any] = []
        env = self.config.env
        self.is_league, self.is_team = env.type == "pettingzoo", env.type == "team"
        self.stores_all = self.config.system.storage.keep_data

    @cached_property
    def episodes(self) -> list[Episode]:
        """All that is stored of episodes."""
        if not any(self.folder.glob("data/rank*/*/*.h5")):
            return []
        return [*read_episodes(self.folder, unfinished=True, left_out=self.damaged.append)]

    def journal(self, name: str) -> Any:
        """Returns what environments have noted, of all processes, in the order of time."""
        files = sorted((self.folder.parent / name).glob("*"))
        lines = [np.frombuffer(file.read_bytes(), RECORD) for file in files]
        noted = np.concatenate(lines) if lines else np.zeros(0, RECORD)
        return noted[np.argsort(noted["at"], kind="stable")]

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float, float]]]:
        """Points of each curve, in the order of the file."""
        curves = defaultdict(list)
        with (self.folder / "curves.csv").open(newline="") as lines:
            for name, step, at, value in list(csv.reader(lines))[1:]:
                curves[name].append((int(step), float(at), float(value)))
        return curves


def objections(run: Run, given: Sequence[Episode] = ()) -> list[str]:
    """Returns all that is wrong with a run; `given`: episodes that it was given."""
    parts = (of_data, of_counters, of_curves, of_evaluations, of_ratio, partial(of_batches, given))
    said = []
    for part in parts:
        found = [*part(run)]
        said += found[:_MOST] + [f"... and {len(found) - _MOST} more"] * (len(found) > _MOST)
    return said


# -------------------------------------------------------------------------------------- stored data


def of_data(run: Run) -> Iterator[str]:
    """Episodes are the environments', each step once, and what these have noted."""
    yield from (f"damaged: {error}" for error in run.damaged if not run.was_killed)
    noted = defaultdict(set)  # more than one action, where seeds come again
    for line in run.journal("steps"):
        noted[int(line["key"]), int(line["step"])].add(int(line["action"]))
    seen, replay = set[tuple[float, ...]](), replays(run)
    for episode in run.episodes:
        # of who has left a game, infos say nothing any more
        infos = {name: column[np.isfinite(column)] for name, column in episode.infos.items()}
        keys, steps = (infos[name].astype(np.int64).tolist() for name in ("key", "step"))
        if not keys:
            continue
        where = f"{episode.collector} env {episode.env} key {keys[0]}"
        if len(set(keys)) > 1:
            yield f"{where}: steps of several episodes are in one: {sorted(set(keys))}"
            continue
        yield from (f"{where}: {said}" for said in [*replay(episode, noted)][:1])
        if len(set(steps)) < len(steps):
            yield f"{where}: has a step twice: {steps}"
        places = {(keys[0], step, *infos.get("player", ())[:1]) for step in steps}
        if places & seen and not (run.config.env.seeds or run.config.system.deterministic):
            yield f"{where}: is stored twice: {sorted(places & seen)[:3]}"
        seen |= places
        yield from (f"{where}: {said}" for said in of_seed(run, episode, keys[0]))
    yield from of_order(run)
    lost = [place for place in noted if place not in {each[:2] for each in seen}]
    if lost and run.episodes and run.stores_all and not (run.was_killed or run.is_league):
        yield f"{len(lost)} of {len(noted)} steps that were played are stored nowhere: {lost[:3]}"


def of_seed(run: Run, episode: Episode, key: int) -> Iterator[str]:
    """Seed and resets of an episode are those that it began with."""
    if episode.seed is None or run.is_league or run.is_team:
        return
    env = bare(run)
    env.reset(seed=episode.seed)
    for _ in range(episode.resets):
        env.reset()
    if env.unwrapped._plot.key != key:
        yield f"did not begin by seed {episode.seed} and {episode.resets} resets"


def of_order(run: Run) -> Iterator[str]:
    """Of each environment, no episode between others is missing."""
    resets = defaultdict(list)
    for episode in run.episodes:
        if episode.seed is not None and not run.is_league:
            resets[episode.collector, episode.env, episode.seed].append(episode.resets)
    if not run.stores_all or run.was_killed:
        return
    for where, of_env in resets.items():
        if sorted(set(of_env)) != [*range(max(of_env) + 1)] and not run.config.env.seeds:
            yield f"{where}: episodes are missing: resets {of_env}"


def replays(run: Run) -> Any:
    """Returns what plays an episode again, and yields what differs."""
    if run.is_league:
        return partial(replayed_game, run)
    return partial(replayed_team, run) if run.is_team else partial(replayed, run)


def bare(run: Run) -> Any:
    """Returns an environment of a run, with its wrappers."""
    cfg = run.config.env
    kwargs = {name: value for name, value in cfg.kwargs.items() if name not in ("journal", "mode")}
    name = cfg.env_id.partition(":")[2].replace("OddVector-v0", "Odd")
    return wrap(getattr(odd_envs, name)(**kwargs), getattr(cfg, "wrappers", ()))


def replayed(run: Run, episode: Episode, noted: Mapping[Any, set[int]]) -> Iterator[str]:
    """Plays an episode of one player."""
    env, columns, infos = bare(run), episode.columns, episode.infos
    key, told = int(infos["key"][0]), infos["step"]
    if told[0] > _steps_at_once(env):
        if episode.is_whole or (run.stores_all and not run.was_killed):
            yield f"it begins at step {told[0]}, and is {'' if episode.is_whole else 'not '}whole"
        return
    seen, _ = env.reset(options={"key": key})
    env.unwrapped.scale = float(infos["scale"][0])
    yield from unlike(run, seen, episode.observations, 0, "observation")
    for row in range(len(episode)):
        mask = columns.get("action_mask", [env.unwrapped._mask] * len(episode))[row]
        if not np.array_equal(mask, env.unwrapped._mask):
            yield f"row {row}: its mask is {mask}, and was {env.unwrapped._mask}"
        action = acted(env.action_space, columns, row)
        seen, *results, info = env.step(action)
        yield from unlike(run, seen, episode.observations, row + 1, "observation")
        yield from _unlike_results(episode, row, results, info)
        if digest(action) not in noted[key, int(told[row])]:
            yield f"row {row}: the environment was not given {action!r} in step {told[row]}"


def _unlike_results(episode: Episode, row: int, results: Sequence[Any], info: Any) -> Iterator[str]:
    """Yields where reward, ends and infos of a row are others than a step's results."""
    columns, is_last = episode.columns, row + 1 == len(episode)
    for name, value in zip(("reward", "terminated", "truncated"), results, strict=True):
        dtype = np.float32 if name == "reward" else bool
        if columns[name].dtype != dtype or columns[name][row] != dtype(value):
            yield f"row {row}: {name} {columns[name][row]!r}, and was {value}"
    if any(results[1:]) != is_last and (episode.is_whole or not is_last):
        yield f"row {row} of {len(episode)}: terminated, truncated: {results[1:]}"
    half = info["odd"]["half"] if "odd" in info else math.nan
    for name, value in {**info, "odd/half": half}.items():
        of_row = episode.infos.get(name, [value] * len(episode))[row]
        if name in episode.infos and not np.array_equal(of_row, value, equal_nan=True):
            yield f"row {row}: info {name} {of_row}, and was {value}"


def _steps_at_once(env: Any) -> int:
    """Returns how many steps of the innermost environment one step takes."""
    while hasattr(env, "env"):
        if hasattr(env, "times"):
            return int(env.times)
        env = env.env
    return 1


def unlike(run: Run, value: Any, columns: Mapping[str, Any], row: int, root: str) -> Iterator[str]:
    """Yields where the columns of an observation are not a value."""
    if root == "observation" and isinstance(value, Mapping):
        value = {name: part for name, part in value.items() if name != "action_mask"}
        value = value["observation"] if [*value] == ["observation"] else value
    for name, part in flat(value, root):
        want = np.asarray(part)
        want = want.astype(np.float32) if want.dtype == np.float64 else want
        if name not in columns:
            yield f"row {row}: there is no {name}"
            return
        got = columns[name][row]
        if run.config.env.origins.get(name):
            if not np.allclose(got, np.asarray(part, np.float64), rtol=0, atol=0.01):
                yield f"row {row}: {name} is {got}, and was {part}"
        elif got.dtype != want.dtype or got.shape != want.shape:
            yield f"row {row}: {name} is {got.dtype} {got.shape}, and was {want.dtype} {want.shape}"
        elif not np.array_equal(got, want):
            yield f"row {row}: {name} is {got.ravel()[:6]}, and was {want.ravel()[:6]}"


def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a nested value, with the names of their columns."""
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, part in value.items():
        yield from flat(part, f"{name}/{key}")


def acted(space: Any, columns: Mapping[str, Any], row: int, name: str = "action") -> Any:
    """Returns the action of a row as the environment was given it: discrete ones count from 0."""
    if isinstance(space, spaces.Dict):
        return {k: acted(s, columns, row, f"{name}/{k}") for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(acted(s, columns, row, f"{name}/{k}") for k, s in enumerate(space.spaces))
    value = columns[name][row]
    if isinstance(space, spaces.Box):
        return np.asarray(value, space.dtype)
    value = value + getattr(space, "start", 0)
    return np.asarray(value, space.dtype) if space.shape else space.dtype.type(value)


# ------------------------------------------------------------------------------- of several players


def replayed_team(run: Run, episode: Episode, noted: Mapping[Any, set[int]]) -> Iterator[str]:
    """Plays an episode of a team, see `hpcdi.env.team` for what its observations are."""
    env, columns, infos, rows = bare(run), episode.columns, episode.infos, episode.observations
    key = int(infos["key"][0])
    if infos["step"][0] != 1:
        if episode.is_whole or not run.was_killed:
            yield f"begins at step {infos['step'][0]}"
        return
    seen, _ = env.reset(options={"key": key})
    order = sorted(env.possible_agents)
    numbers = [env.possible_agents.index(name) for name in order]
    for row in range(len(episode)):
        here = list(env.agents)
        for name in here:
            own = seen[name]["observation"] if env._has_masks else seen[name]
            yield from unlike(run, own, rows, row, f"observation/players/{name}")
        actions = {
            name: acted(env.action_spaces[name], columns, row, f"action/{name}") for name in here
        }
        seen, rewards, terminated, *_ = env.step(actions)
        paid = np.array([rewards.get(name, 0.0) for name in env.possible_agents], np.float32)
        ended = {name: 1 if terminated[name] else 2 for name in here if name not in env.agents}
        for what, got, want in (
            ("acts", rows["observation/acts"][row], [name in here for name in order]),
            ("rewards", rows["observation/reward"][row + 1], [paid[n] for n in numbers]),
            ("ended", rows["observation/ended"][row + 1], [ended.get(name, 0) for name in order]),
            ("reward", columns["reward"][row], paid.mean()),
            ("over", columns["terminated"][row] | columns["truncated"][row], not env.agents),
            ("terminated", columns["terminated"][row], not env.agents and 1 in ended.values()),
            ("actions", digest(actions) in noted[key, int(infos["step"][row])], True),
        ):
            if not np.array_equal(got, want):
                yield f"row {row}: {what} {got}, and was {want}"


def replayed_game(run: Run, episode: Episode, noted: Mapping[Any, set[int]]) -> Iterator[str]:
    """Plays a player's part in a game: others' actions change nothing that it sees."""
    env, infos = bare(run), episode.infos
    key, step, player = (int(np.nanmax(infos[name])) for name in ("key", "step", "player"))
    me = env.possible_agents[player]
    if (key, step) not in noted:
        yield f"nobody has played step {step}"
    turns = turns_of(env, key, me, episode)
    for row, (seen, total, is_end) in enumerate(turns):
        own = seen["observation"] if env._has_masks else seen
        yield from unlike(run, own, episode.observations, row, "observation")
        yield from _unlike_turn(episode, row, total, is_end=is_end)
    if len(turns) < len(episode):
        yield f"has {len(episode)} steps, and the game {len(turns)}"


def turns_of(env: Any, key: int, me: str, episode: Episode) -> list[tuple[Any, float, bool]]:
    """Plays a game; returns of each of a player's turns, as far as an episode goes, what it saw.

    Beside it are the rewards until its next one, and whether the game, or its part in it, ended.
    """
    rng, in_turns, turns = np.random.default_rng(0), hasattr(env, "agent_iter"), list[Any]()
    seen = env.reset(options={"key": key}) if in_turns else env.reset(options={"key": key})[0]
    while env.agents:
        names = [env.agent_selection] if in_turns else list(env.agents)
        over = [n for n in names if in_turns and (env.terminations[n] or env.truncations[n])]
        actions = {name: legal(env, name, rng) for name in names if name not in over}
        if me in actions:
            if len(turns) == len(episode):
                return turns
            turns.append([env.observe(me) if in_turns else seen[me], 0.0, False])
            actions[me] = acted(env.action_spaces[me], episode.columns, len(turns) - 1)
        if in_turns:
            env.step(actions.get(names[0]))
            rewards: Any = {} if over else env.rewards
        else:
            seen, rewards, *_ = env.step(actions)
        if turns:
            turns[-1][1] += rewards.get(me, 0.0)
    if turns:
        turns[-1][2] = True
    return turns


def _unlike_turn(episode: Episode, row: int, total: float, *, is_end: bool) -> Iterator[str]:
    columns = episode.columns
    if not math.isclose(columns["reward"][row], total, rel_tol=1e-5, abs_tol=1e-5):
        yield f"row {row}: reward {columns['reward'][row]}, and was {total}"
    if bool(columns["terminated"][row] or columns["truncated"][row]) != is_end:
        yield f"row {row}: its end is {not is_end}, and was {is_end}"


def legal(env: Any, name: str, rng: np.random.Generator) -> Any:
    """Returns an action that a player may take."""
    space, mask = env.action_spaces[name], env._masks.get(name)
    if mask is None:
        return drawn(space, rng)
    return space.dtype.type(int(np.flatnonzero(mask)[0]) + int(space.start))


# ---------------------------------------------------------------------------------- what is counted


def of_counters(run: Run) -> Iterator[str]:
    """Steps and episodes are those that are stored."""
    figures, of_players = run.figures, Counter[str]()
    if not figures:
        yield from ["is done, and run.json has no figures"] * (run.facts.get("state") == "done")
        return
    for episode in run.episodes:
        of_players[episode.player] += len(episode)
    steps, ended = sum(of_players.values()), sum(map(_has_ended, run.episodes))
    counts = [("env_steps", figures["env_steps"], steps), ("episodes", figures["episodes"], ended)]
    for player, of_player in figures["players"].items():
        counts.append((f"env_steps of {player}", of_player["env_steps"], of_players[player]))
    for name, counted, stored in counts:
        if counted < stored or (run.stores_all and counted != stored):
            yield f"{name} {counted}, and {stored} are stored"
    for name in ("env_steps", "train_iter", "episodes"):
        if run.status.get(name) != figures[name] and not run.was_killed:
            yield f"status.json: {name} {run.status.get(name)}, run.json: {figures[name]}"


def _has_ended(episode: Episode) -> bool:
    return bool(episode.columns["terminated"][-1] or episode.columns["truncated"][-1])


def of_curves(run: Run) -> Iterator[str]:
    """Curves go on, have numbers, and are of what is stored."""
    for name, points in run.curves.items():
        steps, times, values = zip(*points, strict=True)
        if any(later < step for step, later in pairwise(steps)):
            yield f"curve {name} goes back: {steps}"
        if any(later < at - 0.002 for at, later in pairwise(times)):
            yield f"curve {name} goes back in time"
        if not np.isfinite(values).all():
            yield f"curve {name} has {values}"
    evaluated = [value for *_, value in run.curves.get("curves/evaluation_return", ())]
    told = [each["mean"] for each in run.figures.get("evaluations", ())]
    if told and evaluated[-len(told) :] != told:
        yield f"curves/evaluation_return {evaluated}, and run.json has {told}"
    if not run.was_killed and run.stores_all and not run.is_league:
        yield from _of_returns(run)


def _of_returns(run: Run) -> Iterator[str]:
    """The last point of collecting is the mean of the last returns."""
    totals = [episode.total for episode in run.episodes if episode.is_whole]
    collected = run.curves.get("curves/collect_return")
    if not collected or len(totals) != run.figures.get("episodes"):
        return
    last, mean = collected[-1][2], float(np.mean(totals))
    if not min(totals) - 1e-4 <= last <= max(totals) + 1e-4:
        yield f"curves/collect_return ends at {last}, beyond all returns"
    elif len(totals) > _WINDOW or run.facts.get("restarts"):
        return
    elif not math.isclose(last, mean, rel_tol=1e-4, abs_tol=1e-4):
        yield f"curves/collect_return ends at {last}, returns have the mean {mean}"


def of_evaluations(run: Run) -> Iterator[str]:
    """Each evaluation is the mean of episodes that were played one after the other."""
    cfg = run.config.env
    if run.is_league or run.is_team or getattr(cfg, "vectorization", "auto") != "auto":
        return  # vectors play on, beyond the episodes that count
    wrappers = without_reward_wrappers(getattr(cfg, "wrappers", ()))
    returns, begun = Counter[int](), dict[int, float]()
    ends = list[tuple[float, int, float]]()
    for line in run.journal("evaluations"):
        key = int(line["key"])
        if line["step"] == 1:
            returns[key], begun[key] = 0.0, line["at"]
        returns[key] += np.float32(line["reward"])
        if line["over"]:
            ends.append((begun.get(key, 0.0), key, float(returns[key])))
    if any("TimeLimit" in str(each) for each in wrappers) or cfg.kwargs.get("max_episode_steps"):
        return
    if run.config.policy.eval.max_steps < 20:
        return
    each = [total for _, _, total in sorted(ends)]
    for told in run.figures.get("evaluations", ()):
        n = told["episodes"]
        means = [np.mean(each[i : i + n]) for i in range(len(each) - n + 1)]
        if not np.isclose(means, told["mean"], rtol=1e-4, atol=1e-4).any():
            yield f"evaluation {told['mean']} of {n} episodes: there were no such ({each[:8]})"


# ----------------------------------------------------------------------------------- what is learnt


def of_ratio(run: Run) -> Iterator[str]:
    """Samples are as many as the replay ratio says; iterations are those of the samples."""
    policy, figures, cfg = run.config.policy, run.figures, run.config
    if not figures or run.is_league or run.was_killed:
        return
    roles = Counter(place["role"] for place in run.facts["placement"])
    batch = policy.learn.batch_size * max(1, roles["learner"])
    drawn, steps, iterations = (figures[n] for n in ("samples_drawn", "env_steps", "train_iter"))
    if policy.on_policy:
        if drawn > steps:
            yield f"{drawn} samples were drawn on-policy of {steps} transitions"
        return
    restarts, ratio = run.facts.get("restarts", 0), policy.replay_ratio
    if not restarts and not 0 <= drawn - iterations * batch <= cfg.system.prefetch * batch:
        yield f"{drawn} samples were drawn, and learnt {iterations} x {batch}"
    if ratio is None or cfg.data or restarts or math.isfinite(policy.buffer.max_use):
        return
    rollouts = max(1, roles["collector"]) * policy.collect.n_sample * cfg.env.collector_env_num
    due, slack = ratio * max(0, steps - policy.warm_up), max(8 * batch, 6 * ratio * rollouts)
    if not due - slack <= drawn <= due + batch:
        yield f"{drawn} samples were drawn, and {due:g} were due ({ratio:g} for a transition)"


def of_batches(given: Sequence[Episode], run: Run) -> Iterator[str]:
    """Rows of batches are transitions, with their n-step returns; on-policy each comes once."""
    files = [*(run.folder.parent / fuzz_witness.FOLDER).glob("*")]
    learnt = [np.frombuffer(f.read_bytes(), fuzz_witness.ROW) for f in files if f.stat().st_size]
    policy = run.config.policy
    is_other = run.is_team or run.is_league or run.was_killed or not run.stores_all
    if is_other or not learnt or getattr(getattr(policy, "hindsight", None), "goals", 0):
        return
    truth = defaultdict(list)
    for episode in [*run.episodes, *given]:
        seen, actions = (
            checksums(of, root)
            for of, root in ((episode.observations, "observation"), (episode.columns, "action"))
        )
        for t, reward in enumerate(episode.reward):
            truth[reward.tobytes()].append((episode, t, seen, actions))
    rows, uses = np.concatenate(learnt), Counter[tuple[int, int]]()
    knows = not (run.config.env.origins or policy.other.replay_buffer.frames)
    for row in rows:
        places = truth.get(row["reward"].tobytes(), [])
        places = [place for place in places if not knows or place[2][place[1]] == row["seen"]]
        uses.update((id(place[0]), place[1]) for place in places[:1])
        if said := _unlike_places(policy, row, places, knows=knows):
            yield f"update {row['update']}: {said}"
    often = [count for count in uses.values() if count > 1]
    if policy.on_policy and often and len(truth) == sum(map(len, run.episodes)):
        yield f"on-policy, {len(often)} transitions came in {max(often)} batches"
    if (policy.replay_ratio or 0) >= 8 and not policy.priority and len(rows) > 2000 and not given:
        never = 1 - len(uses) / max(1, sum(map(len, run.episodes)))
        if never > 0.3 and len(truth) == sum(map(len, run.episodes)):
            yield f"{never:.0%} of the transitions were never drawn"


def _unlike_places(policy: Any, row: Any, places: Sequence[Any], *, knows: bool) -> str:
    """Returns what is wrong with a row of a batch, which is of one of these places; "": nothing."""
    if not places:
        return f"a row that nobody has stored, with the reward {row['reward']}"
    if not any(row["acted"] == place[3][place[1]] for place in places):
        return "a row with another action"
    if (
        row["next"]
        and knows
        and not policy.on_policy
        and not any(_is_n_step(policy, row, place) for place in places)
    ):
        return (
            f"n-step return {row['n_step_return']}, discount {row['bootstrap_discount']}, and next "
            f"observation are of none of up to {policy.nstep} steps"
        )
    return ""


def _is_n_step(policy: Any, row: Any, place: Any) -> bool:
    """Returns whether a row's return and next observation are those of some steps from a place."""
    episode, t, seen, _ = place
    total, gamma = 0.0, policy.discount_factor
    for m in range(1, policy.nstep + 1):
        if t + m > len(episode):
            return False
        total += gamma ** (m - 1) * float(episode.reward[t + m - 1])
        discount = 0.0 if episode.columns["terminated"][t + m - 1] else gamma**m
        if (
            math.isclose(row["n_step_return"], total, rel_tol=1e-4, abs_tol=1e-5)
            and math.isclose(row["bootstrap_discount"], discount, rel_tol=1e-4, abs_tol=1e-6)
            and row["next"] == seen[t + m]
        ):
            return True
    return False
