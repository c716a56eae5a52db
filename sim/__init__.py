"""MuJoCo tasks, scripted experts and a scripted supervisor. `import sim` registers the environments under `vla_rl/...`.

Depends on `vla_rl.core` and nothing else of ours. MuJoCo is imported with the first environment, not here.
"""

from sim.registration import TASKS, make_expert, register_environments

__all__ = ["TASKS", "make_expert", "register_environments"]

register_environments()
