"""lerobot imports this by the name of its distribution; importing ours registers what there is."""

import vla_rl.policies.lerobot_plugin as lerobot_plugin

__all__ = ["lerobot_plugin"]
