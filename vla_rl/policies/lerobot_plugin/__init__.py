"""What lerobot's own tools find of ours: the policy type ``vla_rl`` and the sample weighting ``habc``.

``lerobot-train --policy.discover_packages_path=vla_rl.policies.lerobot_plugin --policy.type=vla_rl ...``; with the
distribution ``lerobot_policy_vla_rl`` (see plugins/) installed, lerobot finds both without being told. Importing this
package is what registers them.

Dependency law: this is the one package of ours that imports lerobot at its top, since only lerobot imports it.
"""

from vla_rl.policies.lerobot_plugin import configuration_vla_rl as configuration_vla_rl
from vla_rl.policies.lerobot_plugin.weights import register_weighting

register_weighting()
