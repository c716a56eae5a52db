"""The whole loop on a tiny config, in real processes: it can be killed anywhere and ends as if nothing had happened."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.fakes.forked import start
from vla_rl.api import evaluate
from vla_rl.cli.main import main
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import UserError
from vla_rl.core.types import PICTURED
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.report.advice import ADVISED_CONTROL
from vla_rl.report.sinks import read_records
from vla_rl.training.beside import PracticeAlone
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import evaluation_jobs
from vla_rl.training.plan import BudgetConfig, evaluation_seed
from vla_rl.training.practice import check_config, learner_of_run, supervised_learner
from vla_rl.training.run import open_run
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob, RolloutPool, RolloutWorker

pytestmark = pytest.mark.slow  # a whole run takes 5 s
TINY = ("--config", "tiny", "task.declare.max_episode_steps=60")  # an expert needs no more
UNWATCHED = ["budget.evaluate_every_round=false", "budget.evaluation_episodes=1"]
EXPECTED_EPISODES = {f"demo-{i:05d}" for i in range(3)} | {f"round{r:03d}-{i:05d}" for r in (1, 2) for i in range(3)}


def train(*arguments: object) -> None:
    assert main(["train", *map(str, arguments)]) == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(*TINY, "--out", folder)
    return folder


def fingerprint(run: Path) -> dict[str, str]:
    """The digests of all weights and episodes: what learning made, bit by bit."""
    weights = {f"policy {file.parent.name}": file.name for file in run.glob("policies/*/model-*.safetensors")}
    store = EpisodeStore(run / "episodes", create=False)
    return weights | {name: store.read_header(name).digest for name in store.ids()}


def kill_when(folder: Path, appears: str, process: ForkServerProcess, number: int = signal.SIGKILL) -> None:
    """Send a signal, by default kill -9, at the first moment that there is something of that name in the folder."""
    deadline = time.monotonic() + 300
    while not any(folder.glob(appears)):
        assert process.is_alive(), folder.with_suffix(".log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join()


def collectors(process: ForkServerProcess) -> list[int]:
    """The processes that play episodes for a run."""
    children = [file.read_text().split() for file in Path(f"/proc/{process.pid}/task").glob("*/children")]
    found = [
        child for each in children for child in each if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert found
    return [int(child) for child in found]


def test_a_run_leaves_all_that_it_should(uninterrupted: Path) -> None:
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert [entry["label"] for entry in summary["evaluations"]] == ["supervised", "round 1", "round 2"]
    assert [entry["gradient_steps"] for entry in summary["evaluations"]] == [8, 14, 20]
    assert [entry["real_episodes"] for entry in summary["evaluations"]] == [3, 6, 9]
    assert set(EpisodeStore(uninterrupted / "episodes").ids()) == EXPECTED_EPISODES
    steps = [json.loads(line)["step"] for line in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert "<html" in (uninterrupted / "report.html").read_text()


def test_an_error_in_a_worker_reaches_the_user_as_it_is(tmp_path: Path) -> None:
    """The same worker that cannot be built says the same, in this process or in one of its own."""
    job = RolloutJob("e", tmp_path, "none", (0,), None)
    for workers in (0, 1):
        with RolloutPool(_broken_worker, workers) as pool, pytest.raises(UserError, match="no such robot"):
            list(pool.run([job]))


def _broken_worker() -> RolloutWorker:
    raise UserError("no such robot")


def test_tasks_take_turns_in_one_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two robots of different sizes: demonstrations, practice and evaluation of both, one set of weights."""
    folder, tasks = tmp_path / "run", ["vla_rl/PegInsert-v0", "vla_rl/PickPlace-v0"]
    train("--config", "tiny", "--out", folder, f"task.also=[{tasks[1]}]", "budget.rounds=1")
    store = EpisodeStore(folder / "episodes", create=False)
    headers = [store.read_header(name) for name in store.ids()]
    assert [header.env_id for header in headers] == [tasks[0], tasks[1], tasks[0]] * 2
    assert {header.env_id: header.action_dim for header in headers} == {tasks[0]: 8, tasks[1]: 4}
    evaluation = json.loads((folder / "summary.json").read_text())["evaluations"][-1]
    assert {task: result["episodes"] for task, result in evaluation["tasks"].items()} == {tasks[0]: 1, tasks[1]: 1}
    outcomes = evaluate(folder, open_run(folder).env, 3)
    assert outcomes.tasks == (tasks[0], tasks[1], tasks[0])
    assert outcomes.seeds == (evaluation_seed(0), evaluation_seed(0), evaluation_seed(1))
    assert main(["eval", str(folder), "--episodes", "3"]) == 0
    shown = capsys.readouterr().out
    assert f"{tasks[0]} version 1: {sum(outcomes.success[::2])}/2 = " in shown
    assert f"{tasks[1]} version 1: {sum(outcomes.success[1::2])}/1 = " in shown


