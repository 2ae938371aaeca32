"""Which target layers a drafter reads: the default rule and what makes a list unusable.

Ids are 0-based numbers of decoder layers; id i means the output of layer i.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.errors import DrafterError


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """Target layers whose output the drafter reads, spread from layer 1 to three below the top.

    0-based ids of decoder layers, one a drafter layer (arXiv 2602.06036). Halves round to even.
    Raises DrafterError when the target has too few layers for distinct ids.
    """
    if num_target_layers < 1 or num_draft_layers < 1:
        raise DrafterError(
            f"target layer ids need at least one layer on both sides, not {num_target_layers} "
            f"target and {num_draft_layers} drafter layers"
        )
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_draft_layers - 1)
    ids = tuple(round(1 + index * step) for index in range(num_draft_layers))
    if list(layer_id_problems(ids, num_target_layers)):
        raise DrafterError(
            f"no default target layer ids for {num_draft_layers} drafter layers on a target of "
            f"{num_target_layers} layers (the rule gives {list(ids)}); set target_layer_ids "
            f"explicitly, distinct and between 0 and {num_target_layers - 1}"
        )
    return ids


def layer_id_problems(ids: tuple[int, ...], num_target_layers: int) -> Iterable[str]:
    """What is wrong with a list of captured layers, as sentences; nothing when it is usable."""
    if not ids:
        yield "target_layer_ids is empty; name at least one target layer"
    if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
        yield f"target_layer_ids {list(ids)} must be whole numbers"
        return
    outside = [one for one in ids if not 0 <= one < num_target_layers]
    if outside:
        top = num_target_layers - 1
        yield f"target_layer_ids {outside} lie outside the target's layers 0..{top}"
    repeated = sorted({one for one in ids if ids.count(one) > 1})
    if repeated:
        yield f"target_layer_ids {list(ids)} repeats {repeated}"
