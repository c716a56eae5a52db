"""What a call from Python refuses: an answer that belongs to another policy, other data or another robot."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import vla_rl as vla
from tests.test_api import Dot, DotEnv, OtherDot, Seeing
from vla_rl.api import _acting_config
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.types import PICTURED, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_model
from vla_rl.policies.trainable import TrainablePolicy, summary_for

sys.path.append(str(Path(__file__).parents[1] / "examples" / "own_policy"))
from own_policy import Thumbnails, ThumbnailsConfig


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A folder with demonstrations of the task ``dot``, and their environment."""
    folder = tmp_path_factory.mktemp("identity")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        env = vla.make_env(Dot)
        demos = vla.collect_demonstrations(env, 2, expert=lambda dot: dot.goal, out="datasets/dot")
        yield SimpleNamespace(env=env, demos=demos)


def thumbnails(place: SimpleNamespace, seed: int) -> TrainablePolicy:
    """A policy that practices behind a proxy: it has no features."""
    config = ThumbnailsConfig(kind="own_policy:Thumbnails", horizon=8, width=8)
    torch.manual_seed(seed)
    return Thumbnails.build(config, *summary_for(place.demos, place.env))


def files_in(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_practice_with_another_base_policy_is_refused_and_loses_nothing(place: SimpleNamespace) -> None:
    given = {"demonstrations": place.demos, "out": "runs/based"}
    first = vla.Practice(thumbnails(place, 0), place.env, **given)
    base = Path("runs/based/base")
    assert load_model(first.folder.policy(0))[0].config.base == str(base.absolute())
    before = files_in(first.folder.path)
    spec, statistics = summary_for(place.demos, place.env)
    torch.manual_seed(0)
    narrow = replace(statistics, state=replace(statistics.state, std=tuple(std / 2 for std in statistics.state.std)))
    scaled = Thumbnails.build(ThumbnailsConfig(kind="own_policy:Thumbnails", horizon=8, width=8), spec, narrow)
    for other, settings in ((thumbnails(place, 1), {}), (thumbnails(place, 1), {"seed": 5}), (scaled, {})):
        with pytest.raises(
            UserError, match=r"runs/based practices with another base policy than the one given; .*out="
        ):
            vla.Practice(other, place.env, **given, settings=settings)
        assert files_in(first.folder.path) == before
    assert vla.Practice(thumbnails(place, 0), place.env, **given).folder.policy_exists(0)
    assert files_in(first.folder.path) == before


def test_practice_that_is_refused_leaves_no_base_policy_behind(place: SimpleNamespace) -> None:
    practice = vla.Practice(vla.FlowVLA.from_data(place.demos), place.env, demonstrations=place.demos, out="runs/own")
    before = files_in(practice.folder.path)
    with pytest.raises(UserError, match=r"runs/own was begun with policy\."):
        vla.Practice(thumbnails(place, 0), place.env, demonstrations=place.demos, out="runs/own")
    assert files_in(practice.folder.path) == before
    with pytest.raises(UserError, match="gets a proxy, whose scale comes from episodes"):
        vla.Practice(thumbnails(place, 0), place.env, out="runs/none")
    assert not Path("runs/none").exists()


def test_a_base_policy_is_kept_by_a_call_that_goes_on_after_a_kill(place: SimpleNamespace) -> None:
    given = {"demonstrations": place.demos, "out": "runs/killed"}
    folder = vla.Practice(thumbnails(place, 0), place.env, **given).folder
    whole = cache_key(folder.path / "base")
    (folder.path / "base").rename("elsewhere")
    folder.policy(0).rename("policy")
    vla.Practice(thumbnails(place, 0), place.env, **given)
    assert cache_key(folder.path / "base") == whole
    assert cache_key(folder.policy(0)) == cache_key(Path("policy"))
    assert EpisodeStore(folder.episodes).ids() == ["demo-00000", "demo-00001"]


def test_a_training_of_another_policy_is_not_gone_on_with(place: SimpleNamespace) -> None:
    given = {"steps": 2, "settings": {"learning.actor.batch_size": 4}, "out": "runs/trained"}
    first, second = (vla.FlowVLA.from_data(place.demos, seed=seed) for seed in (0, 1))
    vla.train(first, place.demos, **given)
    before, weights = files_in(Path("runs/trained")), {name: each.clone() for name, each in second.state_dict().items()}
    with pytest.raises(UserError, match=r"runs/trained began with another policy than the one given; .*out="):
        vla.train(second, place.demos, **given)
    assert files_in(Path("runs/trained")) == before
    assert all(each.equal(weights[name]) for name, each in second.state_dict().items())
    again = vla.FlowVLA.from_data(place.demos, seed=0)
    vla.train(again, place.demos, **given)
    assert all(each.equal(first.state_dict()[name]) for name, each in again.state_dict().items())


def test_a_training_on_other_episodes_is_not_gone_on_with(place: SimpleNamespace) -> None:
    store = vla.collect_demonstrations(place.env, 1, expert=lambda dot: dot.goal, out="datasets/growing")

    def start() -> None:
        settings = {"learning.actor.batch_size": 4}
        vla.train(vla.FlowVLA.from_data(place.demos), store, steps=1, settings=settings, out="runs/grown")

    start()
    start()
    store.label("demo-00000", None)
    with pytest.raises(UserError, match=r"datasets/growing holds other episodes or labels than runs/grown began with"):
        start()
    store.label("demo-00000", True)
    start()
    vla.collect_demonstrations(place.env, 2, expert=lambda dot: dot.goal, out="datasets/growing")
    with pytest.raises(UserError, match=r"datasets/growing holds other episodes or labels than runs/grown began with"):
        start()
    Path("datasets/growing").rename("datasets/grown")
    start()  # the run has its own copies


@pytest.mark.slow
def test_a_deployment_acts_only_in_tasks_of_its_interface(place: SimpleNamespace) -> None:
    deployed = vla.export(vla.FlowVLA.from_data(place.demos), "deployments/dot")
    for declare, size, said in (
        ({"control_hz": 5}, 64, r"has the control_hz 10(\.0)?, the task has 5"),
        ({"action_kind": "delta"}, 64, r"has the delta_dims \(\), the task has \(0, 1\)"),
        ({}, 32, r"has the image_size \(48, 48\), the task has \(32, 32\)"),
    ):
        with pytest.raises(CheckpointError, match=said):
            vla.evaluate(deployed, vla.make_env(Dot, image_size=size, declare=declare), 1)
    assert len(vla.evaluate(deployed, OtherDot, 1).seeds) == 1


def test_demonstrations_that_do_not_fit_the_task_are_refused_before_anything_is_made(place: SimpleNamespace) -> None:
    policy = vla.FlowVLA.from_data(place.demos)
    small = vla.collect_demonstrations(vla.make_env(Dot, image_size=32), 1, expert=lambda dot: dot.goal)
    slow = vla.collect_demonstrations(
        vla.make_env(Dot, declare={"control_hz": 5}), 1, expert=lambda dot: dot.goal, out="datasets/slow"
    )
    for demos, said in (
        (slow, r"demonstration 'demo-00000' does not fit .*:Dot: steps a second 5(\.0)?, the task has 10"),
        (slow.path, r"steps a second 5(\.0)?, the task has 10(\.0)?; make the environment"),
        (small, r"cameras \{'picture': \(32, 32\)\}, the task has \{'picture': \(48, 48\)\}"),
    ):
        with pytest.raises(UserError, match=said):
            vla.Practice(policy, place.env, demonstrations=demos, out="runs/unfit")
        assert not Path("runs/unfit").exists()


def test_demonstrations_with_larger_pictures_are_resized_to_the_task(place: SimpleNamespace) -> None:
    env = vla.make_env(Dot, image_size=32)
    policy = vla.FlowVLA.from_data(place.demos, robot=env)
    for _ in range(2):  # the second call finds the episodes there
        practice = vla.Practice(policy, env, demonstrations=place.demos, out="runs/small")
        shutil.rmtree(practice.folder.policy(0))
    store = EpisodeStore(practice.folder.episodes)
    assert store.ids() == place.demos.ids()
    for episode in store:
        assert episode.images["picture"].shape == (len(episode), 32, 32, 3)
        assert episode.final_images["picture"].shape == (32, 32, 3)
        assert (episode.state == place.demos.read(episode.episode_id).state).all()


def test_labels_of_demonstrations_keep_their_author(place: SimpleNamespace) -> None:
    store = EpisodeStore(Path("datasets/judged"))
    for demo, author in zip(place.demos, ("detector ensemble-8", "hidden"), strict=True):
        store.add(replace(demo, episode_id=f"round001-{len(store)}", origin=Origin.SIM))
        store.label(store.ids()[-1], None if author == "hidden" else False, author)
    policy = vla.FlowVLA.from_data(place.demos)
    for _ in range(2):
        practice = vla.Practice(policy, place.env, demonstrations=store, out="runs/judged")
        shutil.rmtree(practice.folder.policy(0))
    taken = EpisodeStore(practice.folder.episodes)
    assert [taken.edit_log(name).labeler for name in taken.ids()] == ["detector ensemble-8", "hidden"]
    assert [episode.success for episode in taken] == [False, None]


def test_a_film_shows_the_episode_of_its_own_policy(place: SimpleNamespace) -> None:
    found = vla.compare(Seeing(looks=True), Seeing(looks=False), place.env, episodes=2, out="compared")
    later = vla.evaluate(Seeing(looks=False), place.env, seeds=found.a.seeds, out="compared")
    for outcomes in (found.a, found.b, later):
        for seed, success, length in zip(outcomes.seeds, outcomes.success, outcomes.lengths, strict=True):
            episode = outcomes.film(seed).episode
            assert (episode.seed, episode.success, len(episode)) == (seed, success, length)
    several = vla.evaluate(Seeing(looks=True), place.env, 2, settings={"task.also": [f"{Dot.__module__}:OtherDot"]})
    assert several.film(several.seeds[0]).episode.env_id == several.tasks[0]
    with pytest.raises(KeyError, match="there is no episode of seed 3"):
        later.film(3)


def test_a_policy_acts_with_the_settings_of_its_own_run_from_anywhere(
    place: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute_ticks(policy: str | Path) -> int:
        return _acting_config(policy, place.env.task, {}).execution.execute_ticks

    own, saved = tmp_path / "run" / "policies" / "version_0003", tmp_path / "saved" / "act"
    for folder in (own, saved):
        folder.mkdir(parents=True)
    for folder in (tmp_path / "run", tmp_path, saved):
        (folder / "config.yaml").write_text("execution: {strategy: naive, execute_ticks: 3}\n")
    assert execute_ticks(saved) != 3, "what lies in or above a folder that is no run's says nothing"
    places = {own: ".", own.parent: own.name, own.parent.parent: f"policies/{own.name}", tmp_path: "run"}
    for working, name in places.items():
        monkeypatch.chdir(working)
        assert execute_ticks(name) == 3, (working, name)
    (tmp_path / "link").symlink_to(own)
    assert execute_ticks(tmp_path / "link") == 3


def test_demonstrations_of_another_interface_are_not_taken_for_the_task_s(place: SimpleNamespace) -> None:
    (Path("datasets/dot/episodes") / "demo-00000.zarr.zip").rename("demo-00000.zarr.zip")
    before = place.demos.ids()
    for env, said in (
        (vla.make_env(OtherDot), r"holds demo-00001 of .*:Dot, not of .*:OtherDot; name another folder \(out=\)"),
        (vla.make_env(Dot, declare={"control_hz": 5}), r"holds demo-00001 of control_hz 10(\.0)?, not of 5"),
        (vla.make_env(Dot, image_size=32), r"holds demo-00001 of cameras .*48, 48.*, not of .*32, 32"),
    ):
        with pytest.raises(UserError, match=said):
            vla.collect_demonstrations(env, 2, expert=lambda dot: dot.goal, out="datasets/dot")
    assert place.demos.ids() == before
    Path("demo-00000.zarr.zip").rename(Path("datasets/dot/episodes") / "demo-00000.zarr.zip")
    assert len(vla.collect_demonstrations(place.env, 2, expert=lambda _: 1 / 0, out="datasets/dot")) == 2


class Drawn(DotEnv):
    """A task that draws its picture only when it is read."""

    max_episode_steps = 20

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)

    def _observe(self) -> Any:
        return self.place

    def render(self) -> Any:
        return super()._observe()["picture"]


def test_an_episode_without_pictures_is_played_anew_for_a_film(place: SimpleNamespace) -> None:
    env = vla.make_env(Drawn)
    policy = vla.FlowVLA.from_data(vla.collect_demonstrations(env, 1, expert=lambda dot: dot.goal))

    def is_pictured(render: bool) -> bool:
        outcomes = vla.evaluate(policy, env, seeds=[3], render=render, out="drawn")
        return bool(np.all(outcomes.film(3).episode.extras.get(PICTURED, 1)))

    assert [is_pictured(render) for render in (False, True, True, False)] == [False, True, True, False]
    assert len(EpisodeStore(Path("drawn"))) == 2
