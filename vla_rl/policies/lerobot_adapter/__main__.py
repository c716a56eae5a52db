"""Adopt a policy that lerobot trained, so that it acts, is served and is improved here.

Without a rate, the policy is one that was fine-tuned here with adapters, and they are merged into its weights.

Example: python -m vla_rl.policies.lerobot_adapter outputs/train/act/checkpoints/last/pretrained_model policies/act 30
"""

import sys
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.policies.lerobot_adapter import LeRobotModel
from vla_rl.policies.lerobot_adapter.adopt import adopt

if __name__ == "__main__":
    try:
        source, out, *control_hz = sys.argv[1:]
        if control_hz:
            adopt(Path(source), float(*control_hz)).save(out)
        else:
            model, meta = LeRobotModel.load(Path(source))
            model.merged().save(out, meta)
    except (UserError, ValueError) as error:
        sys.exit(f"usage: python -m vla_rl.policies.lerobot_adapter FOLDER OUT [CONTROL_HZ] ({error})")
