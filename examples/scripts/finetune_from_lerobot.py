"""Make a policy from a LeRobotDataset, weighing every step by what the outcomes say of it.

Example: python examples/scripts/finetune_from_lerobot.py datasets/my_arm
"""

import sys

import vla_rl as vla


def main(dataset: str, steps: int = 1600, out: str = "policies/my_arm", batch_size: int = 128) -> None:
    episodes = vla.load_episodes(dataset)
    outcomes = [episode.success for episode in episodes]
    print(f"{len(episodes)} episodes: {outcomes.count(True)} successes, {outcomes.count(False)} failures")
    policy = vla.FlowVLA.from_data(episodes)
    logged = vla.train(
        policy, episodes, algorithm="habc", steps=steps, settings={"learning.actor.batch_size": batch_size}
    )
    print(f"loss {logged['actor_loss']:.3f} after {steps} gradient steps")
    policy.save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
