"""Let a policy act on a robot without ever waiting for it, and look at what the robot did.

Example: python examples/scripts/act_on_a_robot.py policies/peg
"""

import sys

import vla_rl as vla


def main(policy: str, robot: str = "mock", seconds: float = 5.0, out: str = "runs/acted") -> None:
    settings = {"robot.duration_s": seconds} if robot == "mock" else {}
    vla.rollout(policy, robot, realtime=True, out=out, settings=settings)
    episode = [*vla.load_episodes(out)][-1]
    print(f"{len(episode)} commands at {episode.control_hz:g} Hz, from version {episode.policy_version}")
    print(f"largest step of a command: {abs(episode.action_sent[1:] - episode.action_sent[:-1]).max():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
