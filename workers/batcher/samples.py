"""A completion as a training sample, and as a candidate for the gates."""

from __future__ import annotations

from services.data.shards import Sample
from shared.gates import Candidate
from shared.messages import Completion


def sample_of(completion: Completion, max_length: int) -> Sample:
    """Prompt and answer in one row, cut at `max_length` tokens; supervised is the answer."""
    num_prompt = len(completion.prompt_ids)
    ids = [*completion.prompt_ids, *completion.output_ids][:max_length]
    mask = [0] * min(num_prompt, len(ids)) + [1] * max(len(ids) - num_prompt, 0)
    return Sample(completion.seq, completion.prompt_sha256, ids, mask)


def candidate_of(completion: Completion, sample: Sample) -> Candidate:
    """What the gates judge: the sample as it would be trained on, and the whole answer's text."""
    return Candidate(
        seq=completion.seq,
        input_ids=sample.input_ids,
        loss_mask=sample.loss_mask,
        prompt_sha256=completion.prompt_sha256,
        text=completion.text,
        finish_reason=completion.finish_reason,
        thinking=completion.thinking,
    )
