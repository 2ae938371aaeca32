"""Why a sample is rejected, and what a person should look at when a reason dominates."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Names of the reasons; also the file names under quarantine/."""

    EMPTY = "empty"
    SCAFFOLD_ONLY = "scaffold_only"
    MASK_TOKEN = "mask_token"
    TRUNCATED = "truncated"
    THINKING_NOT_CLOSED = "thinking_not_closed"
    THINKING_MISSING = "thinking_missing"
    TOO_FEW_SUPERVISED = "too_few_supervised_tokens"
    NO_CONSECUTIVE_SUPERVISED = "no_consecutive_supervised_tokens"
    REPETITION_LOOP = "repetition_loop"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"


_THINKING = (
    "Check generator.thinking and the target's chat template: prompts rendered without the "
    "thinking tokens make a thinking model answer with empty thoughts."
)

ADVICE: dict[Reason, str] = {
    Reason.EMPTY: "The target ends its answer at once. " + _THINKING,
    Reason.SCAFFOLD_ONLY: "Answers hold only template tokens and white space. " + _THINKING,
    Reason.MASK_TOKEN: (
        "The mask token occurs in the data; set drafter.mask_token_id to a token that never does."
    ),
    Reason.TRUNCATED: (
        "Answers reach the length limit; raise generator.max_new_tokens, or set "
        "gates.drop_truncated = false to train on cut answers."
    ),
    Reason.THINKING_NOT_CLOSED: (
        "Thoughts do not end; raise generator.max_new_tokens, or check the sampling parameters."
    ),
    Reason.THINKING_MISSING: "Thinking was asked for and the answers have none. " + _THINKING,
    Reason.TOO_FEW_SUPERVISED: (
        "Answers are too short to learn from. " + _THINKING + " If short answers are meant, lower "
        "gates.min_supervised_tokens."
    ),
    Reason.NO_CONSECUTIVE_SUPERVISED: (
        "No two neighbouring tokens are supervised, so no anchor can be drawn; check the loss "
        "masks of the data set, and batcher.max_length against the length of the prompts."
    ),
    Reason.REPETITION_LOOP: (
        "Answers run in circles; check generator.temperature and top_p, and the target's weights."
    ),
    Reason.EXACT_DUPLICATE: (
        "The same prompt got the same answer again; remove repeats from data.prompts, or raise "
        "generator.temperature."
    ),
    Reason.NEAR_DUPLICATE: (
        "Prompts and answers are nearly the same; use more varied prompts, or raise "
        "gates.near_duplicate_similarity."
    ),
}

SAME_RESPONSE_ADVICE = (
    "Different prompts get one and the same answer: the prompts probably do not reach the target "
    "as they should. " + _THINKING
)
