"""Messages that workers send each other over links: msgpack headers beside raw tensor frames.

    generator --Completions--> batcher --MicroBatch--> target_forward
    target_forward --HiddenStates--> drafter_trainer
    drafter_trainer --TrainerPosition--> batcher        batcher --CompletionsFrom--> generator
    generator, batcher, drafter_trainer --FileClosed--> archiver

Every stream is replayable and its consumer says where it stands: the completions log is an
append-only sequence (`seq`), the batch plan is a sequence of micro-batches (`micro_batch_id`).
A producer that restarts, or whose consumer restarts, goes on from the consumer's position, and a
consumer drops what it has already. Nothing is pickled; a tensor travels as a `FrameSpec` in the
header and its bytes in a frame of its own, or in shared memory.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL_VERSION = 1


class FrameSpec(msgspec.Struct, frozen=True):
    """One tensor of a message: C-contiguous, little-endian."""

    name: str
    dtype: str  # torch's name without prefix: 'float32', 'bfloat16', 'int64', 'uint8'
    shape: tuple[int, ...]
    num_bytes: int
    checksum: int  # crc32 of the bytes; 0 when the link's plane does not check


class Completion(msgspec.Struct, frozen=True):
    """One line of the completions log: what the target answered to one prompt.

    `loss_mask` of the sample is 0 over `prompt_ids` and 1 over `output_ids`, which are the ids
    the server generated, end-of-turn included.
    """

    seq: int  # position in the log: batch file seq // 500, line seq % 500
    prompt_index: int
    prompt_sha256: str
    occurrence: int  # n-th prompt with the same content, from 0
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str  # 'stop' | 'length'
    thinking: bool | None
    text: str  # decoded output, special tokens kept
    sampling: dict[str, float | int | str | bool | None]
    problem_kind: str | None = None


class Completions(msgspec.Struct, frozen=True, tag="completions"):
    """A run of the log; `final` once generation is complete and this is its end."""

    items: list[Completion]
    next_seq: int
    final: bool
    num_failed: int = 0
    num_prompts: int = 0  # training prompts in all; fixes the forecast of the step count


class CompletionsFrom(msgspec.Struct, frozen=True, tag="completions_from"):
    """The batcher's position: send the log from `seq` on."""

    seq: int


class MicroBatch(msgspec.Struct, frozen=True, tag="micro_batch"):
    """Samples that one target forward and one trainer micro-step take together.

    Frames: `input_ids` int64 [num_tokens], `loss_mask` uint8 [num_tokens]; the samples lie one
    after the other with the given lengths, padding stripped. `step` (counted from 0 over the
    run), `epoch` and the rest are pure functions of the plan, so any worker may handle the
    message any number of times.
    """

    run_id: str
    micro_batch_id: int
    epoch: int
    step: int
    index_in_step: int
    num_in_step: int
    steps_total: int
    last: bool  # the last micro-batch of the plan
    sample_ids: list[int]
    lengths: list[int]
    padded_length: int  # fixed by the plan, so that every worker pads alike


class HiddenStates(msgspec.Struct, frozen=True, tag="hidden_states"):
    """A micro-batch with its target hidden states.

    Frames: those of the micro-batch and `target_hidden_states` [num_tokens, K * H]. A sample
    whose states are not finite is named in `nonfinite_sample_ids`; it carries no weight.
    """

    micro_batch: MicroBatch
    target_layer_ids: list[int]
    nonfinite_sample_ids: list[int]
    forward_s: float


class TrainerPosition(msgspec.Struct, frozen=True, tag="trainer_position"):
    """Where the trainer stands and how far ahead the batcher may dispatch.

    Every micro-batch below `next_micro_batch_id` is applied. With `reset`, the trainer has
    restarted: dispatch again from there, whatever was sent before.
    """

    next_micro_batch_id: int
    window_messages: int
    window_bytes: int
    reset: bool
    finished: bool = False


class FileClosed(msgspec.Struct, frozen=True, tag="file_closed"):
    """A file of the run that will not change any more; `path` is relative to the run folder."""

    path: str
    num_bytes: int
    sha256: str
    kind: Literal["completions", "shard", "checkpoint", "log", "metadata", "quarantine"]


Payload = Completions | CompletionsFrom | MicroBatch | HiddenStates | TrainerPosition | FileClosed


class Envelope(msgspec.Struct, frozen=True):
    """What travels in a message's first frame."""

    run_id: str
    sender: str  # worker id
    number: int  # per channel and direction, from 0
    payload: Payload
    frames: list[FrameSpec] = []
    shm_name: str | None = None  # set when the frames lie in shared memory
    shm_offsets: list[int] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(envelope: Envelope) -> bytes:
    """The envelope as msgpack."""
    return _encoder.encode(envelope)


def decode_envelope(data: bytes | memoryview) -> Envelope:
    """The reverse; msgspec.DecodeError when `data` is not an envelope of this protocol."""
    return _decoder.decode(data)
