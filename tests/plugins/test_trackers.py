import sys
from pathlib import Path

import pytest

from tests.report.run_maker import make_episode
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.registry import find


def test_a_tracker_without_its_library_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
        with pytest.raises(UserError, match=f"pip install {name}"):
            find("sinks", name)(tmp_path, {})


def test_trackio_keeps_a_resumed_run_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("trackio", reason="an optional sink: pip install trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for step in (50, 100):
        with find("sinks", "trackio")(tmp_path, {"task": "toy"}) as sink:
            sink.on_metrics({"kind": "train", "round": 0, "step": step, "actor_loss": 0.5})
            sink.on_episode(make_episode("v0000-000000", 6, True))
    assert len(list((tmp_path / "trackio" / "media").rglob("*.mp4"))) == 2


def test_a_part_of_a_package_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vla_rl.core.registry.entry_points", lambda group: ())
    monkeypatch.setattr(sys, "path", [*sys.path, "asks anew"])
    for kind, name, place in (
        ("sinks", "wandb", "plugins/vla_rl_trackers"),
        ("robots", "lerobot", "plugins/vla_rl_lerobot"),
        ("rollouts", "ray", "plugins/vla_rl_ray"),
        ("sources", "bag", "plugins/vla_rl_bags"),
        ("algorithms", "recap", "examples/baselines"),
    ):
        with pytest.raises(ConfigError, match=f"{name!r} is not installed.* pip install ./{place}$"):
            find(kind, name)
        assert (Path(__file__).parents[2] / place / "pyproject.toml").is_file()
