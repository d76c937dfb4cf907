"""What is wrong with a run of odd environments, compared with what these say and do themselves.

Each stored episode is played again, action by action, in the bare environment; it must be in the
journal that the run's own environments have written, once; counters and curves must be those of the
stored episodes; batches must be of their rows, and as many as the replay ratio says.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import combinations, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

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
from hpcdi.store.policies import read_policy

_MOST = 3
"""Objections of a kind that are said."""
_OF_EACH = ("acts", "rewards")
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
    counted = (of_counters, of_curves, of_evaluations, of_games, of_ratings, of_copies)
    said = []
    for part in (of_data, *counted, of_ratio, partial(of_batches, given)):
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
            *_returns_of(run, episode, row, dict(zip(order, paid[numbers], strict=True)), ended),
        ):
            if not np.array_equal(got, want):
                yield f"row {row}: {what} {got}, and was {want}"


def _returns_of(
    run: Run, episode: Episode, row: int, paid: Mapping[str, float], ended: Mapping[str, int]
) -> Iterator[tuple[str, Any, Any]]:
    """Yields one-step returns and discounts of a row's players, or whole teams, and what is due."""
    columns, (acts, later) = (
        episode.columns,
        episode.observations["observation/acts"][row : row + 2],
    )
    for name in columns:
        what, _, whose = name.partition("/")
        if what not in ("n_step_return", "bootstrap_discount"):
            continue
        policy = run.config.policy.policies[whose.partition("_")[0]]
        mates = [mate for mate in paid if whose in (mate, mate.partition("_")[0])]
        endings = [ended.get(mate, 0) for mate in mates]
        is_over = (
            endings == [1] if whose in paid else columns["terminated"][row] and 2 not in endings
        )
        due = policy.discount_factor * (not is_over)
        if what == "n_step_return":
            due = np.mean([paid[mate] for mate in mates])
        at = [[*paid].index(mate) for mate in mates]
        goes = run.config.env.kwargs["comes"] and not later[at].all()  # what it is paid on return
        if policy.nstep == 1 and acts[at].any() and not goes:
            is_close = math.isclose(columns[name][row], due, rel_tol=1e-4, abs_tol=1e-5)
            yield name, columns[name][row], columns[name][row] if is_close else due


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
    wrappers = without_reward_wrappers(getattr(cfg, "wrappers", ()))
    returns, begun = dict[int, Any](), dict[int, float]()
    ends = list[tuple[float, int, Any]]()
    for line in run.journal("evaluations"):
        key = int(line["key"])
        if line["step"] == 1:
            returns[key], begun[key] = np.zeros(6), line["at"]
        returns[key] += line["rewards"] if run.is_league else np.float32(line["reward"])
        if line["over"]:
            ends.append((begun[key], key, returns[key]))
    if any("TimeLimit" in str(each) for each in wrappers) or cfg.kwargs.get("max_episode_steps"):
        return
    if run.config.policy.eval.max_steps < 20:
        return
    each = [totals for _, _, totals in sorted(ends, key=itemgetter(0, 1))]
    seats = len(bare(run).possible_agents) if run.is_league else 1
    # vectors play on, beyond the episodes that count; players are evaluated beside each other
    others = 4 if run.is_league or getattr(cfg, "vectorization", "auto") != "auto" else 0
    for told in run.figures.get("evaluations", ()):
        n = told["episodes"]
        if others and n > 6:  # of so many there are too many choices
            continue
        seated = [*product(range(seats), repeat=n)]
        seated = [of for of in seated if len({of.count(seat) for seat in range(seats)}) == 1]
        means = [
            np.mean([totals[seat] for totals, seat in zip(games, of, strict=True)])
            for i in range(len(each) - n + 1)
            for games in combinations(each[i : i + n + others], n)
            for of in seated
        ]
        if not np.isclose(means, told["mean"], rtol=1e-4, atol=1e-4).any():
            said = [totals[:seats].tolist() for totals in each[:8]]
            yield f"evaluation {told['mean']} of {n} episodes: there were no such ({said})"


