"""The drafter: a small transformer that fills in a block of tokens in one pass.

    target hidden states [B, S, K H] -> fc -> hidden_norm -> context [B, S, H]   (once)
    [anchor token, mask, mask, ...] embeddings [B, Q, H] -> D layers -> norm -> hidden [B, Q, H]

Every layer lets the block tokens attend to the context before their anchor and to their own block;
which is the mask's business, not the model's. Embedding and lm_head are the target's and never part
of the drafter. Parameter names are the tensor names of an exported drafter: 11 a layer and 3 more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from shared.dflash.attention import LayerMasks, Mask, layer_masks
from shared.dflash.config import DrafterConfig
from shared.dflash.layers import DecoderLayer, KeysValues, RMSNorm, Rotary, rotary_tables
from shared.dflash.layout import BlockLayout

INIT_STD = 0.02


class DFlashDraftModel(nn.Module):
    """Drafter of the shape in `config`; weights are random until loaded or initialised."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.fc = nn.Linear(config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights of standard deviation 0.02 and unit norms, in a fixed order.

        generator: of the CPU, whatever the model's device, so that every machine starts alike.
        """
        with torch.no_grad():
            for name, parameter in sorted(self.named_parameters()):
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                else:
                    values = torch.empty(parameter.shape, dtype=torch.float32)
                    values.normal_(0.0, INIT_STD, generator=generator)
                    parameter.copy_(values)

    def fuse(self, target_hidden_states: Tensor) -> Tensor:
        """Context [B, S, H] from the concatenated target hidden states [B, S, K H]."""
        return self.hidden_norm(self.fc(target_hidden_states))

    def forward(
        self,
        block_embeddings: Tensor,
        target_hidden_states: Tensor,
        layout: BlockLayout,
        masks: LayerMasks | None = None,
    ) -> Tensor:
        """Hidden states of all block tokens, after the final norm.

        block_embeddings: [B, N block_size, H], in each block the anchor token's embedding and then
        the mask token's. target_hidden_states: [B, S, K H]. masks: from `layer_masks`, built here
        when not given. Returns [B, N block_size, H]; rows of unused blocks carry no meaning.
        """
        if masks is None:
            masks = layer_masks(self.config, layout)
        context = self.fuse(target_hidden_states)
        context_rotary = self.rotary(layout.context_positions(), context.dtype)
        keys_values = self.context_keys_values(context, context_rotary)
        rotary = self.rotary(layout.block_positions(), block_embeddings.dtype)
        return self.run_layers(block_embeddings, rotary, keys_values, masks)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        """Rotary tables for `positions` [B, T]."""
        return rotary_tables(positions, self.config.head_dim, self.config.rope_theta, dtype)

    def context_keys_values(self, context: Tensor, rotary: Rotary) -> list[KeysValues]:
        """Keys and values of the context in every layer; a decoding loop keeps them."""
        return [layer.context_keys_values(context, rotary) for layer in self._decoder_layers()]

    def run_layers(
        self,
        hidden: Tensor,
        rotary: Rotary,
        context: Sequence[KeysValues],
        masks: Mapping[int | None, Mask | None],
    ) -> Tensor:
        """Block tokens `hidden` [B, Q, H] through all layers and the final norm."""
        for index, layer in enumerate(self._decoder_layers()):
            mask = masks[self.config.window_of(index)]
            hidden = layer(hidden, rotary, context[index], mask)
        return self.norm(hidden)

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer


def block_input_ids(anchor_ids: Tensor, block_size: int, mask_token_id: int) -> Tensor:
    """Token ids of the blocks: int64 [..., block_size] from the anchor tokens [...]."""
    ids = anchor_ids.new_full((*anchor_ids.shape, block_size), mask_token_id)
    ids[..., 0] = anchor_ids
    return ids
