"""dataset.json: what a data set was made of, and its sealed segments.

Written by the batcher after each sealed shard, read by whoever trains on the data set later. The
fingerprint says under which tokenizer, template, gates and lengths the samples were made; a data
set is never extended under another one, nor trained on with another tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from services.files import write_file
from shared.errors import DataError

FORMAT_VERSION = 1
FILE_NAME = "dataset.json"


class Fingerprint(msgspec.Struct, frozen=True):
    """What decides about the content of the samples."""

    tokenizer_sha256: str
    template_sha256: str
    mask_token_id: int | None
    max_length: int
    segment_samples: int
    seed: int
    gates: dict[str, Any]

    @property
    def sha256(self) -> str:
        text = json.dumps(msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Segment(msgspec.Struct, frozen=True):
    """A sealed shard. `next_seq` is the log position behind its last sample; `quarantine_bytes`
    are the sizes of the quarantine files when it was sealed."""

    index: int
    file: str
    sha256: str
    num_bytes: int
    num_samples: int
    num_tokens: int
    num_supervised_tokens: int
    next_seq: int
    quarantine_bytes: dict[str, int]


class DatasetInfo(msgspec.Struct, frozen=True):
    """The content of dataset.json."""

    fingerprint: Fingerprint
    segments: list[Segment] = []
    complete: bool = False
    gates_open: bool = False  # the gate window had passed, or a person had overridden it
    num_prompts: int = 0
    version: int = FORMAT_VERSION
    report: dict[str, Any] = {}

    @property
    def num_samples(self) -> int:
        return sum(one.num_samples for one in self.segments)

    @property
    def num_tokens(self) -> int:
        return sum(one.num_tokens for one in self.segments)

    @property
    def next_seq(self) -> int:
        """Log position behind everything that is sealed."""
        return self.segments[-1].next_seq if self.segments else 0

    def check_tokenizer(self, tokenizer_sha256: str) -> None:
        """DataError when the data set was made with another tokenizer."""
        if self.fingerprint.tokenizer_sha256 != tokenizer_sha256:
            raise DataError(
                "the data set was tokenised with another tokenizer (sha256 "
                f"{self.fingerprint.tokenizer_sha256[:12]}) than the target's "
                f"({tokenizer_sha256[:12]}); its token ids mean other text. Use the target it was "
                "made for, or generate anew"
            )


def read_dataset(folder: Path, *, need_shards: bool = True) -> DatasetInfo:
    """DataError for a folder without a readable dataset.json or, if `need_shards`, a shard."""
    path = folder / FILE_NAME
    if not folder.is_dir():
        raise DataError(f"data set folder {folder} does not exist; check data.dataset")
    if not path.is_file():
        raise DataError(f"{folder} has no {FILE_NAME}; name the dataset/ folder of an earlier run")
    try:
        info = msgspec.json.decode(path.read_bytes(), type=DatasetInfo)
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} is not a data set description: {error}") from error
    if info.version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {info.version}, known is {FORMAT_VERSION}")
    missing = [one.file for one in info.segments if not (folder / one.file).is_file()]
    if missing and need_shards:
        raise DataError(f"{folder} lacks the shards {', '.join(missing[:5])} that {path} names")
    if not info.segments:
        raise DataError(f"{path} lists no sealed shard: the data set is empty")
    return info


def write_dataset(folder: Path, info: DatasetInfo) -> None:
    """Replace dataset.json durably."""
    text = msgspec.json.format(msgspec.json.encode(info), indent=1)
    write_file(folder / FILE_NAME, text)
