"""Episodes: valid ones pass, and each kind of damage is named; imitation sees the clean action."""

from dataclasses import replace

import numpy as np
import pytest

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Origin, Source


def make_episode(steps: int = 3) -> Episode:
    return Episode(
        episode_id="e",
        images={"front": np.zeros((steps, 4, 4, 3), np.uint8)},
        state=np.zeros((steps, 2), np.float32),
        action_policy=np.ones((steps, 2), np.float32),
        action_sent=np.full((steps, 2), 2, np.float32),
        source=np.array([Source.DEMO, Source.POLICY, Source.HUMAN][:steps], np.uint8),
        task="t",
        success=True,
        terminated=True,
        origin=Origin.SIM,
        policy_version=0,
        seed=0,
        control_hz=20.0,
        env_id="env",
    )


def test_imitation_takes_the_clean_action_of_a_demonstrator_and_what_was_sent_otherwise() -> None:
    assert make_episode().imitation_action()[:, 0].tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": np.zeros((2, 2), np.float32), "source": np.zeros(3, np.uint8)}, "action_policy"),
        ({"state": np.zeros((0, 2), np.float32)}, "no steps"),
        ({"state": np.zeros((3, 2), np.float64)}, "float64"),
        ({"state": np.full((3, 2), np.nan, np.float32)}, "not finite at step 0"),
        ({"action_sent": np.zeros((3, 1), np.float32)}, "must be equal"),
        ({"source": np.full(3, 9, np.uint8)}, "source 9"),
        ({"images": {"front": np.zeros((3, 4, 4, 1), np.uint8)}}, r"\[T, H, W, 3\]"),
        ({"images": {"front": np.zeros((2, 4, 4, 3), np.uint8)}}, "3 steps"),
        ({"extras": {"x": np.zeros(2)}}, "extra column 'x'"),
    ],
)
def test_damage_is_named(change: dict[str, np.ndarray], message: str) -> None:
    make_episode().validate()
    with pytest.raises(UserError, match=message):
        replace(make_episode(), **change).validate()


def test_did_you_mean_finds_the_nearest_name_and_lists_all() -> None:
    assert (
        did_you_mean("peginsrt", ["PegInsert", "Handover"]) == " Did you mean 'PegInsert'? Known: Handover, PegInsert."
    )
    assert did_you_mean("zzz", ["PegInsert"]) == " Known: PegInsert."


def test_towards_one_robot_a_shared_policy_has_what_that_robot_has() -> None:
    shared = PolicySpec("both", (), (8, 8), 9, 6, delta_dims=(1, 5), sizes=((4, 3), (5, 3), (9, 6)))
    assert shared.of_robot(3, 4) == replace(shared, state_dim=4, action_dim=3, delta_dims=(1,), sizes=())
    assert shared.of_robot(3).state_dim == 5
    assert shared.of_robot(6) == replace(shared, sizes=())
    for sizes in ((4,), (6, 4)):
        with pytest.raises(UserError, match=r"the robot has . numbers of action.* made for 3 and 4 or 3 and 5 or 6"):
            shared.of_robot(*sizes)
