"""Folders that `datasets` wrote with save_to_disk: which Arrow files they hold, in their order.

A `Dataset` has state.json, which lists its files; a `DatasetDict` has dataset_dict.json, which
names a folder for each split. Of several splits 'train' is read; another is named by its folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from services.data.raw.trees import SourceFile, Tree
from shared.errors import DataError

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved_dataset(keys: Collection[str]) -> bool:
    """Whether a folder with these files was written by save_to_disk."""
    return _STATE in keys or _SPLITS in keys


def files_of_saved_dataset(tree: Tree, keys: Collection[str]) -> list[SourceFile]:
    """Its Arrow files in order; DataError when the folder is not whole."""
    if _STATE not in keys:
        splits = _json(tree, _SPLITS).get("splits")
        if not isinstance(splits, list) or not splits:
            raise DataError(f"{tree.shown}: {_SPLITS} names no splits; save the data set again")
        if len(splits) > 1 and "train" not in splits:
            raise DataError(
                f"{tree.shown} has the splits {', '.join(map(str, splits))} and no 'train': name "
                "the folder of one of them"
            )
        split = "train" if "train" in splits else str(splits[0])
        tree = tree.below(split)
        keys = tree.keys()
        if _STATE not in keys:
            raise DataError(f"{tree.shown}: the folder of split {split!r} is missing or not whole")
    state = _json(tree, _STATE)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{tree.shown} was saved with an index mapping: call flatten_indices() before "
            "save_to_disk"
        )
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(
        isinstance(one, dict) and isinstance(one.get("filename"), str) for one in files
    ):
        raise DataError(f"{tree.shown}: {_STATE} lists no files; save the data set again")
    return [tree.file(one["filename"]) for one in files]


def _json(tree: Tree, key: str) -> dict[str, Any]:
    try:
        found = json.loads(tree.read(key))
    except ValueError as error:
        raise DataError(f"{tree.shown}: {key} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{tree.shown}: {key} is not a JSON object")
    return found