def test_practice_may_be_in_low_precision_and_evaluation_never_is(uninterrupted: Path, tmp_path: Path) -> None:
    config = load_config(RunConfig, uninterrupted / "config.yaml")
    store = EpisodeStore(tmp_path / "episodes")
    policy = uninterrupted / "policies" / "version_0001"
    for precision in ("torch", "int8-dynamic"):
        worker = SimulatorWorker(replace(config, rollout_precision=precision))
        for collects in (False, True):
            name = f"{precision}-{collects}"
            list(worker.run([RolloutJob(name, store.path, config.task.env, (5,), policy, collects=collects)]))
        worker.close()
    played = {name: store.read(name).action_policy[0] for name in store.ids()}
    np.testing.assert_array_equal(played["torch-True"], played["torch-False"])
    np.testing.assert_array_equal(played["int8-dynamic-False"], played["torch-False"])
    assert (played["int8-dynamic-True"] != played["torch-True"]).any()
    np.testing.assert_allclose(played["int8-dynamic-True"], played["torch-True"], atol=0.05)


def test_each_round_makes_another_policy(uninterrupted: Path) -> None:
    weights = {name: digest for name, digest in fingerprint(uninterrupted).items() if name.startswith("policy")}
    assert len(weights) == len(set(weights.values())) == 3


