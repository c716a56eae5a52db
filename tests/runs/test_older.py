"""Run folders of earlier versions are read."""

from pathlib import Path

import yaml

from sim.supervisor import SupervisorConfig
from vla_rl.core.config import config_to_dict
from vla_rl.runs.config import RunConfig
from vla_rl.training.run_folder import RunFolder


def test_the_scripted_supervisor_had_a_section_of_its_own(tmp_path: Path) -> None:
    raw = config_to_dict(RunConfig())
    raw["takeover"] = {"enabled": False, "corrector": {"rescue_probability": 0.2, "reaction_s": [0.1, 0.3]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    takeover = RunFolder.open(tmp_path, RunConfig)[1].takeover
    assert (takeover.enabled, takeover.supervisor) == (False, "scripted")
    assert takeover.options == SupervisorConfig(rescue_probability=0.2, reaction_s=(0.1, 0.3))


def test_a_config_of_today_stays_as_it_is() -> None:
    raw = config_to_dict(RunConfig())
    assert RunConfig.upgrade(raw) == raw
