"""`hpcdi league`, and `hpcdi eval` of two players: what they print of a run folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fakes.videos import decode_mp4
from hpcdi.cli import main
from hpcdi.commands.cross_play import _matrices
from hpcdi.commands.versus import Result, _env_num
from hpcdi.config.league import LeagueConfig
from hpcdi.config.words import dump
from hpcdi.league.battle_agent import in_turn
from hpcdi.league.league import League, frozen_file, name_of_frozen
from hpcdi.league.view import LeagueView, heat_map, scores_of, shown_of
from hpcdi.policy.create import create_policy
from hpcdi.run.experiment import load_experiment
from hpcdi.store.atomic import write_json
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.types import Array

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PettingZoo
    pytest.mark.usefixtures("same_process_state"),
]
CONFIG = Path(__file__).parent.parent.parent / "configs" / "tictactoe_league.yaml"


def league() -> League:
    made = League(LeagueConfig(fixed={"script": "fakes.battles:first_legal"}))
    for steps in (20_000, 40_000):
        made.count_steps("main", steps)
        made.freeze("main", made.next_copy("main"), steps)
    made.count_games([("main", "main_000001", 30, 10, 0), ("main", "main", 6, 1, 1)])
    return made


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """See `made_run`."""
    return made_run(tmp_path / "run")


def made_run(root: Path, *overrides: str, config: Path = CONFIG) -> Path:
    """A run folder with two frozen players, random networks all; the second has no file."""
    layout = RunLayout(root)
    script = "policy.other.commander.league.fixed={script: fakes.battles:first_legal}"
    small = "policy.model.encoder_hidden_size_list=[8]"
    compiled, _ = load_experiment(str(config), [small, script, *overrides])
    layout.root.mkdir()
    layout.config_file.write_text(dump(compiled.to_mapping()))
    write_json(layout.run_file, {"state": "done"})
    for seed, path in enumerate((layout.latest_policy, layout.root / frozen_file("main_000001"))):
        policy = create_policy(compiled.config.policy, ["eval"], seed=np.random.SeedSequence(seed))
        path.parent.mkdir()
        publish_policy(path, PolicyImage.of(policy.eval_mode.state_dict()["model"], seed))
    LeagueView(layout.league_file, None).refresh(league(), 50_000, 0.0)
    return layout.root


def test_a_table_of_several_players_that_learn(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(run_dir)
    made = League(LeagueConfig(players={"main": "main", "exploiter": "main_exploiter"}))
    made.count_games([("exploiter", "main", 3, 0, 1)])
    ranks = {"main": [1, 2], "exploiter": []}
    LeagueView(layout.league_file, None).refresh(made, 0, 0.0, learners=ranks)
    arguments = ["league", str(run_dir), "--player"]
    assert main([*arguments, "exploiter"]) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    by_name = {row.split()[0]: row for row in rows}
    assert "trains on 1, 2 " in by_name["main"]
    assert by_name["main"].split()[-6:] == ["4", "75%", "0%", "25%", "0.750", "100%"]
    assert "has no learner" in by_name["exploiter"]
    assert main([*arguments, "main_000001"]) == 2
    said = capsys.readouterr().err
    assert "--player main_000001 does not learn here; main, exploiter do" in said
    layout.latest_policy.rename(layout.latest_policy_of("exploiter"))
    games = ["eval", str(run_dir), "--player", "exploiter", "--against", "random", "--games", "2"]
    assert main(games) == 0
    assert "exploiter (train iteration 0) against random" in capsys.readouterr().out
    assert main(["eval", str(run_dir), "--player", "nobody"]) == 2
    assert "there are main, best, exploiter, main_000001" in capsys.readouterr().err


def test_the_table(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = run_dir / "payoff.png"
    assert main(["league", str(run_dir), "--png", str(picture)]) == 0
    title, _, *rows, last = capsys.readouterr().out.splitlines()
    assert title.endswith("env step 50k, 48 games, 2 frozen players, pfsp")
    by_name = {row.split()[0]: row.split() for row in rows}
    assert by_name["main_000001"][1:3] == ["historical", "20k"]
    assert by_name["main_000001"][6:11] == ["40", "75%", "25%", "0%", "0.875"]
    assert by_name["main"][1:3] == ["trains", "-"]
    assert by_name["main_000002"][3] == "-"
    assert "script" in by_name
    elos = [int(by_name[name][3]) for name in ("main", "main_000001")]
    assert elos[0] > 1500 > elos[1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert last.endswith("main, script, main_000001, main_000002")
    assert main(["league", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["games"] == 48


def test_a_copy_is_not_said_to_be_frozen_at_a_step_that_is_unknown(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = league()
    shown.count_games([("main", "main_000003", 1, 0, 0)])
    LeagueView(RunLayout(run_dir).league_file, None).refresh(shown, 60_000, 0.0)
    assert main(["league", str(run_dir)]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["main_000003", "historical", "-"] in [row[:3] for row in rows]


def test_a_fixed_player_is_what_the_league_says_whatever_files_there_are(run_dir: Path) -> None:
    layout = RunLayout(run_dir)
    (layout.league_dir / "script.safetensors").write_bytes(b"no policy of the league's")
    assert main(["eval", str(run_dir), "--against", "script", "--games", "2"]) == 0


def test_who_can_play_is_said_of_each_option(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run_dir), "--player", "script"]) == 2
    assert capsys.readouterr().err.endswith("there are main, best, main_000001 to main_000001\n")
    assert main(["eval", str(run_dir), "--against", "nobody"]) == 2
    those = "there are main, best, main_000001 to main_000001, random, script, and my_module:play\n"
    assert capsys.readouterr().err.endswith(f"--against nobody is no player of {run_dir}; {those}")
    assert main(["eval", str(run_dir), "--against", "string:digits"]) == 2
    assert "--against: string:digits is no function play(observ" in capsys.readouterr().err


def test_a_function_in_the_present_folder_plays(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that an experiment names are found there, too."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "plays_here.py").write_text("from fakes.battles import first_legal as play")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(run_dir), "--against", "plays_here:play", "--games", "2"]) == 0


def test_which_policy_plays_another_is_said_by_its_name(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--player", "main"], ["--against", "random"]):
        assert main(["eval", str(run_dir), "--policy", "best", *option]) == 2
        assert "--player main for the run's latest policy" in capsys.readouterr().err


def test_a_run_that_is_no_league(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunLayout(run_dir).league_file.unlink()
    assert main(["league", str(run_dir)]) == 2
    assert "has no league.json" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["players", "payoff", "ratings", "games", "env_steps"])
def test_a_damaged_league_is_refused(
    run_dir: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = RunLayout(run_dir).league_file
    shown = json.loads(file.read_text())
    for value in ("\x1b[2J", {"main": "x"}, [3]):
        write_json(file, {**shown, key: value})
        assert main(["league", str(run_dir), "--cross-play"]) == 2
        assert "league.json is damaged: " in capsys.readouterr().err


def test_the_picture_is_blue_where_the_row_wins() -> None:
    picture = heat_map(scores_of(shown_of(league(), 0)))
    main_row, against_first = picture[0], 2 * 12  # main, script, main_000001
    red, _, blue = main_row[against_first].astype(int)
    assert blue > red
    red, _, blue = picture[against_first, 0].astype(int)
    assert red > blue
    assert len(set(main_row[12].tolist())) == 1, "grey: they have not played"


def test_cross_play(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = RunLayout(run_dir)
    arguments = ["league", str(run_dir), "--cross-play", "--games", "8", "env.evaluator_env_num=4"]
    assert main(arguments) == 2
    missing = capsys.readouterr().err
    assert "lacks the policies of 1 players: league/main_000002.safetensors" in missing
    assert not layout.cross_play_file.exists()
    frozen = layout.root / frozen_file("main_000001")
    (layout.root / frozen_file("main_000002")).write_bytes(frozen.read_bytes())
    assert main([*arguments, "--random", "0.3"]) == 0
    title, _, *rows, rise, last = capsys.readouterr().out.splitlines()
    assert "6 pairs of 4 players, 8 games each" in title
    assert "the run goes on" not in title
    assert [row.split()[0] for row in rows] == ["main", "script", "main_000001", "main_000002"]
    assert rise.startswith("main_000002 is ")
    assert rise.endswith(" by more than 2 standard deviations: none of 1")
    assert last.endswith("cross_play.png")
    assert layout.cross_play_file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads(layout.cross_play_file.read_text())
    assert kept["ratings"].keys() == {"main", "script", "main_000001", "main_000002"}
    assert all(pair["wins"] + pair["draws"] + pair["losses"] == 8 for pair in kept["pairs"])
    assert [pair["other"] for pair in kept["pairs"][:3]] == ["script", "main_000001", "main_000002"]
    assert main([*arguments, "--random", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == kept, "seeded"
    # the same policy twice, and nothing is drawn: one game a seat, which the same one wins
    assert main([*arguments, "--json"]) == 0
    twins = json.loads(capsys.readouterr().out)["pairs"][-1]
    assert (twins["score"], twins["score_std_error"]) == (0.5, 0.0)


def test_an_error_that_is_not_known_is_in_no_mean(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From one seat there is one game of each pair."""
    shown = league()
    del shown.players["main_000002"]
    LeagueView(RunLayout(run_dir).league_file, None).refresh(shown, 50_000, 0.0)
    play = ["league", str(run_dir), "--cross-play", "env.evaluator_env_num=1", "--games"]
    assert main([*play, "2"]) == 0
    printed = capsys.readouterr().out
    rows = [row.split() for row in printed.splitlines()[2:5]]
    assert [row[-2].partition("±")[2] for row in rows] == ["?"] * 3
    assert "ended alike" not in printed
    assert main([*play, "4"]) == 0, "nothing is drawn, and each seat has two games"
    printed = capsys.readouterr().out
    assert "?" not in printed
    assert "a pair's games from one seat all ended alike; --random 0.1" in printed


