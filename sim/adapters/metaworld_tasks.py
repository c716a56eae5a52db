"""What we add to Meta-World's list of tasks: a sentence, a time limit, a view and, where it takes one, a goal mark.

Imported with `sim`, so it imports nothing of Meta-World's.
"""

from dataclasses import dataclass

Point = tuple[float, float, float]


@dataclass(frozen=True)
class MetaWorldTask:
    """One task; `TASKS` has it under Meta-World's own name.

    Attributes:
        sentence: Task sentence of the policy.
        expert_steps: how long Meta-World's scripted policy takes, the mean over its successes without noise.
        fields_of_view: vertical, of the front and the top camera, in degrees.
        shift: how far both cameras are moved from the middle of the table, x, y, z in meters.
        goal_mark: whether a colored ball stands where the goal is. Meta-World hides the goal of these tasks from its
            observation and draws it only as a site. It differs between episodes, and no object shows it, so pictures
            alone would not be enough.
        takes_noise: Whether the scripted policy still succeeds with the noise of demonstrations. Otherwise its
            demonstrations have none: those that succeed with noise would be few, and slower.
    """

    sentence: str
    expert_steps: int
    fields_of_view: tuple[float, float] = (52.0, 52.0)
    shift: Point = (0.0, 0.0, 0.0)
    goal_mark: bool = False
    takes_noise: bool = True

    @property
    def max_episode_steps(self) -> int:
        """Three times what the expert takes, in whole fifties, and at least 250."""
        return max(250, self.expert_steps * 3 // 50 * 50)


TASKS = {
    "assembly-v3": MetaWorldTask("put the ring on the peg", 90, (46.0, 46.0), takes_noise=False),
    "basketball-v3": MetaWorldTask("put the ball into the basket", 96, (52.0, 52.0), (0.0, 0.0, 0.06)),
    "bin-picking-v3": MetaWorldTask("move the block into the other bin", 125, (46.0, 46.0)),
    "box-close-v3": MetaWorldTask("put the lid on the box", 108, takes_noise=False),
    "button-press-topdown-v3": MetaWorldTask("press the button from above", 66),
    "button-press-topdown-wall-v3": MetaWorldTask("press the button behind the wall from above", 57),
    "button-press-v3": MetaWorldTask("press the button", 62, (40.0, 40.0)),
    "button-press-wall-v3": MetaWorldTask("press the button behind the wall", 78),
    "coffee-button-v3": MetaWorldTask("press the button of the coffee machine", 34),
    "coffee-pull-v3": MetaWorldTask("pull the mug out of the coffee machine to the mark", 86, goal_mark=True),
    "coffee-push-v3": MetaWorldTask("push the mug under the coffee machine", 58, takes_noise=False),
    "dial-turn-v3": MetaWorldTask("turn the dial", 71, (42.0, 42.0)),
    "disassemble-v3": MetaWorldTask("take the ring off the peg", 131, (46.0, 46.0)),
    "door-close-v3": MetaWorldTask("close the door", 66, (62.0, 56.0), (-0.08, 0.0, 0.0)),
    "door-lock-v3": MetaWorldTask("lock the door", 115, (48.0, 48.0)),
    "door-open-v3": MetaWorldTask("open the door", 82),
    "door-unlock-v3": MetaWorldTask("unlock the door", 44, (48.0, 48.0)),
    "drawer-close-v3": MetaWorldTask("close the drawer", 79, (46.0, 46.0)),
    "drawer-open-v3": MetaWorldTask("open the drawer", 92, (40.0, 40.0)),
    "faucet-close-v3": MetaWorldTask("close the faucet", 65, (46.0, 46.0)),
    "faucet-open-v3": MetaWorldTask("open the faucet", 59, (46.0, 46.0)),
    "hammer-v3": MetaWorldTask("hammer the nail into the box", 67, (50.0, 50.0), (0.06, 0.0, 0.0)),
    "hand-insert-v3": MetaWorldTask("put the hand into the hole", 61, (44.0, 44.0), goal_mark=True),
    "handle-press-side-v3": MetaWorldTask("press the handle down from the side", 42, (50.0, 50.0), (-0.08, 0.0, 0.0)),
    "handle-press-v3": MetaWorldTask("press the handle down", 27, (46.0, 50.0)),
    "handle-pull-side-v3": MetaWorldTask("pull the handle up from the side", 77, (50.0, 50.0), (-0.08, 0.0, 0.0)),
    "handle-pull-v3": MetaWorldTask("pull the handle up", 99, (46.0, 50.0)),
    "lever-pull-v3": MetaWorldTask("pull the lever up", 80, (52.0, 52.0), (0.0, 0.0, 0.05)),
    "peg-insert-side-v3": MetaWorldTask("insert the peg into the hole in the wall", 100, (56.0, 50.0)),
    "peg-unplug-side-v3": MetaWorldTask("pull the plug out of the wall", 96, (48.0, 48.0), (-0.04, 0.0, 0.0)),
    "pick-out-of-hole-v3": MetaWorldTask(
        "lift the block out of the hole to the mark", 115, (46.0, 44.0), (0.0, 0.0, 0.04), goal_mark=True
    ),
    "pick-place-v3": MetaWorldTask("carry the block to the mark", 55, (46.0, 44.0), (0.0, 0.0, 0.06), goal_mark=True),
    "pick-place-wall-v3": MetaWorldTask(
        "carry the block over the wall to the mark", 88, (46.0, 44.0), (0.0, 0.0, 0.06), goal_mark=True
    ),
    "plate-slide-back-side-v3": MetaWorldTask(
        "slide the plate back to the side to the mark", 41, (46.0, 46.0), (-0.05, 0.0, 0.0), goal_mark=True
    ),
    "plate-slide-back-v3": MetaWorldTask("slide the plate back to the mark", 78, (46.0, 46.0), goal_mark=True),
    "plate-slide-side-v3": MetaWorldTask(
        "slide the plate to the side to the mark", 48, (46.0, 46.0), (-0.05, 0.0, 0.0), goal_mark=True
    ),
    "plate-slide-v3": MetaWorldTask("slide the plate into the goal", 52, (46.0, 46.0)),
    "push-back-v3": MetaWorldTask("pull the block back to the mark", 138, (42.0, 42.0), goal_mark=True),
    "push-v3": MetaWorldTask("push the block to the mark", 64, (42.0, 42.0), goal_mark=True),
    "push-wall-v3": MetaWorldTask("push the block around the wall to the mark", 80, (42.0, 42.0), goal_mark=True),
    "reach-v3": MetaWorldTask("reach the mark", 53, (46.0, 44.0), (0.0, 0.0, 0.06), goal_mark=True),
    "reach-wall-v3": MetaWorldTask(
        "reach the mark behind the wall", 48, (46.0, 44.0), (0.0, 0.0, 0.06), goal_mark=True
    ),
    "shelf-place-v3": MetaWorldTask("put the block on the shelf", 92, (52.0, 52.0), (0.0, 0.0, 0.04)),
    "soccer-v3": MetaWorldTask("push the ball into the goal", 72, (46.0, 46.0)),
    "stick-pull-v3": MetaWorldTask(
        "pull the thermos to the mark with the stick",
        109,
        (54.0, 54.0),
        (0.10, -0.08, 0.0),
        goal_mark=True,
        takes_noise=False,
    ),
    "stick-push-v3": MetaWorldTask(
        "push the thermos to the mark with the stick", 32, (54.0, 54.0), (0.14, -0.04, 0.0), goal_mark=True
    ),
    "sweep-into-v3": MetaWorldTask("sweep the block into the hole", 56, (44.0, 44.0)),
    "sweep-v3": MetaWorldTask("sweep the block off the table", 90, (54.0, 54.0), (0.20, 0.0, 0.0)),
    "window-close-v3": MetaWorldTask("close the window", 80),
    "window-open-v3": MetaWorldTask("open the window", 87),
}
"""All of Meta-World's tasks under their own names, in alphabetical order.

Every scripted policy solves at least eight of ten episodes within the time limit.
"""


def task_id(native_name: str) -> str:
    """Id under which a task is registered: `vla_rl/MetaWorldButtonPress-v0` for "button-press-v3"."""
    words = native_name.removesuffix("-v3").split("-")
    return f"vla_rl/MetaWorld{''.join(word.capitalize() for word in words)}-v0"
