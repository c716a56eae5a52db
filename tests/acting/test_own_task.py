"""A task of somebody's own, from a package of his own that knows nothing of us: recorded, trained, practiced, measured.

See tests/fakes/own_package.
"""

import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vla_rl.acting.demonstrations import bring_demonstrations, check_demonstrations
from vla_rl.acting.task import open_robot, spec_of_robot
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin, Source
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import TaskConfig

PACKAGE = Path(__file__).resolve().parents[1] / "fakes" / "own_package"
TASK = "point_world:PointReach-v0"
DEMONSTRATIONS = 20
TINY = ["--config", "tiny", f"task.env={TASK}", "task.image_size=24", "budget.rounds=1", "workers=1"]
GIVEN = ["budget.demonstrations=0"]
ALONE = "takeover.enabled=false"


@pytest.fixture(scope="module", autouse=True)
def _his_package() -> Iterator[None]:
    """On the path of this process, and so of its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE)
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "store"
    command = ["record", TASK, "--with", "point_world:Guide", "--episodes", str(DEMONSTRATIONS), "--out", str(out)]
    assert main(command) == 0
    return out


@pytest.fixture(scope="module")
def trained(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Practiced alone, by a worker, from demonstrations that are gone afterwards."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    copy = folder.with_name("demonstrations")
    shutil.copytree(recorded, copy)
    assert main(["train", *TINY, *GIVEN, f"task.demonstrations={copy}", ALONE, "--out", str(folder)]) == 0
    shutil.rmtree(copy)
    return folder


def test_a_script_demonstrates(recorded: Path) -> None:
    store = EpisodeStore(recorded, create=False)
    assert store.ids() == [f"demo-{index:06d}" for index in range(DEMONSTRATIONS)]
    episode = store.read("demo-000007")
    assert (episode.origin, episode.success, episode.policy_version) == (Origin.DEMO, True, -1)
    assert (episode.env_id, episode.control_hz, episode.seed) == (TASK, 10.0, 7)
    assert set(episode.source) == {Source.DEMO}
    assert {name: image.shape[1:] for name, image in episode.images.items()} == {
        "overhead": (64, 64, 3),
        "wrist": (64, 64, 3),
    }
    assert np.abs(episode.action_sent[-1] - episode.state[-1]).max() < 0.2, "the state is where the point is"


@pytest.mark.slow
def test_it_trains_from_what_was_brought_and_practices_alone(trained: Path, recorded: Path) -> None:
    ours, theirs = EpisodeStore(trained / "episodes", create=False), EpisodeStore(recorded, create=False)
    demonstrations = [name for name in ours.ids() if name.startswith("demo-")]
    assert len(demonstrations) == DEMONSTRATIONS
    for name, source in zip(demonstrations, theirs.ids(), strict=True):
        mine, his = ours.read(name), theirs.read(source)
        np.testing.assert_array_equal(mine.action_sent, his.action_sent)
        assert mine.images["wrist"].shape[1:] == (24, 24, 3)
    practice = [ours.read_header(name) for name in ours.ids() if name.startswith("round001-")]
    assert [(header.origin, header.human_steps, header.env_id) for header in practice] == [(Origin.SIM, 0, TASK)] * 3
    summary = RunFolder(trained).read_summary()
    assert [entry["real_episodes"] for entry in summary["evaluations"]] == [DEMONSTRATIONS, DEMONSTRATIONS + 3]
    assert "<html" in (trained / "report.html").read_text()


@pytest.mark.slow
def test_a_supervisor_of_his_own_takes_over(trained: Path, tmp_path: Path) -> None:
    """From the policy of another run, which brings its demonstrations along."""
    supervised = ["takeover.supervisor=point_world:Guide", "takeover.options.from_tick=2"]
    command = ["train", *TINY, *GIVEN, *supervised, "workers=0", "--from", str(trained), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    store = EpisodeStore(tmp_path / "run" / "episodes", create=False)
    practice = [store.read_header(name) for name in store.ids() if name.startswith("round001-")]
    assert all(header.human_steps == max(header.length - 2, 0) for header in practice)
    assert any(header.human_steps for header in practice)
    assert (tmp_path / "run/policies/version_0001").exists()


@pytest.mark.slow
def test_it_is_resumed_evaluated_and_exported(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(trained)]) == 0, "without the demonstrations, which are in the run"
    assert main(["eval", str(trained), "--episodes", "2", "--out", str(tmp_path / "evaluation")]) == 0
    assert f"{TASK} version 1: " in capsys.readouterr().out
    assert main(["export", str(trained), "--out", str(tmp_path / "deployed")]) == 0
    assert json.loads((tmp_path / "deployed/manifest.json").read_text())["spec"]["cameras"] == ["overhead", "wrist"]
    command = ["rollout", str(trained), "--robot", "sim", "--out", str(tmp_path / "acted")]
    assert main(command) == 0
    assert EpisodeStore(tmp_path / "acted").read_header("rollout-000000").env_id == TASK


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # ray's own
def test_actors_of_a_cluster_find_it(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra scale is not installed")
    options = [*TINY, *GIVEN, f"task.demonstrations={recorded}", ALONE, "ray=local", "budget.rounds=0"]
    options += ["budget.evaluation_episodes=1", "takeover.supervisor=point_world:Guide"]
    assert main(["train", *options, "--out", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_a_lerobot_dataset_demonstrates(recorded: Path, tmp_path: Path) -> None:
    dataset = export_lerobot(EpisodeStore(recorded), tmp_path / "dataset", ["demo-000000", "demo-000001"])
    store = EpisodeStore(tmp_path / "run" / "episodes")
    robot = open_robot(TaskConfig(env=TASK))
    specs = {TASK: spec_of_robot(TASK, robot)}
    assert bring_demonstrations(dataset, tmp_path / "run", store, specs, most=1)
    assert store.ids() == ["demo-00000"]
    np.testing.assert_array_equal(store.read("demo-00000").state, EpisodeStore(recorded).read("demo-000000").state)
    assert not bring_demonstrations(tmp_path / "gone", tmp_path / "run", store, specs, most=1), "they are all there"


@pytest.mark.parametrize(("shape", "fits"), [((64, 20), True), ((20, 64), True), ((20, 20), False)])
def test_narrow_pictures_are_brought_to_the_square_as_those_of_the_task_are(
    shape: tuple[int, int], fits: bool, recorded: Path, tmp_path: Path
) -> None:
    episode = EpisodeStore(recorded).read("demo-000000")
    cut = {camera: image[:, : shape[0], : shape[1]].copy() for camera, image in episode.images.items()}
    narrow = EpisodeStore(tmp_path / "narrow")
    final = {camera: image[: shape[0], : shape[1]].copy() for camera, image in episode.final_images.items()}
    narrow.add(replace(episode, images=cut, final_images=final))
    specs = {TASK: spec_of_robot(TASK, open_robot(TaskConfig(env=TASK, image_size=24)))}
    store = EpisodeStore(tmp_path / "run" / "episodes")
    if fits:
        bring_demonstrations(narrow.path, tmp_path / "run", store, specs, most=0)
        assert store.read("demo-00000").images["wrist"].shape[1:] == (24, 24, 3)
        assert store.read("demo-00000").final_images["wrist"].shape == (24, 24, 3)
    else:
        with pytest.raises(UserError, match=r"'wrist': \(20, 20\).*the task has .*'wrist': \(24, 24\)"):
            check_demonstrations(narrow.path, specs)


@pytest.mark.parametrize(
    ("of", "most", "expected", "said"),
    [
        (["other:A-v0", TASK, "other:B-v0", TASK], 0, [1, 3], "2 demonstrations of other tasks are left out"),
        (["other:A-v0", TASK, "other:A-v0", TASK], 1, [1], "1 demonstrations of 2 in"),
        (["lerobot/so101", "lerobot/so101"], 0, [0, 1], "none of them names point_world:PointReach-v0: all count"),
    ],
)
def test_of_a_store_of_several_tasks_its_own_are_taken(
    of: list[str],
    most: int,
    expected: list[int],
    said: str,
    recorded: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs, mixed = EpisodeStore(recorded), EpisodeStore(tmp_path / "mixed")
    for name, env_id in zip(theirs.ids(), of, strict=False):
        episode = theirs.read(name)
        state = np.zeros((len(episode), 9), np.float32) if env_id == "other:B-v0" else episode.state
        mixed.add(replace(episode, env_id=env_id, state=state, final_state=None, final_images={}))
    specs = {TASK: spec_of_robot(TASK, open_robot(TaskConfig(env=TASK)))}
    check_demonstrations(mixed.path, specs)
    store = EpisodeStore(tmp_path / "run" / "episodes")
    with caplog.at_level(logging.INFO):
        bring_demonstrations(mixed.path, tmp_path / "run", store, specs, most)
    assert [store.read_header(name).env_id for name in store.ids()] == [TASK] * len(expected)
    for name, index in zip(store.ids(), expected, strict=True):
        np.testing.assert_array_equal(store.read(name).state, theirs.read(theirs.ids()[index]).state)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "PointReach.* expert = 'module:Name'.*Or bring demonstrations of your own, task.demonstrations=PATH"),
        ([ALONE, "budget.demonstrations=0"], r"there is nothing to start from: .* \(task.demonstrations=PATH\)"),
        (["task.demonstrations={recorded}"], "supervisor 'scripted' cannot take over.*takeover.enabled=false"),
        (
            [ALONE, "task.demonstrations={recorded}", "task.image_size=128", "task.kwargs.size=128"],
            "no argument 'size'",
        ),
        (
            [
                ALONE,
                "task.demonstrations={recorded}",
                "task.declare.control_hz=20",
                "task.declare.state=[body.position]",
            ],
            "'demo-000000' does not fit .*: steps a second 10.0, the task has 20.0; set the .* label it a failure",
        ),
        ([ALONE, "task.demonstrations={recorded}", "task.declare.cameras={{eye: views.wrist}}"], "cameras .*'eye'"),
        ([ALONE, "task.demonstrations=nowhere"], "no episode store .*, no run folder and no LeRobotDataset"),
        (["takeover.supervisor=point_world:Gide"], "has no attribute 'Gide'"),
        (["takeover.supervisor=point_world:Guide", "takeover.options.from=3"], "'takeover.options.from'"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    options: list[str], complaint: str, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [option.format(recorded=recorded) for option in options]
    assert main(["train", *TINY, "workers=0", *filled, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert re.search(complaint, said), said
    assert not (tmp_path / "run").exists(), "nothing is written for a bad config"


@pytest.mark.slow
def test_a_person_at_the_keyboard_demonstrates(tmp_path: Path) -> None:
    """On a real pseudo-terminal: an attempt that is dropped, then one that is called a success."""
    master, terminal = pty.openpty()
    command = ["record", TASK, "--with", "keyboard", "--episodes", "1", "--out", str(tmp_path / "store")]
    with subprocess.Popen(
        [sys.executable, "-m", "vla_rl.cli.main", *command],
        stdin=terminal,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = process.stderr
        prompts: list[str] = []
        listen = threading.Thread(target=lambda: prompts.extend(line for line in lines if "Enter begins demo" in line))
        listen.start()
        until_s = time.monotonic() + 120.0
        while process.poll() is None and time.monotonic() < until_s:
            if asked := len(prompts):
                os.write(master, b"\n")  # lost where it comes before the question: then everything is pressed again
                _hold(master, b"\x1b[C", seconds=1.5)
                os.write(master, b"r" if asked == 1 else b"s")
            for _ in range(50):
                if len(prompts) == asked and process.poll() is None:
                    time.sleep(0.1)
        process.kill()
        listen.join()
        assert process.wait() == 0
    store = EpisodeStore(tmp_path / "store", create=False)
    assert store.ids() == ["demo-000000"]
    episode = store.read("demo-000000")
    assert (episode.seed, episode.success, episode.terminated) == (1, True, True)
    moved = episode.action_sent[:, 0]
    assert moved[-1] > moved[0], "the arrow to the right"
    assert {Source.DEMO, Source.HOLD} >= set(episode.source)
    assert Source.DEMO in episode.source


def _hold(master: int, key: bytes, seconds: float) -> None:
    """As a terminal repeats a key that is held."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        os.write(master, key)
        time.sleep(0.04)