def test_the_error_of_one_game_a_seat_is_not_known(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run_dir), "--player", "main_000001", "--games", "2"]) == 0
    assert " ± ?\n" in capsys.readouterr().out


def test_all_seats_have_equally_many_games(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run_dir), "--player", "main_000001", "--games", "3"]) == 0
    printed = capsys.readouterr().out
    assert "  games        4: " in printed
    assert "lost (not 3, for all seats equally often)\n" in printed
    assert " ± ?\n" not in printed
    for most, games, seats in ((8, 200, 2), (8, 6, 2), (2, 4, 4), (5, 12, 3), (8, 60, 6)):
        env_num = _env_num(most, games, seats)
        at = [in_turn(game, seats) for game in range(games // env_num * env_num)]
        assert np.bincount(at).tolist() == [games // seats] * seats, (most, games, seats)
    assert main(["eval", str(run_dir), "--games", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["returns"]) == 4, "as the run evaluates it"


def test_a_copy_that_is_weaker_than_the_one_before_is_named(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = league()
    third = name_of_frozen(shown.next_copy("main"))
    shown.freeze("main", frozen_file(third), 60_000)
    shown.count_games(
        [("main_000001", "main_000002", 100, 0, 400), ("main_000002", third, 9, 0, 1)]
    )
    LeagueView(RunLayout(run_dir).league_file, None).refresh(shown, 60_000, 0.0)
    assert main(["league", str(run_dir)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("main_000003 is -")
    assert " Elo above main_000001; weaker than the copy before" in last
    assert ": main_000003 (-" in last
    assert last.endswith(") of 2")
    shown.count_games([("main_000002", third, 0, 0, 90)])
    LeagueView(RunLayout(run_dir).league_file, None).refresh(shown, 60_000, 0.0)
    assert main(["league", str(run_dir)]) == 0
    assert capsys.readouterr().out.endswith(": none of 2\n")


@pytest.mark.parametrize("form", ["Shaped", "Named", "Loud"])
def test_figures_where_actions_are_no_bare_numbers_or_the_game_prints(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "game.yaml"
    env = {"type": "pettingzoo", "env_id": f"fakes.battle_envs:{form}"}
    collect = {"collector": {"type": "marine"}}
    policy = {"type": "ppo", "collect": collect, "other": {"commander": {"type": "one_vs_one"}}}
    config.write_text(dump({"exp_name": "game", "env": env, "policy": policy}))
    layout = RunLayout(made_run(tmp_path / "run", config=config))
    shown = League(LeagueConfig())
    shown.freeze("main", shown.next_copy("main"), 0)
    LeagueView(layout.league_file, None).refresh(shown, 0, 0.0)
    assert main(["league", str(layout.root), "--exploitability", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["main"]["exploitability"] == 1.0, "it always plays the same one of three"
    assert main(["league", str(layout.root), "--cross-play", "--games", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["games"] == 2


def test_exploitability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = RunLayout(made_run(tmp_path / "run", "env.env_id=hpcdi.env.games:KuhnPoker"))
    shown = league()
    del shown.players["main_000002"]
    LeagueView(layout.league_file, None).refresh(shown, 50_000, 0.0)
    arguments = ["league", str(layout.root), "--exploitability"]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["main", "main_000001", "average of the frozen"], "fixed ones may draw"
    assert said["main_000001"] == said["average of the frozen"], "the only one"
    assert all(one["exploitability"] == sum(one["won"]) / 2 > 0 for one in said.values())
    assert main(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    copy = (layout.root / frozen_file("main_000001")).read_bytes()
    for _ in range(50):  # more than are in pictures and tables
        file = shown.next_copy("main")
        shown.freeze("main", file, 0)
        (layout.root / file).write_bytes(copy)
    (layout.root / frozen_file("main_000001")).write_bytes(layout.latest_policy.read_bytes())
    LeagueView(layout.league_file, None).refresh(shown, 50_000, 0.0)
    assert main([*arguments, "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)
    assert "main_000001" not in newest
    assert len(newest) == 42
    assert newest["average of the frozen"] != newest["main_000051"], "the first has its share"


def test_options_of_cross_play_need_it(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run_dir), "--games", "8"]) == 2
    assert "--games is for the games of --cross-play: add that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "0"], "--seed is for the games of --cross-play: add that"),
        (["--cross-play", "--player", "main"], "--player changes nothing with --cross-play"),
        (["--exploitability", "--games", "8"], "--games changes nothing with --exploitability"),
        (["--exploitability", "--random", "0"], "--random changes nothing"),
        (["--exploitability", "--png", "a.png"], "--png changes nothing"),
        (["--exploitability", "--player", "main"], "--player changes nothing"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["league", str(run_dir), *words]) == 2
    assert said in capsys.readouterr().err


def test_the_error_of_a_score_is_that_within_seats() -> None:
    own, seats = np.array([1.0, 1, 1, -1, -1, -1]), np.array([0, 0, 0, 1, 1, 1])
    assert Result(own, -own[:, None], seats).std_error == 0.0
    mixed = Result(np.array([1.0, -1, 1, -1]), np.zeros((4, 1)), np.array([0, 0, 1, 1]))
    # each seat: variance 1/2 of its points, 1/4 of the mean of its two games; half of each
    assert mixed.std_error == pytest.approx(np.sqrt(2 * 0.25 / 4))
    assert np.isnan(Result(own[:3], -own[:3, None], seats[2:5]).std_error)
    assert Result(np.array([3.0, 1, 2]), np.full((3, 1), 2.0), np.zeros(3)).counts == (1, 1, 1)


def test_of_more_seats_than_two_the_score_of_a_pair_is_that_of_both_ways() -> None:
    """Who is alone may win, whoever it is."""
    seats = np.arange(8) % 4
    alone = Result(np.ones(8), np.zeros((8, 3)), seats)
    half = Result(np.array([1.0, 1, 1, 1, 0, 0, 0, 0]), np.full((8, 3), 0.5), seats)
    scores, errors = _matrices(["a", "b"], {("a", "b"): alone, ("b", "a"): half})
    np.testing.assert_allclose(scores, [[np.nan, 0.75], [0.25, np.nan]])
    np.testing.assert_allclose(errors[0, 1], half.std_error / 2)
    assert errors[1, 0] == errors[0, 1] > 0
    scores, _ = _matrices(["a", "b"], {("a", "b"): alone})
    np.testing.assert_allclose(scores, [[np.nan, 1.0], [0.0, np.nan]])


class FirstWins:
    """A game of four players and one step: who sits first wins."""

    agents = 4
    observation_space = (Box(-1, 1, (2,), np.float32),) * 4
    action_space = (Discrete(2),) * 4

    def reset(self, seed: int | None = None) -> list[Array]:
        return [np.zeros(2, np.float32)] * 4

    def step(self, actions: Any) -> tuple[list[Array], Array, bool, list[dict[str, float]]]:
        won: Array = np.array([1, 0, 0, 0], np.float32)
        return self.reset(), won, True, [{"eval_episode_return": float(own)} for own in won]

    def close(self) -> None: ...


def test_equal_players_have_half_of_the_points_however_many_seats_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A player of one seat had 0.25 against one of three: its return was set against their mean."""
    config = tmp_path / "game.yaml"
    env = {"type": "pettingzoo", "env_id": f"{__name__}:FirstWins"}
    collect = {"collector": {"type": "marine"}}
    policy = {"type": "ppo", "collect": collect, "other": {"commander": {"type": "one_vs_one"}}}
    config.write_text(dump({"exp_name": "game", "env": env, "policy": policy}))
    root = made_run(tmp_path / "run", config=config)
    shown = League(LeagueConfig())
    shown.freeze("main", shown.next_copy("main"), 20_000)
    LeagueView(RunLayout(root).league_file, None).refresh(shown, 50_000, 0.0)
    # of 8 games it wins 2, and in 6 it loses to one of three others, and draws with two
    expected = {"games": 8, "wins": 2, "draws": 4, "losses": 2, "score": 0.5}
    games = ["--games", "8", "--json"]
    for one, other in (("main", "main_000001"), ("main_000001", "main")):
        assert main(["eval", str(root), "--player", one, "--against", other, *games]) == 0
        assert json.loads(capsys.readouterr().out).items() >= expected.items()
    assert main(["eval", str(root), "--against", "random", "--games", "4"]) == 0
    assert "  games        4: 1 won, 2 drawn, 1 lost\n" in capsys.readouterr().out
    assert main(["league", str(root), "--cross-play", *games]) == 0
    said = json.loads(capsys.readouterr().out)
    assert all(pair.items() >= expected.items() for pair in said["pairs"])
    ways = [("main", "main_000001"), ("main_000001", "main")]
    assert [(pair["one"], pair["other"]) for pair in said["pairs"]] == ways
    assert len({round(elo, 6) for elo, _ in said["ratings"].values()}) == 1


def test_two_players_are_filmed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    arguments = ["eval", str(run_dir), "--player", "main_000001", "--against", "random"]
    assert main([*arguments, "--games", "2", "--video", "--json", "--seed", "5"]) == 0
    video = Path(json.loads(capsys.readouterr().out)["video"])
    assert video == run_dir / "videos" / "main_000001_against_random_seed_5.mp4"
    frames = decode_mp4(video, 320, 320)
    assert 2 * 6 <= len(frames) <= 2 * 10  # 5 to 9 moves, and a picture of how it has ended
    blank = [k for k, f in enumerate(frames) if np.abs(f.astype(int) - frames[0]).max() < 40]
    assert len(blank) == 2, "each game begins with an empty board"
    unknown = [*arguments, "--video", "env.env_id=fakes.battles:blank"]
    assert main(unknown) == 1
    assert "fakes.battles:blank cannot be filmed (" in capsys.readouterr().err


def test_a_policy_is_evaluated_as_its_run_does(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It always sat first, and its opponent drew its moves, whatever evaluate_against said."""
    told = []
    script = "policy.other.commander.evaluate_against=fakes.battles:first_legal"
    for how in (["--policy", "latest", script], ["--against", "script"]):
        assert main(["eval", str(run_dir), *how, "--episodes", "8", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert sorted(told[0]["returns"]) == sorted(told[1]["returns"])
    assert len(set(told[0]["lengths"])) == 2, "who begins has other games"


def test_two_players_play(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", str(run_dir), "--player", "main_000001", "--games", "12", "--json"]
    for against in ("main", "random", "script", "module=fakes.battles:first_legal"):
        name, _, source = against.partition("=")
        code = main([*arguments, "--against", source or name])
        out, err = capsys.readouterr()
        assert code == 0, err
        said = json.loads(out)
        assert said["wins"] + said["draws"] + said["losses"] == said["games"] == 12
        assert said["score"] == pytest.approx((said["wins"] + said["draws"] / 2) / 12)
