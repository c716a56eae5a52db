"""The truth of the oracle ladder is what really happened."""

import numpy as np
import pytest
import torch

from benchmarks.ladder import Simulator, table
from vla_rl.core.errors import UserError
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.task import open_robot

TICKS = 6


def look(images: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Features that no two observations share."""
    means = [image.float().mean((1, 2)) for image in images.values()]
    return torch.cat([state, *means], 1)


def test_a_branch_with_the_commands_that_were_sent_goes_where_the_episode_went() -> None:
    robot = open_robot(TaskConfig(env="vla_rl/PegInsert-v0", difficulty=0.4))
    robot.reset(3)
    random, seen, commands, features = np.random.default_rng(0), [], [], []
    for _ in range(3 * TICKS):
        observation = robot.read()
        seen.append(observation.state)
        images = {name: torch.from_numpy(image)[None] for name, image in observation.images.items()}
        features.append(look(images, torch.from_numpy(observation.state)[None])[0])
        commands.append(observation.state + random.normal(0, 0.01, 8).astype(np.float32))
        robot.write(commands[-1])
    rows, sent = torch.stack(features), np.stack(commands)
    simulator = Simulator(robot, look)
    simulator.remember(3, sent, np.stack(seen), rows)

    begin = torch.tensor([0, TICKS])
    chunks = torch.from_numpy(np.stack([sent[:TICKS], sent[TICKS : 2 * TICKS]]))
    after, success = simulator.step(rows[begin], chunks, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(after, rows[begin + TICKS])
    assert success.tolist() == [0.0, 0.0]
    further, _ = simulator.step(after[:1], chunks[1:], torch.zeros(1, dtype=torch.int64))  # from where a branch came to
    torch.testing.assert_close(further[0], rows[2 * TICKS])
    other, _ = simulator.step(rows[begin], chunks + 0.02, torch.zeros(2, dtype=torch.int64))
    assert not torch.allclose(other, after)

    with pytest.raises(UserError, match="goes another way at step 1"):
        simulator.remember(3, sent[::-1].copy(), np.stack(seen), rows)


def test_the_table_has_a_row_for_each_rung_that_was_measured() -> None:
    cell = {"seed": 2, "rung": "learnt", "supervised": 0.47, "practised": 0.6}
    lines = table([cell, cell | {"seed": 4, "supervised": 0.5, "practised": 0.75}]).splitlines()
    assert lines[2:] == [
        "| supervised policy | 47.0% | 50.0% |",
        "| learnt dynamics, three chunks, learnt value | 60.0% | 75.0% |",
    ]
