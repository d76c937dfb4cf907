"""`hpcdi league`, and `hpcdi eval` of two players: what they print of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpcdi.cli import main
from hpcdi.config.load import dump
from hpcdi.launch.experiment import load_experiment
from hpcdi.policy.create import create_policy
from hpcdi.store.atomic import write_json
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import pack, publish_policy
from hpcdi.worker.coordinator.league import League, LeagueConfig, frozen_file
from hpcdi.worker.coordinator.league_view import LeagueView, heat_map, shown_of

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
        name = made.next_frozen("main")
        made.freeze("main", name, frozen_file(name), steps)
    made.count_games([("main", "main_000001", 30, 10, 0), ("main", "main", 6, 1, 1)])
    return made


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with two frozen players, random networks all."""
    layout = RunLayout(tmp_path / "run")
    compiled, _ = load_experiment(str(CONFIG), ["policy.model.encoder_hidden_size_list=[8]"])
    layout.root.mkdir()
    layout.config_file.write_text(dump(compiled.to_mapping()))
    write_json(layout.run_file, {"state": "done"})
    for seed, path in enumerate((layout.latest_policy, layout.root / frozen_file("main_000001"))):
        policy = create_policy(compiled.config.policy, ["eval"], seed=np.random.SeedSequence(seed))
        path.parent.mkdir()
        publish_policy(path, pack(policy.eval_mode.state_dict()["model"], seed))
    LeagueView(layout.league_file, None).refresh(league(), 50_000, 0.0)
    return layout.root


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


def test_a_run_that_is_no_league(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunLayout(run_dir).league_file.unlink()
    assert main(["league", str(run_dir)]) == 2
    assert "has no league.json" in capsys.readouterr().err


def test_the_picture_is_blue_where_the_row_wins() -> None:
    picture = heat_map(shown_of(league(), 0))
    main_row, against_first = picture[0], 2 * 12  # main, script, main_000001
    red, _, blue = main_row[against_first].astype(int)
    assert blue > red
    red, _, blue = picture[against_first, 0].astype(int)
    assert red > blue
    assert len(set(main_row[12].tolist())) == 1, "grey: they have not played"


def test_two_players_play(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", str(run_dir), "--player", "main_000001", "--games", "12", "--json"]
    for against in ("main", "random", "script=fakes.battles:first_legal"):
        name, _, source = against.partition("=")
        code = main([*arguments, "--against", source or name])
        out, err = capsys.readouterr()
        assert code == 0, err
        said = json.loads(out)
        assert said["wins"] + said["draws"] + said["losses"] == said["games"] == 12
        assert said["score"] == pytest.approx((said["wins"] + said["draws"] / 2) / 12)
    assert main([*arguments, "--against", "nobody"]) == 2
    assert "--against nobody is no player" in capsys.readouterr().err
    assert main(["eval", str(run_dir), "--player", "nobody"]) == 2
    assert "main_000001" in capsys.readouterr().err
