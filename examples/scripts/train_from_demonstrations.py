"""Train a policy from demonstrations, and measure it on starts that it has never seen.

Example: python examples/scripts/train_from_demonstrations.py
"""

import vla_rl as vla


def main(episodes: int = 8, steps: int = 1600, evaluated: int = 100, out: str = "policies/peg") -> None:
    env = vla.make_env("vla_rl/PegInsert-v0", difficulty=0.4)
    demonstrations = vla.collect_demonstrations(env, episodes)
    policy = vla.FlowVLA.from_data(demonstrations, size="cpu")
    vla.train(policy, demonstrations, algorithm="sft", steps=steps)
    print("success", vla.evaluate(policy, env, evaluated))
    policy.save(out)


if __name__ == "__main__":
    main()
