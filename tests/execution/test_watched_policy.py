"""New policy versions come through a folder: swapped between chunks, put aside when they are bad."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.watched_policy import WatchedPolicy

NEVER_S = 3600.0  # the tests call `look` themselves


class FilePolicy:
    """Its whole action is the number in its file; "nan later" is fine once, and then not a number."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "weights").read_text()
        if text == "half copied":
            raise UserError("the weights are damaged")
        self.version = int(folder.name.removeprefix("version_"))
        self._later = text == "nan later"
        self._value = 7.0 if self._later else float(text)
        self._asked = 0
        self.seed = -1

    def reset(self, seed: int) -> None:
        self.seed = seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self._asked += 1
        value = np.nan if self._later and self._asked > 2 else self._value
        return ActionChunk(np.full((4, 1), value, np.float32), observation.tick, 0, self.version)


def observe(tick: int) -> Observation:
    return Observation({}, np.zeros(1, np.float32), "", tick)


def write(folder: Path, version: int, text: str) -> None:
    path = folder / f"version_{version:04d}"
    path.mkdir(exist_ok=True)
    (path / "weights").write_text(text)


def watch(folder: Path) -> WatchedPolicy:
    policy = WatchedPolicy(folder, FilePolicy, poll_s=NEVER_S)
    policy.reset(5)
    return policy


def test_a_new_version_acts_from_the_next_chunk_on(tmp_path: Path) -> None:
    write(tmp_path, 0, "1.0")
    policy = watch(tmp_path)
    first = policy.infer(observe(0))
    write(tmp_path, 1, "2.0")
    write(tmp_path, 2, "3.0")
    policy.look()
    assert policy.version == 0, "nothing changes before a chunk is asked for"
    second = policy.infer(observe(4))
    assert (first.policy_version, second.policy_version) == (0, 2), "the newest of those that came"
    assert second.actions[0, 0] == 3.0
    assert policy._acting[1].seed == 5, "in the middle of an attempt it goes on with the attempt's noise"
    policy.close()


def test_a_half_copied_version_is_tried_again_when_its_files_change(tmp_path: Path) -> None:
    write(tmp_path, 0, "1.0")
    policy = watch(tmp_path)
    write(tmp_path, 1, "half copied")
    for _ in range(2):
        policy.look()
        assert policy.infer(observe(0)).policy_version == 0
    write(tmp_path, 1, "2.0")
    policy.look()
    assert policy.infer(observe(0)).policy_version == 1
    policy.close()


def test_a_version_whose_subfolder_comes_last_is_tried_again(tmp_path: Path) -> None:
    """As rsync copies: a folder's own files first. What was refused without its critic acts with it."""

    class Whole(FilePolicy):
        def __init__(self, folder: Path) -> None:
            if folder.name == "version_0001" and (folder / "critic" / "weights").read_text() != "whole":
                raise UserError("its critic is damaged")
            super().__init__(folder)

    write(tmp_path, 0, "1.0")
    policy = WatchedPolicy(tmp_path, Whole, poll_s=NEVER_S)
    policy.reset(5)
    write(tmp_path, 1, "2.0")
    for content in (None, "ha", "whole"):
        if content is not None:
            (tmp_path / "version_0001" / "critic").mkdir(exist_ok=True)
            (tmp_path / "version_0001" / "critic" / "weights").write_text(content)
        policy.look()
        assert policy.infer(observe(0)).policy_version == (1 if content == "whole" else 0)
    policy.close()


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_a_version_that_plans_no_numbers_never_acts(tmp_path: Path, text: str) -> None:
    write(tmp_path, 0, "1.0")
    policy = watch(tmp_path)
    policy.infer(observe(0))
    write(tmp_path, 1, text)
    policy.look()
    assert policy.infer(observe(1)).policy_version == 0
    policy.close()