def of_games(run: Run) -> Iterator[str]:
    """Results of a league of two are those of the games that were played; no kill adds any."""
    is_counted = run.is_league and run.figures and not run.config.env.seeds
    if not is_counted or len(bare(run).possible_agents) != 2:
        return
    who, ended, unsure = defaultdict[Any, dict[Any, str]](dict), 0, 0
    for episode in run.episodes:
        key, seat = episode.infos["key"][0], episode.infos["player"][0]
        who[key].update({seat: episode.player} if math.isfinite(seat) else {})
    played, told = (defaultdict[Any, Any](lambda: np.zeros(3, int)) for _ in range(2))
    for key, acts, totals in games_of(run):
        seats, ended = who[key], ended + 1
        # of one who has left, infos do not say which game it was: the rival may be the same player
        is_sure = acts.all() and not run.config.env.kwargs["leaves"]
        if len(seats) == 2 or (seats and is_sure):
            first = int(min(seats))
            result = np.sign(totals[1 - first] - totals[first])
            played[seats[first], len(seats) == 2][int(result) + 1] += 1
        else:
            unsure += 1
    rows = read_json(run.folder / "league.json")["payoff"]
    for row in rows:
        one, other, counts = row["one"], row["other"], np.array(row["games"])
        told[one, one == other] += counts
        told[other, False] += counts[::-1] * (one != other)
    for (name, is_alone), results in played.items():
        if (results > told[name, is_alone]).any() and not run.was_killed:
            rivals = "itself" if is_alone else "others"
            yield f"{name} played {results} against {rivals}, told are {told[name, is_alone]}"
    least = 0 if run.was_killed else ended - unsure
    if not least <= sum(sum(row["games"]) for row in rows) <= ended:
        yield f"{ended} games ended, {unsure} of them without a turn of a learner: {rows}"


def games_of(run: Run) -> Iterator[tuple[int, Any, Any]]:
    """Yields the key of each game of two that ended, who of them acted, and their returns."""
    games = defaultdict[int, list[Any]](list)
    for line in run.journal("steps"):
        games[int(line["key"])].append(line)
    for key, lines in games.items():
        if lines[-1]["over"]:
            acts, rewards = (np.array([line[name][:2] for line in lines]) for name in _OF_EACH)
            yield key, acts.any(axis=0), rewards.sum(axis=0)


def of_ratings(run: Run) -> Iterator[str]:
    """Ratings are the most probable ones: there the slope of their probability is 0."""
    if not run.is_league or not run.figures:
        return
    shown, slope, unit = read_json(run.folder / "league.json"), Counter[str](), 400 / math.log(10)
    elo = {name: (rating - 1500) / unit for name, (rating, _) in shown["ratings"].items()}
    for row in shown["payoff"]:
        one, other, (wins, draws, losses) = row["one"], row["other"], row["recent"]
        if one != other:
            due = (wins + draws + losses) / (1 + math.exp(elo[other] - elo[one]))
            slope.update({one: wins + draws / 2 - due})
            slope.subtract({other: wins + draws / 2 - due})
    for name, value in elo.items():
        if abs(slope[name] - value * (unit / 400) ** 2) > 1e-4:
            yield f"the rating of {name} is {shown['ratings'][name]}: {shown['payoff']}"


def of_copies(run: Run) -> Iterator[str]:
    """Frozen copies are there, as they are told; opponents are drawn by whole probabilities."""
    if not run.is_league or not run.figures:
        return
    shown = read_json(run.folder / "league.json")
    for name, drawn_by in shown["drawn_by"].items():
        if not math.isclose(sum(drawn_by.values()), 1):
            yield f"opponents of {name} are drawn by {drawn_by}"
    for player in shown["players"]:
        if player["role"] == "historical":
            version = read_policy(run.folder / player["source"]).version
            if version != player["version"]:
                yield f"{player['name']} is of iteration {player['version']}, its file {version}"


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
    copied = ratio * policy.warm_up * (getattr(policy, "hindsight", None) is not None)
    if not due - slack <= drawn <= due + batch + copied:  # copies fill the buffer, too
        yield f"{drawn} samples were drawn, and {due:g} were due ({ratio:g} for a transition)"


