"""A micro-batch as the trainer takes it: checked, and copied out of the link's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from services.links import Received
from services.target_models.frames import tensor_view
from shared.dflash.batch import DrafterSample
from shared.dflash.config import DrafterConfig
from shared.errors import IntegrityError
from shared.messages import HiddenStates, MicroBatch

_FRAMES = ("input_ids", "loss_mask", "target_hidden_states")


@dataclass(frozen=True)
class TrainingItem:
    """input_ids int64 [num_tokens], loss_mask uint8 [num_tokens], target_hidden_states
    [num_tokens, K H]; samples one after the other."""

    message: HiddenStates
    input_ids: Tensor
    loss_mask: Tensor
    target_hidden_states: Tensor

    @property
    def micro_batch(self) -> MicroBatch:
        return self.message.micro_batch

    @property
    def micro_batch_id(self) -> int:
        return self.message.micro_batch.micro_batch_id

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_bytes(self) -> int:
        tensors = (self.input_ids, self.loss_mask, self.target_hidden_states)
        return sum(tensor.nbytes for tensor in tensors)

    def copied(self) -> TrainingItem:
        """The same item on memory of its own."""
        return replace(
            self,
            input_ids=self.input_ids.clone(),
            loss_mask=self.loss_mask.clone(),
            target_hidden_states=self.target_hidden_states.clone(),
        )

    def samples(self) -> list[DrafterSample]:
        """The samples that carry weight: those whose hidden states are finite."""
        micro_batch = self.micro_batch
        lengths = micro_batch.lengths
        rows = zip(
            micro_batch.sample_ids,
            self.input_ids.split(lengths),
            self.loss_mask.split(lengths),
            self.target_hidden_states.split(lengths),
            strict=True,
        )
        return [
            DrafterSample(sample_id, input_ids, loss_mask.bool(), states)
            for sample_id, input_ids, loss_mask, states in rows
            if sample_id not in self.message.nonfinite_sample_ids
        ]


def training_item(received: Received, shape: DrafterConfig) -> TrainingItem:
    """The item of a message, still on the link's memory.

    Raises IntegrityError when it is no message for this drafter: another payload, missing frames,
    other captured layers, or lengths that do not add up.
    """
    message = received.payload
    if not isinstance(message, HiddenStates):
        raise IntegrityError(
            f"link 'hidden_states' carried a {type(message).__name__}; it takes hidden states only"
        )
    micro_batch = message.micro_batch
    where = f"micro-batch {micro_batch.micro_batch_id}"
    missing = sorted(set(_FRAMES) - set(received.frames))
    if missing:
        raise IntegrityError(f"{where} came without {', '.join(missing)}")
    if tuple(message.target_layer_ids) != shape.target_layer_ids:
        raise IntegrityError(
            f"{where} holds target layers {message.target_layer_ids}, but the drafter reads "
            f"{list(shape.target_layer_ids)}"
        )
    input_ids, loss_mask, states = (tensor_view(received.frames[name]) for name in _FRAMES)
    num_tokens = sum(micro_batch.lengths)
    expected = {
        "input_ids": (num_tokens,),
        "loss_mask": (num_tokens,),
        "target_hidden_states": (num_tokens, shape.target_hidden_size),
    }
    for name, tensor in zip(_FRAMES, (input_ids, loss_mask, states), strict=True):
        if tuple(tensor.shape) != expected[name]:
            raise IntegrityError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, not {expected[name]}"
            )
    return TrainingItem(message, input_ids, loss_mask, states)
