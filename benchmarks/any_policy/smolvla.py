"""SmolVLA at full size, with random weights, through all that is done with a base policy."""

import contextlib
import importlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import vla_rl as vla
from benchmarks.any_policy.faults import in_thread
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.serve import PolicyServer
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.policies.folders import load_policy
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig
from vla_rl.policies.named import load_named

# Sizes of HuggingFaceTB/SmolVLM2-500M-Video-Instruct, of which SmolVLA takes 16 layers.
_TEXT = {"model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32}
_TEXT |= {"num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 49280, "pad_token_id": 2}
_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_VISION |= {"image_size": 512, "patch_size": 16}
_QUICK = {"resize_imgs_with_padding": (64, 64), "num_steps": 1}  # in place of 512 x 512 and 10
_ASYNCHRONOUS = {"execution.strategy": "naive", "latency.typical": 6, "execution.execute_ticks": 6}
_ASYNCHRONOUS |= {"task.declare.max_episode_steps": 24}
_PRACTICE: dict[str, Any] = {"budget.evaluation_episodes": 1, "budget.steps_per_round": 40}
_PRACTICE |= {"learning.distill_steps": 30, "learning.td.updates": 20, "learning.actor.batch_size": 16}


def measure(demonstrations: int) -> dict[str, Any]:
    """Take a policy of 450 million weights through load, rollout, distillation and practice, LoRA, save and serve.

    Args:
        demonstrations: Number of episodes for the proxy, of about 70 observations each. The base policy is shown all.

    Returns:
        For each step, seconds, CPU seconds and the peak of the memory.
    """
    env = vla.make_env("vla_rl/PegInsert-v0", difficulty=0.0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        store = vla.collect_demonstrations(env, episodes=demonstrations, out=scratch / "demonstrations")
        described, base = scratch / "described", scratch / "base"
        _describe(described)
        with _step(rows, "random weights, saved"):
            model = LeRobotModel.build(LeRobotPolicyConfig(folder=str(described)), *store.summary())
            parameters = sum(weight.numel() for weight in model.policy.parameters())
            model.save(base)
        del model
        with _step(rows, "load"):
            policy: Any = load_policy(base)
        seen = env.observe()
        with _step(rows, "one chunk, pictures of 512 x 512, 10 flow steps"):
            config = policy.policy.config
            config.resize_imgs_with_padding, config.num_steps = (512, 512), 10
            policy.infer(seen)
            config.resize_imgs_with_padding, config.num_steps = _QUICK.values()
        with _step(rows, "asynchronous rollout, 6 ticks late"):
            outcomes = vla.evaluate(policy, env, episodes=1, settings=_ASYNCHRONOUS)
        del policy
        with _step(rows, "proxy and one round of practice"):
            practice = vla.Practice(
                base,
                env,
                algorithm="residual_td",
                episodes_per_round=1,
                demonstrations=store,
                out=scratch / "practice",
                settings={**_PRACTICE, **_ASYNCHRONOUS},
            )
            *_, result = practice.rounds(1)
        with _step(rows, "one LoRA step of rank 16, saved"):
            tuned = scratch / "tuned"
            data = ["finetune", "--data", str(scratch / "demonstrations"), "--algorithm", "sft", "--out", str(tuned)]
            changes = ["steps=1", "learning.actor.batch_size=1", "policy.kind=lerobot", f"policy.folder={base}"]
            if main([*data, *changes, "policy.lora.rank=16"]):
                raise UserError("the LoRA step failed")
        adapted = tuned / "policies" / "version_0001"
        with _step(rows, "serve, one chunk"), in_thread(PolicyServer(find_policy(adapted))) as url:
            remote: Any = load_named(url)
            remote.reset(0)
            served = remote.infer(seen).actions
            remote.close()
        files = base / "model.safetensors", adapted / "adapter_model.safetensors"
        weights_mb, adapters_mb = (file.stat().st_size / 1e6 for file in files)
    logged = ("base_asked", "base_known", "base_s", "proxy_s", "proxy_unexplained")
    metrics = {each: result.metrics[each] for each in logged}
    return {
        "parameters": parameters,
        "rows": rows,
        "rollout_ticks": outcomes.lengths[0],
        "weights_mb": weights_mb,
        "adapters_mb": adapters_mb,
        "served": bool(np.isfinite(served).all() and len(served)),
        **metrics,
    }


def _describe(folder: Path) -> None:
    """Write lerobot's description of a new SmolVLA, with a language model of full size and a tokenizer of few words."""
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")  # its types lag behind it
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "peg": 2, "socket": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    names |= {"global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", extra_special_tokens=names
    )
    model = folder / "vlm"
    config = transformers.SmolVLMConfig(vision_config=_VISION, text_config=_TEXT, scale_factor=4, pad_token_id=2)
    config.save_pretrained(model)
    transformers.SmolVLMProcessor(
        image_processor=transformers.SmolVLMImageProcessor(),
        tokenizer=tokenizer,
        video_processor=transformers.SmolVLMVideoProcessor(),
        image_seq_len=64,
    ).save_pretrained(model)
    SmolVLAConfig(vlm_model_name=str(model), device="cpu", **_QUICK)._save_pretrained(folder)


@contextlib.contextmanager
def _step(rows: list[dict[str, Any]], name: str) -> Iterator[None]:
    """Measure seconds, and the peak of the memory by Linux's own count, which begins anew."""
    Path("/proc/self/clear_refs").write_text("5")
    started_s, cpu_s = time.perf_counter(), time.process_time()
    yield
    status = Path("/proc/self/status").read_text()
    peak_kb = int(status.split("VmHWM:")[1].split()[0])
    spent = {"s": time.perf_counter() - started_s, "cpu_s": time.process_time() - cpu_s}
    rows.append({"step": name, **spent, "peak_gb": peak_kb / 1e6})
    print(rows[-1], flush=True)
