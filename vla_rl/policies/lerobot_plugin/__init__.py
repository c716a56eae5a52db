"""What lerobot's own tools find of ours: the policy type ``vla_rl``.

``lerobot-train --policy.discover_packages_path=vla_rl.policies.lerobot_plugin --policy.type=vla_rl ...``; with the
distribution ``lerobot_policy_vla_rl`` (see plugins/) installed, lerobot finds it by itself. Importing this package
registers it.

Dependency law: this is the one package of ours that imports lerobot at its top, since only lerobot imports it.
"""

from vla_rl.policies.lerobot_plugin import configuration_vla_rl as configuration_vla_rl
