"""Policies of vla-rl in lerobot's own tools: the policy type ``vla_rl``.

lerobot imports every installed distribution whose name begins with ``lerobot_policy_``. Importing this registers the
type.
"""

from lerobot_policy_vla_rl import configuration_vla_rl as configuration_vla_rl
