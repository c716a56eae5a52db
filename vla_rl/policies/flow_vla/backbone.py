"""A pretrained vision-language model of the SmolVLM family as encoder of images and text, from a local folder.

transformers is imported only when a policy with a backbone is built. Nothing is downloaded, no code from the folder
runs, and weights are read from safetensors only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import UserError, one_line
from vla_rl.core.flow_sampling import PADDING
from vla_rl.policies.flow_vla.config import BackboneConfig

PARTS = ("vision_model", "connector", "text_model")


class VisionLanguageBackbone(nn.Module):
    """Images and a task sentence -> tokens: features of a middle layer of the language model, as in GR00T N1 (arXiv
    2503.14734).

    Args:
        config: Folder, depth, and what is trained.
        cameras: Names, in the order of the image tokens.
        max_words: Length of the tokenized sentence, fixed so that exported graphs have fixed shapes.
        width: Size of the tokens that leave.
        pretrained: Read the folder's weights; False builds from its config alone, for weights of a checkpoint.

    Raises:
        UserError: transformers is missing, or the folder holds no such model.
    """

    def __init__(
        self, config: BackboneConfig, cameras: Sequence[str], max_words: int, width: int, pretrained: bool
    ) -> None:
        super().__init__()
        self.config, self.cameras, self.max_words = config, tuple(cameras), max_words
        self.model, self.tokenizer = _load(config, pretrained)
        self.image_size = int(self.model.config.vision_config.image_size)
        self.vocabulary = len(self.tokenizer) + 1
        self.out = nn.Linear(self.model.config.text_config.hidden_size, width)
        self.model.requires_grad_(False)

    def train(self, mode: bool = True) -> "VisionLanguageBackbone":
        """A frozen model stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Sentences -> int64 [B, max_words]: the model's own token numbers plus one, 0 where there is no token."""
        encoded = self.tokenizer(
            list(sentences), padding="max_length", truncation=True, max_length=self.max_words, padding_side="right"
        )
        ids, present = torch.tensor(encoded["input_ids"]), torch.tensor(encoded["attention_mask"])
        return torch.where(present.bool(), ids + 1, PADDING)

    def forward(self, images: dict[str, Tensor], text: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, width] and their mask, bool [B, N]; arguments as of `FlowVLA.encode`."""
        with torch.no_grad():
            parts = [self._image_tokens(images[camera]) for camera in self.cameras]
            words = self.model.text_model.get_input_embeddings()((text - 1).clamp(min=0))
            image_mask = torch.ones(
                len(text), sum(part.shape[1] for part in parts), dtype=torch.bool, device=text.device
            )
            mask = torch.cat([image_mask, text != PADDING], 1)
            embedded = torch.cat([*parts, words], 1)
            features = self.model.text_model(
                inputs_embeds=embedded, attention_mask=mask, use_cache=False
            ).last_hidden_state
        return self.out(features.to(self.out.weight.dtype)), mask

    def _image_tokens(self, image: Tensor) -> Tensor:
        """One camera [B, H, W, 3] -> [B, n, hidden]. Padded to a square at the right and bottom, then resized."""
        pixels = image.permute(0, 3, 1, 2) / 127.5 - 1.0
        height, width = pixels.shape[2:]
        pixels = F.pad(pixels, (0, max(0, height - width), 0, max(0, width - height)), value=-1.0)
        size = (self.image_size, self.image_size)
        pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False).to(self.model.dtype)
        return self.model.connector(self.model.vision_model(pixel_values=pixels).last_hidden_state)

    def save_description(self, folder: Path) -> None:
        """Write what is needed to build the model again, without its weights: its config and its tokenizer."""
        self.model.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _load(config: BackboneConfig, pretrained: bool) -> tuple[Any, Any]:
    """The model, cut to its first layers, and its tokenizer."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"a pretrained backbone ({config.folder}) needs transformers: install the extra 'vlm', or use preset 'cpu'"
        ) from error
    folder = Path(config.folder)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"no vision-language model in {folder}: config.json is missing; set policy.backbone.folder to a local copy"
        )
    dtype, local = getattr(torch, config.dtype), {"local_files_only": True, "trust_remote_code": False}
    try:
        description = transformers.AutoConfig.from_pretrained(folder, **local)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
        text = description.text_config
        if config.layers:
            text.num_hidden_layers = min(config.layers, text.num_hidden_layers)
        if pretrained:
            model = transformers.AutoModel.from_pretrained(
                folder, config=description, dtype=dtype, use_safetensors=True, **local
            )
        else:
            model = transformers.AutoModel.from_config(description).to(dtype)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"cannot read the vision-language model in {folder}: {one_line(error, 2000)}") from error
    missing = [part for part in PARTS if not hasattr(model, part)]
    if missing:
        raise UserError(
            f"{folder} holds a {type(model).__name__}, which has no {missing[0]}; use a model of the SmolVLM family"
        )
    return model, tokenizer