def of_batches(given: Sequence[Episode], run: Run) -> Iterator[str]:
    """Rows of batches are transitions, with their n-step returns; on-policy each comes once."""
    files = [*(run.folder.parent / fuzz_witness.FOLDER).glob("*")]
    policy, uses = run.config.policy, Counter[tuple[int, int]]()
    if not any(f.stat().st_size for f in files) or run.was_killed or not run.stores_all:
        return
    knows = not (run.config.env.origins or policy.other.replay_buffer.frames)
    hindsight = getattr(getattr(policy, "hindsight", None), "goals", 0)
    made = [copy for e in run.episodes for copy in with_other_goals(run, e)] if hindsight else []
    truth, owners = places_of([*run.episodes, *given, *made], knows=knows), owners_of(run)
    for file in files:
        before = set[tuple[int, int]]()  # where the row before is from
        for row in np.frombuffer(file.read_bytes(), fuzz_witness.ROW):
            places = truth.get((row["reward"].tobytes(), row["seen"] if knows else 0), [])
            uses.update(place.at for place in places[:1])
            owner, is_known = owners.get(int(file.suffix[1:]), ""), bool(places)
            places = [p for p in places if not owner or p.episode.player == owner]
            if row["step"]:
                places = [p for p in places if (p.at[0], p.t - 1) in before]
            before = {place.at for place in places}
            said = _unlike_places(policy, row, places, knows=knows)
            if is_known and not places:
                said = f"step {row['step']} of a sequence does not follow, or is not of {owner}"
            if said:
                yield f"update {row['update']}: {said}"
    often = [count for count in uses.values() if count > 1]
    is_unique = all(len(places) == 1 for places in truth.values())
    if policy.on_policy and often and is_unique:
        yield f"on-policy, {len(often)} transitions came in {max(often)} batches"
    if (policy.replay_ratio or 0) >= 8 and not policy.priority and uses.total() > 2000:
        never = 1 - len(uses) / max(1, len(truth))
        if never > 0.3 and is_unique and not given and not hindsight:
            yield f"{never:.0%} of the transitions were never drawn"


class Place(NamedTuple):
    """A transition of an episode, with the checksums of the episode's observations and actions."""

    at: tuple[int, int]
    episode: Episode
    t: int
    seen: Sequence[int]
    actions: Sequence[int]


def places_of(episodes: Iterable[Episode], *, knows: bool) -> dict[Any, list[Place]]:
    """Returns where transitions are, by their reward and, if it `knows` them, observation."""
    truth = defaultdict[Any, list[Place]](list)
    for episode in episodes:
        seen = checksums(episode.observations, "observation")
        actions = checksums(episode.columns, "action")
        for t, reward in enumerate(episode.reward):
            place = Place((id(episode), t), episode, t, seen, actions)
            truth[reward.tobytes(), seen[t] if knows else 0].append(place)
    return truth


def with_other_goals(run: Run, episode: Episode) -> Iterator[Episode]:
    """Yields an episode up to each of its steps, with what that reached as the goal."""
    judge, seen = bare(run).unwrapped.compute_reward, episode.observations
    reached = seen["observation/achieved_goal"]
    for end in range(1, len(episode) + 1):
        goals = np.repeat(reached[end : end + 1], end + 1, axis=0)
        paid = np.array([judge(each, goals[0], {}) for each in reached[1 : end + 1]], np.float32)
        columns = {name: column[:end] for name, column in episode.columns.items()}
        observations = {name: column[: end + 1] for name, column in seen.items()}
        observations["observation/desired_goal"] = goals
        yield dataclasses.replace(
            episode, columns={**columns, "reward": paid}, observations=observations
        )


def owners_of(run: Run) -> dict[int, str]:
    """Returns which player of a league each learner rank trains; of a resumed run nothing."""
    shown = {} if run.facts.get("restarts") else read_json(run.folder / "league.json")
    return {rank: name for name, ranks in shown.get("learners", {}).items() for rank in ranks}


def _unlike_places(policy: Any, row: Any, places: Sequence[Place], *, knows: bool) -> str:
    """Returns what is wrong with a row of a batch, which is of one of these places; "": nothing."""
    if not places:
        return f"a row that nobody has stored, with the reward {row['reward']}"
    if not any(row["acted"] == place.actions[place.t] for place in places):
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


def _is_n_step(policy: Any, row: Any, place: Place) -> bool:
    """Returns whether a row's return and next observation are those of some steps from a place."""
    _, episode, t, seen, _ = place
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