def test_killed_or_interrupted_at_every_stage_and_resumed_equals_uninterrupted(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = [*TINY, "--out", str(folder)]
    log, ends = folder.with_suffix(".log"), {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    for appears, number in (
        ("cache", signal.SIGKILL),
        ("episodes/episodes/demo-00001*", signal.SIGINT),
        ("checkpoints/step_00000004", signal.SIGKILL),
        ("episodes/episodes/round001-00001*", signal.SIGKILL),
        ("checkpoints/step_00000012", signal.SIGTERM),
        ("episodes/episodes/round002-00000*", signal.SIGTERM),
        ("policies/version_0002", signal.SIGKILL),
    ):
        process = start(log, "train", *command)
        kill_when(folder, appears, process, number)
        assert process.exitcode == ends[number], log.read_text()
        assert not RunFolder(folder).is_finished()
        store = EpisodeStore(folder / "episodes", create=False)
        for episode_id in store.ids():
            store.read(episode_id)  # every episode that was saved is whole
        command = ["--resume", str(folder)]
    assert log.read_text().count(f"continue with: vla-rl train --resume {folder}") == 3
    train(*command)
    assert RunFolder(folder).is_finished()
    assert fingerprint(folder) == fingerprint(uninterrupted)
    assert metric_lines(folder) == metric_lines(uninterrupted)


def test_collectors_go_on_while_the_learner_learns_and_kills_change_nothing(tmp_path: Path) -> None:
    """Whoever is killed, learner or collector, while episodes of a later round are played."""
    options = [*TINY, "workers=1", "budget.staleness=1", "budget.steps_per_round=40", "budget.rounds=3"]
    options += ["budget.checkpoint_every=20", "budget.evaluation_episodes=1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(*options, "--out", whole)
    store = EpisodeStore(whole / "episodes", create=False)
    versions = {name: store.read_header(name).policy_version for name in store.ids() if name.startswith("round")}
    assert versions == {f"round{r:03d}-{i:05d}": max(0, r - 2) for r in (1, 2, 3) for i in range(3)}
    assert not EpisodeStore(whole / "ahead").ids()
    said, resume = tmp_path / "killed.log", ["--resume", str(killed)]
    kill_when(killed, "ahead/episodes/round002-00000*", start(said, "train", *options, "--out", str(killed)))
    assert not any((killed / "policies").glob("version_0001")), "round 1 was still being learnt from"
    process = start(said, "train", *resume)
    while not any(killed.glob("ahead/episodes/round003-00000*")):
        assert process.is_alive(), said.read_text()
        time.sleep(0.002)
    for collector in collectors(process):
        os.kill(collector, signal.SIGKILL)
    process.join()
    assert process.exitcode == 2
    assert "a rollout worker died" in said.read_text()
    train(*resume)
    assert fingerprint(killed) == fingerprint(whole)
    assert [line for line in metric_lines(killed) if line[0] != "train"] == [
        line for line in metric_lines(whole) if line[0] != "train"
    ]


def metric_lines(run: Path) -> list[tuple[str, int, float]]:
    """Kind, step and loss of every record: none doubled, none missing."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["kind"], record["step"], record.get("actor_loss", 0.0)) for record in records]


def test_traces_hold_the_values_of_whole_episodes(uninterrupted: Path) -> None:
    files = list((uninterrupted / "traces").glob("*.npz"))
    assert files
    for file in files:
        length = EpisodeStore(uninterrupted / "episodes").read_header(file.stem).length
        with np.load(file, allow_pickle=False) as columns:
            assert {"viability", "efficiency", "advantage_gate", "weight", "source"} <= set(columns)
            assert all(len(columns[name]) == length for name in columns)
            assert ((columns["viability"] >= 0) & (columns["viability"] <= 1)).all()


def test_critics_are_judged_on_the_episodes_of_a_round_before_they_learn_from_them(uninterrupted: Path) -> None:
    records = [record for record in read_records(uninterrupted / "metrics.jsonl") if record["kind"] == "calibrate"]
    assert [(record["round"], record["step"]) for record in records] == [(2, 14)]
    assert 0 < records[0]["steps"] == sum(records[0]["samples"])
    assert 0 <= records[0]["calibration_error"] <= 1


def test_a_run_can_start_from_another_ones_supervised_policy(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = RolloutPool.run

    def something(pool: RolloutPool, jobs: Sequence[RolloutJob]) -> Iterator[RolloutJob]:
        assert jobs, "workers that are in the midst of a round ahead are not asked for nothing"
        return play(pool, jobs)

    monkeypatch.setattr(RolloutPool, "run", something)
    folder = tmp_path / "control"
    control = ["algorithm=sft", "budget.episodes_per_round=0", "budget.evaluate_every_round=false"]
    train(*TINY, "--from", uninterrupted, "--out", folder, *control)
    ours, theirs = fingerprint(folder), fingerprint(uninterrupted)
    shared = {name for name in ours.keys() & theirs.keys() if ours[name] == theirs[name]}
    assert shared == {"policy version_0000", "demo-00000", "demo-00001", "demo-00002"}
    assert ours.keys() - shared == {"policy version_0001", "policy version_0002"}
    evaluations = [json.loads((run / "summary.json").read_text())["evaluations"][0] for run in (folder, uninterrupted)]
    assert evaluations[0] == evaluations[1]


def test_policies_that_share_a_store_are_each_judged_by_their_own_episodes(uninterrupted: Path, tmp_path: Path) -> None:
    store = tmp_path / "shared"
    for version in (1, 2, 1):
        assert (
            main(["eval", str(uninterrupted), "--version", str(version), "--episodes", "2", "--out", str(store)]) == 0
        )
    other = tmp_path / "other"
    shutil.copytree(uninterrupted, other)
    shutil.rmtree(other / "policies" / "version_0001")
    shutil.copytree(other / "policies" / "version_0002", other / "policies" / "version_0001")
    assert main(["eval", str(other), "--version", "1", "--episodes", "2", "--out", str(store)]) == 0
    names = EpisodeStore(store, create=False).ids()
    assert len(names) == 4, "a policy is known again by its content, whatever its number"
    assert len({name.rpartition("-")[0] for name in names}) == 2


def test_training_that_diverges_leaves_the_checkpoints_before(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "diverged"
    start = ["train", *TINY, "--from", str(uninterrupted), "--out", str(run), *UNWATCHED]
    assert main([*start, "learning.actor.learning_rate=1e30"]) == 2
    said = capsys.readouterr().err
    assert "the training diverged, at gradient step 12 actor_loss is nan" in said
    assert f"the checkpoint before stays. Lower the learning rate in {run / 'config.yaml'}" in said
    assert not (run / "policies" / "version_0001").exists()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("1.0e+30", "1.0e-3"))
    train("--resume", run)
    assert (run / "policies" / "version_0001").exists()


def test_the_labels_of_demonstrations_come_along_with_a_start(uninterrupted: Path, tmp_path: Path) -> None:
    theirs = RunFolder(tmp_path / "theirs")
    shutil.copytree(uninterrupted, theirs.path)
    for name in ("demo-00001", "round001-00000"):
        EpisodeStore(theirs.episodes).label(name, False)
    ours = RunFolder.create(tmp_path / "ours", load_config(RunConfig, theirs.config_file), theirs)
    store = EpisodeStore(ours.episodes, create=False)
    assert [store.read_header(name).success for name in store.ids()] == [True, False, True]
    assert [file.name for file in store.edits.path.iterdir()] == ["demo-00001.json"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.env=vla_rl/Handover-v0", "Handover"),
        ("budget.demonstrations=4", "demonstrations"),
        ("budget.steps_per_demonstration=3", "gradient steps of supervision=8, asked for is 9"),
        ("policy.horizon=8", "policy.horizon=16, asked for is 8"),
        ("execution.execute_ticks=3", "execution.execute_ticks"),
        ("gate.stop_after_ms=100", "gate.stop_after_ms"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(
    uninterrupted: Path, tmp_path: Path, override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*TINY, "--from", str(uninterrupted), "--out", str(tmp_path / "run"), override]
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_learning_rate_falls_until_the_last_of_the_supervised_steps(uninterrupted: Path) -> None:
    learner, config, spec = learner_of_run(uninterrupted)
    actor = replace(config.supervised.actor, decay_steps=6)
    supervised = replace(config.supervised, actor=actor)
    for demonstrations, decay_steps in ((3, 6), (8, 12)):
        budget = BudgetConfig(demonstrations=demonstrations, supervised_steps=8, steps_per_demonstration=2)
        longer = replace(config, budget=budget, supervised=supervised)
        assert supervised_learner(longer, spec, learner.data.cache).config.actor.decay_steps == decay_steps


def test_practice_beside_a_run_is_supervised_as_long(uninterrupted: Path) -> None:
    folder, config = RunFolder.open(uninterrupted, RunConfig)
    longer = replace(config, budget=replace(config.budget, demonstrations=40, supervised_steps=1500))
    with patch.object(PracticeAlone, "start"):
        assert PracticeAlone(folder, longer, "alone")._config.budget.first_steps == 1500


@pytest.mark.parametrize("preset", ["alone", "imagined", "demo"])
def test_the_control_that_a_report_advises_is_not_refused(preset: str) -> None:
    config = load_config(RunConfig, config_file(preset), [*ADVISED_CONTROL.split(), "task.image_size=32"])
    check_config(config, has_demonstrations=True)


@pytest.mark.parametrize(("episodes", "compared"), [(6, 0), (100, 16)])
def test_practice_beside_a_run_has_rounds_as_long(uninterrupted: Path, episodes: int, compared: int) -> None:
    folder, config = RunFolder.open(uninterrupted, RunConfig)
    longer = replace(config, budget=replace(config.budget, episodes_per_round=episodes, check_episodes=2))
    with patch.object(PracticeAlone, "start"):
        budget = PracticeAlone(folder, longer, "alone")._config.budget
    assert (budget.real_per_round, budget.compare_episodes) == (episodes, compared)


def test_a_damaged_episode_stops_a_resumed_run_with_one_clear_line(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "policies" / "version_0002")  # the last round is to be learnt again
    shutil.rmtree(folder / "cache")
    episode = folder / "episodes" / "episodes" / "round001-00001.zarr.zip"
    content = bytearray(episode.read_bytes())
    content[len(content) // 2] ^= 0xFF
    episode.write_bytes(content)
    assert main(["train", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "round001-00001" in said
    assert "vla-rl doctor" in said
    assert "Traceback" not in said


def test_killed_between_the_last_checkpoint_of_a_stage_and_its_policy(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "policies" / "version_0002")
    train("--resume", folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


@pytest.mark.parametrize("gone", [0, 1])
def test_an_older_policy_that_has_gone_is_not_made_anew_of_what_came_later(
    uninterrupted: Path, tmp_path: Path, gone: int
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(RunFolder(run).policy(gone))
    train("--resume", run)
    assert RunFolder(run).policy_versions() == [version for version in range(3) if version != gone]
    assert fingerprint(run).items() <= fingerprint(uninterrupted).items()


def test_practice_does_not_go_on_from_an_older_state(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "policies" / "version_0002")
    for checkpoint in (folder / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    assert main(["train", "--resume", str(folder)]) == 2
    assert "goes on from gradient step 14" in capsys.readouterr().err


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    first = start(tmp_path / "log", "train", *TINY, "--out", str(folder), "budget.supervised_steps=100000")
    try:
        while not (folder / ".lock").exists():
            assert first.is_alive()
            time.sleep(0.01)
        assert main(["train", "--resume", str(folder)]) == 2
        assert "another process is training" in capsys.readouterr().err
    finally:
        first.kill()
        first.join()


def test_an_episode_does_not_depend_on_those_that_run_beside_it(uninterrupted: Path, tmp_path: Path) -> None:
    """Alone or in turns, with every picture or only those that a plan looks at: the same but for the last bit."""
    config = load_config(RunConfig, uninterrupted / "config.yaml")
    policy = uninterrupted / "policies" / "version_0001"
    found = {}
    for at_once, pictures in ((1, True), (3, True), (3, False)):
        store = EpisodeStore(tmp_path / f"{at_once}-{pictures}")
        worker = SimulatorWorker(replace(config, environments_per_worker=at_once))
        jobs = evaluation_jobs(config, policy, store.path, 5)
        assert len(list(worker.run([replace(job, pictures=pictures) for job in jobs]))) == 5
        worker.close()
        found[at_once, pictures] = [store.read(name) for name in store.ids()]
    alone = found[1, True]
    for (_, pictures), episodes in found.items():
        for episode, other in zip(episodes, alone, strict=True):
            np.testing.assert_allclose(episode.action_sent, other.action_sent, atol=1e-5)
            np.testing.assert_allclose(episode.state, other.state, atol=1e-4)
            assert episode.success == other.success
            pictured = episode.extras.get(PICTURED, np.ones(len(episode))).astype(bool)
            assert pictured.all() == pictures
            for camera, images in episode.images.items():
                assert np.abs(images[pictured].astype(int) - other.images[camera][pictured]).mean() < 0.1
    planned = found[3, False][0].extras
    np.testing.assert_array_equal(planned[PICTURED] == 1, planned["chunk_index"] == 0)
    with pytest.raises(UserError, match="no picture at every step"):
        FrameCache(EpisodeStore(tmp_path / "3-False"), tmp_path / "cache").refresh()
