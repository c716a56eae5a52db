"""Whole runs of `residual_ppo` on a tiny config: offsets are recovered from episodes, also after a crash."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.interrupted import interrupted
from vla_rl.cli.main import main, make_parser
from vla_rl.cli.run_arguments import open_run
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.checkpoint import load_selector
from vla_rl.policies.folders import load_model, load_policy
from vla_rl.report.sinks import read_records

OPTIONS = [
    "--config",
    "tiny",
    "task.env=tests.fakes.lucky:make_lucky",
    "algorithm=residual_ppo",
    "exploration=0.2",
    "takeover.enabled=false",
    "learning.ppo.chunk_ticks=8",
    "learning.value.steps=2",
    "budget.steps_per_round=2",
    "budget.evaluate_every_round=false",
    "budget.evaluation_episodes=1",
]
LONG = ["budget.steps_per_round=500"]
LATE = ["latency.typical=3"]  # the first chunk begins when it is here, the others go on in their midst
WAITS = ["latency.typical=2", "execution.strategy=sync"]  # every chunk begins when it is here


def spreads(run: Path) -> list[float]:
    name = "residual_action_std"
    return [record[name] for record in read_records(run / "metrics.jsonl") if name in record]


@pytest.mark.slow
def test_a_critic_that_hurries_is_judged_by_what_a_success_is_worth_to_it(tmp_path: Path) -> None:
    options = [
        "algorithm=chunk_critic",
        "learning.discount=0.9",
        "learning.critic.hidden=[8]",
        "budget.steps_per_round=2",
    ]
    assert main(["train", *OPTIONS[:3], *OPTIONS[4:6], *OPTIONS[-2:], *options, "--out", str(tmp_path)]) == 0
    (record,) = [record for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "calibrate"]
    store = EpisodeStore(tmp_path / "episodes")
    headers = [store.read_header(name) for name in store.ids() if name.startswith("round002")]
    worth = np.concatenate([header.success * 0.9 ** np.arange(header.length)[::-1] for header in headers])
    assert 0 < sum(header.success for header in headers) < len(headers)
    assert record["mean_observed"] == pytest.approx(worth[::4].mean())
    assert (record["round"], record["steps"], record["discount"]) == (2, len(worth[::4]), 0.9)
    assert 0 <= record["auc"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], LATE, WAITS], ids=["at_once", "late", "waits"])
def test_a_run_knows_what_it_tried_and_goes_on_as_if_never_interrupted(tmp_path: Path, options: list[str]) -> None:
    whole = tmp_path / "whole"
    assert main(["train", *OPTIONS, *options, "--out", str(whole)]) == 0
    assert spreads(whole) == pytest.approx([0.2, 0.2], abs=1e-4)
    again = interrupted(whole, tmp_path / "again")
    assert main(["train", "--resume", str(again)]) == 0
    model, _ = load_model(whole / "policies" / "version_0002")
    residuals = [
        load_selector(folder / CRITIC_FOLDER, model).residual
        for folder in sorted(whole.glob("policies/version_000[12]"))
    ]
    moved = [float(residual.net[-1].weight.detach().abs().sum()) for residual in residuals]
    assert 0 < moved[0] != moved[1]
    (residual,), (same,) = (run.glob("policies/version_0002/critic/*.safetensors") for run in (whole, again))
    assert residual.read_bytes() == same.read_bytes()
    policy = load_policy(whole / "policies" / "version_0002")
    assert policy.selector.critic is None
    assert policy.selector.ticks == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["algorithm=residual_ppo"], "set exploration=0.15"),
        (
            ["algorithm=residual_ppo", "exploration=0.1", "budget.check_episodes=3"],
            "budget.episodes_per_round above budget.check_episodes",
        ),
        (
            ["execution.strategy=a2c2", "algorithm=filtered_bc"],
            "execution.strategy=a2c2 requires corrector (a residual head",
        ),
        (["exploration=0.1", "rollout_precision=fp32"], "exploration=0.1 requires offsets"),
        (["algorithm=residual_ppo", "exploration=0.1", "learning.ppo.chunk_ticks=99"], "ppo.chunk_ticks is 99"),
        (["algorithm=chunk_critic", "learning.critic.chunk_ticks=99"], "critic.chunk_ticks is 99"),
        (
            ["algorithm=residual_ppo", "exploration=0.1", "execution.strategy=temporal_ensembling"],
            "requires unchanged_chunks (set execution.strategy=naive or sync)",
        ),
        (
            ["algorithm=residual_ppo", "exploration=0.1", "execution.strategy=rtc", "latency.typical=2"],
            "requires unchanged_chunks",
        ),
        (["algorithm=imagined_edit", *LONG, "policy.vision.patches=4"], "it can act from imagined features if it"),
        (
            ["algorithm=residual_ppo", "exploration=0.1", "budget.staleness=1", "workers=1"],
            "set budget.staleness=0",
        ),
    ],
)
def test_practice_that_tries_nothing_or_too_much_is_refused_before_it_begins(
    tmp_path: Path, capsys, options: list[str], said: str
) -> None:
    assert main(["train", "--config", "tiny", *options, "--out", str(tmp_path / "run")]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["algorithm=chunk_critic", "execution.execute_ticks=4"], "judges 6 actions .* is 4"),
        (["algorithm=chunk_critic", "execution.execute_ticks=6"], None),
        (["algorithm=chunk_critic", "execution.execute_ticks=4", "learning.critic.chunk_ticks=4"], None),
        (["algorithm=residual_ppo", "exploration=0.1"], "judges 6 actions .* is 8"),
        (["algorithm=habc"], None),
    ],
)
def test_chunks_that_are_judged_at_another_length_than_they_are_executed_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: list[str], told: str | None
) -> None:
    command = ["--config", "tiny", *options, "--out", str(tmp_path / "run")]
    open_run(make_parser("train").parse_intermixed_args(command))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (told is not None)
    assert re.search(told or "", caplog.text)


def test_a_seed_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", "tiny", "--seed", "3", "seed=4", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "--seed 3 and seed=4: leave one out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
