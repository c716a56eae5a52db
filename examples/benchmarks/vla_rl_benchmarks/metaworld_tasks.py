"""Meta-World's tasks, each with a sentence, a time limit, a view and, where it takes one, a goal mark.

Importing this registers them with Gymnasium. It imports nothing of Meta-World's.
"""

from typing import Any

import gymnasium

from vla_rl_benchmarks.metaworld_env import MetaWorldEnv, MetaWorldTask

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


def _class_name(native_name: str) -> str:
    return "".join(word.capitalize() for word in native_name.removesuffix("-v3").split("-"))


IDS = {f"vla_rl/MetaWorld{_class_name(name)}-v0": name for name in TASKS}
"""Names of the tasks in vla-rl and Gymnasium, such as `vla_rl/MetaWorldButtonPress-v0`, with Meta-World's own names."""

for _id, _name in IDS.items():
    _members = {"native_name": _name, "task": TASKS[_name], "__module__": __name__}
    _class: Any = type(_class_name(_name), (MetaWorldEnv,), _members)
    globals()[_class.__name__] = _class  # the entry points name the classes
    gymnasium.register(_id, entry_point=_class)
