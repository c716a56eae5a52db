"""A pretrained vision-language backbone from a local folder: a random, tiny SmolVLM takes the place of the real one."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_policy import make_batch, make_model

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.policies.flow_vla import BackboneConfig, FlowVLA

WORDS = ["<pad>", "<unk>", "push", "the", "block", "open", "door"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vlm|config\.json"):
        make_model(backbone=BackboneConfig(folder=str(tmp_path / "nothing")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers", reason="a pretrained backbone needs the extra 'vlm'")
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("smolvlm")
    config = transformers.SmolVLMConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "vocab_size": 16,
            "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=15,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(path)
    return path


def with_backbone(folder: Path, **options: object) -> FlowVLA:
    return make_model(backbone=BackboneConfig(folder=str(folder), layers=2, **options))  # type: ignore[arg-type]


def test_it_sees_reads_and_learns_behind_a_frozen_model(folder: Path) -> None:
    model = with_backbone(folder)
    batch = make_batch(model)
    assert len(model.backbone.model.text_model.layers) == 2
    tokens, mask = model.features(batch.images, batch.state, batch.text)
    image_tokens, words = 2 * 4, 6
    assert tokens.shape == (4, image_tokens + words + 1, 32)
    assert mask.sum(1).tolist() == [image_tokens + 3 + 1] * 4
    per_sample, _ = model.loss(batch, torch.Generator().manual_seed(0))
    per_sample.mean().backward()
    assert model.backbone.out.weight.grad is not None
    assert all(parameter.grad is None for parameter in model.backbone.model.parameters())


def test_padding_of_the_sentence_changes_nothing(folder: Path) -> None:
    """Longer padding gives the same velocities: padded words are masked in the language model and in the expert."""
    model = with_backbone(folder).eval()
    batch = make_batch(model, 2)
    longer = torch.nn.functional.pad(batch.text, (0, 4))
    noise, time = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(1)), torch.full((2, 8), 0.4)
    short = model.velocity(noise, time, model.encode(batch.images, batch.state, batch.text))
    long = model.velocity(noise, time, model.encode(batch.images, batch.state, longer))
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)
    other = dataclasses.replace(batch, text=model.tokenize(["open the door"] * 2))
    assert (model.velocity(noise, time, model.encode(other.images, other.state, other.text)) - short).abs().max() > 1e-5


def test_the_checkpoint_stands_alone(folder: Path, tmp_path: Path) -> None:
    model = with_backbone(folder).eval()
    model.save(tmp_path / "policy")
    (tmp_path / "policy").rename(tmp_path / "elsewhere")
    loaded, _ = FlowVLA.load(tmp_path / "elsewhere")
    batch = make_batch(model)
    assert torch.equal(loaded.tokenize(["push the door"]), model.tokenize(["push the door"]))
    expected, found = (part.features(batch.images, batch.state, batch.text)[0] for part in (model, loaded))
    assert torch.equal(expected, found)
    (tmp_path / "elsewhere" / "backbone" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        FlowVLA.load(tmp_path / "elsewhere")


def test_another_kind_of_model_is_refused(folder: Path, tmp_path: Path) -> None:
    import transformers

    transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    ).save_pretrained(tmp_path)
    with pytest.raises(UserError):
        with_backbone(tmp_path)