def test_a_version_that_fails_while_acting_is_rolled_back_in_the_same_chunk(tmp_path: Path) -> None:
    write(tmp_path, 0, "1.0")
    policy = watch(tmp_path)
    policy.infer(observe(0))
    write(tmp_path, 1, "nan later")
    policy.look()
    assert policy.infer(observe(1)).policy_version == 1
    back = policy.infer(observe(2))
    assert back.policy_version == 0
    assert np.isfinite(back.actions).all()
    policy.look()
    assert policy.infer(observe(3)).policy_version == 0, "it does not come back"
    write(tmp_path, 2, "4.0")
    policy.look()
    assert policy.infer(observe(4)).policy_version == 2
    policy.close()


def test_a_version_of_another_kind_of_action_never_acts(tmp_path: Path) -> None:
    """Steps in place of targets turn "stand still" into "all joints to 0"."""

    class Standing(FilePolicy):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            env_id = "another of the same robot" if self.version == 2 else "one"
            own = PolicySpec(env_id, (), (8, 8), state_dim=1, action_dim=1, control_hz=20.0)
            self.spec = replace(own, delta_dims=(0,)) if self.version == 1 else own

    write(tmp_path, 0, "0.8")
    policy = WatchedPolicy(tmp_path, Standing, poll_s=NEVER_S)
    policy.reset(5)
    policy.infer(observe(0))
    for version, acts in ((1, 0), (2, 2)):
        write(tmp_path, version, "0.0")
        policy.look()
        assert policy.infer(observe(version)).policy_version == acts


def test_a_version_whose_names_or_units_are_gone_never_acts(tmp_path: Path) -> None:
    """The vectors stay matched by the names of the first version, whatever the next one means by them."""
    lift = Dimensions(("lift",), ("rad",))
    declared = [lift, Dimensions(), Dimensions(("lift",)), lift]

    class Named(FilePolicy):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            dimensions = ((lift, declared[self.version]),)
            self.spec = PolicySpec("one", (), (8, 8), state_dim=1, action_dim=1, dimensions=dimensions)

    write(tmp_path, 0, "0.8")
    policy = WatchedPolicy(tmp_path, Named, poll_s=NEVER_S)
    policy.reset(5)
    policy.infer(observe(0))
    for version, acts in ((1, 0), (2, 0), (3, 3)):
        write(tmp_path, version, "0.0")
        policy.look()
        assert policy.infer(observe(version)).policy_version == acts
    policy.close()


def test_the_thread_looks_by_itself(tmp_path: Path) -> None:
    write(tmp_path, 0, "1.0")
    policy = WatchedPolicy(tmp_path, FilePolicy, poll_s=0.01)
    write(tmp_path, 1, "2.0")
    while policy.infer(observe(0)).policy_version == 0:
        pass
    policy.close()


def test_a_folder_without_a_good_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, "half copied")
    with pytest.raises(UserError, match=r"no policy in .* can be loaded"):
        watch(tmp_path)


class Moved(FilePolicy):
    """Has a residual, whose first use of version 2 is not a number. Version 4 has none."""

    @property
    def refines(self) -> bool:
        return self.version != 4

    def plan(self, observation: Observation) -> ActionChunk:
        return self.infer(observation)

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        return replace(chunk, actions=chunk.actions + (np.nan if self.version == 2 else 0.5))


def test_a_plan_is_refined_by_the_version_that_made_it_and_a_bad_residual_is_put_aside(tmp_path: Path) -> None:
    write(tmp_path, 0, "1.0")
    policy = WatchedPolicy(tmp_path, Moved, poll_s=NEVER_S)
    policy.reset(5)
    first = policy.plan(observe(0))
    write(tmp_path, 1, "2.0")
    policy.look()
    assert policy.refine(first, observe(3), 3).actions[0] == 1.5, "no swap inside a chunk"
    assert policy.refine(policy.plan(observe(4)), observe(6), 2).actions[0] == 2.5
    write(tmp_path, 2, "3.0")
    policy.look()
    planned = policy.plan(observe(8))
    assert np.isfinite(policy.refine(planned, observe(9), 1).actions).all()
    assert policy.version == 1
    write(tmp_path, 4, "5.0")
    policy.look()
    assert policy.plan(observe(12)).actions[0] == 5.0
    assert not policy.refines, "its plans are final"
    policy.close()
