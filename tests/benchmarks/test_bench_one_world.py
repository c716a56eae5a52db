"""The benchmark `one_world`: damaged episodes, pictures, and figures that other benchmarks measured."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "data"))
from episode_maker import make_episode

from benchmarks import one_world
from benchmarks.__main__ import main
from benchmarks.one_world import _DAMAGES, _gathered, _newest, _of_broken, _of_cost, psnr
from vla_rl.cli.main import main as vla_rl
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore

TINY = ("--config", "tiny", "algorithm=imagined_edit", "takeover={enabled: false}", "exploration=0.1")
PARTS = "dynamics: {steps: 5}, value: {steps: 5}, branches: {updates: 2, branches: 16}"
LEARNING = f"learning={{distill_steps: 2, actor: {{batch_size: 8}}, {PARTS}}}"


def test_the_ratio_is_that_of_the_mean_squared_error() -> None:
    black = torch.zeros(2, 1, 4, 4, 3, dtype=torch.uint8)
    assert psnr(black + 255, black) == pytest.approx(0.0)
    assert psnr(black + 51, black) == pytest.approx(20 * np.log10(5))


@pytest.mark.parametrize("name", list(_DAMAGES))
def test_a_damage_meets_the_newest_episodes_alone(tmp_path: Path, name: str) -> None:
    store = EpisodeStore(tmp_path / "store")
    action = np.repeat(np.arange(6, dtype=np.float32)[:, None], 2, axis=1)
    for version in (0, 1):
        store.add(make_episode(f"round-{version}", 6, version, policy_version=version, action_sent=action))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    pictures, sent = np.array(cache.images["front"]), np.array(cache.action_sent)
    (frames,) = _newest(cache)
    assert frames.tolist() == [6, 7, 8, 9, 10, 11]
    _DAMAGES[name](cache, frames)
    now, commands = cache.images["front"], cache.action_sent
    assert (now[:6] == pictures[:6]).all()
    assert (commands[:6] == sent[:6]).all()
    if name == "colors permuted":
        assert (now[6:] == pictures[6:][..., [1, 2, 0]]).all()
    elif name.startswith("pictures moved"):
        assert (now[6:, :, 4:] == pictures[6:, :, :-4]).all()
    elif name == "actions a tick later":
        assert commands[6:, 0].tolist() == [0, 0, 1, 2, 3, 4]
    elif name == "actions a tick earlier":
        assert commands[6:, 0].tolist() == [1, 2, 3, 4, 5, 5]
    else:
        assert (now == pictures).all()
        assert (commands == sent).all()


def test_a_false_alarm_is_not_a_broken_world_that_was_found() -> None:
    def answer(damage: str, reason: str) -> dict[str, str]:
        return {"damage": damage, "reason": reason}

    cell = {"broken": [answer("unchanged", "out of step"), answer("moved", "1.5 times"), answer("red", "")]}
    found = _of_broken([cell])
    assert (found["broken_worlds"], found["broken_worlds_found"], found["false_alarms"]) == (2, 1, 1)
    assert _of_broken([]) == {}


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    assert _gathered(tmp_path) == {}
    ladder = [{"rung": "true_td", "practised": 0.7}, {"rung": "true_dynamics", "practised": 0.1}]
    values = [{"learnt": {"within": [0.0, 0.1, 0.2]}}, {"learnt": {"within": [0.0, 0.1, 0.4]}}]
    file = {"gain_158": 15.0, "ladder": ladder, "branch_values": values}
    (tmp_path / "imagination.json").write_text(json.dumps(file))
    assert _gathered(tmp_path) == {
        "gain_150_points": 15.0,
        "oracle_one_round": 0.7,
        "branch_correlation_3": pytest.approx(0.3),
    }


def test_the_cost_of_damages_leaves_unchanged_episodes_out() -> None:
    def side(damage: str, imagined: int, unimagined: int) -> dict[str, object]:
        return {"damage": damage, "imagined": imagined, "unimagined": unimagined}

    cell = {"episodes": 50, "cost": [side("unchanged", 50, 0), side("moved", 20, 25), side("red", 31, 30)]}
    assert _of_cost([cell])["broken_worlds_points"] == pytest.approx((-10 + 2) / 2)
    assert _of_cost([]) == {}


@pytest.mark.slow
def test_films_and_costs_of_a_practice_run_that_is_too_short_for_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    monkeypatch.setattr(one_world, "_STARTS", 3)
    monkeypatch.setattr(one_world, "_DAMAGES", {name: _DAMAGES[name] for name in ("unchanged", "colors permuted")})
    assert vla_rl(["train", *TINY, LEARNING, "budget.rounds=1", "budget.steps_per_round=5", "--out", str(run)]) == 0
    assert main(["one_world", "--out", str(out), "--parts", "cost", "--runs", str(run)]) == 2
    assert "fewer than two rounds" in capsys.readouterr().err
    assert vla_rl(["train", "--resume", str(run), "budget.rounds=2"]) == 0
    assert main(["one_world", "--out", str(out), "--parts", "cost", "--runs", str(run)]) == 0
    (cell,) = json.loads((out / "one_world.json").read_text())["cost_cells"]
    assert [each["damage"] for each in cell["cost"]] == ["unchanged", "colors permuted"]
    assert all(0 <= each[side] <= cell["episodes"] == 3 for each in cell["cost"] for side in ("imagined", "unimagined"))
    assert main(["one_world", "--out", str(out), "--parts", "films", "--runs", str(run)]) == 0
    found = json.loads((out / "one_world.json").read_text())
    (films,) = found["film_cells"]
    assert np.isfinite(found["film_psnr_gain_db"])
    assert [film["chunks"] for film in films["films"]] == [1, 3, 6]
    capsys.readouterr()
    assert main(["one_world", "--out", str(out), "--parts", "broken", "--runs", str(run)]) == 2
    assert "too few episodes" in capsys.readouterr().err, "a check that cannot be made has found nothing"
