"""The prompts of a run, from its configuration: read, checked and split.

    iter_prompts -> BadRows -> [count_prompts | held_out_prompts | open_split]

The check before a run counts, an evaluation takes the held-out ones, the generator works on all the
others. They agree on which is which, since the choice depends on the contents alone. None of them
holds the prompts in memory: they pass by, or lie in a file (`open_split`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.builtin import is_builtin_prompts, prompt_rows
from services.data.bad_rows import BadRows
from services.data.mapped import DigestCounts, MappedArray
from services.data.prompts import BadRow, PromptRow, number_rows
from services.data.raw import Place, RawRow, iter_raw_rows, open_location
from services.data.shapes import RowShapes
from services.data.split import HeldOutRows, PromptSplit, held_out_ids, num_held_out
from services.data.spool import Positions, PromptRows, PromptSpool
from shared.config import RunConfig
from shared.config.data import DataSection
from shared.errors import DataError

_ROWS_AT_ONCE = 2**18


@dataclass(frozen=True)
class PromptCounts:
    """`contents` and `held_out` count contents, the others rows; a row that repeats a held-out
    content is counted in `usable` alone."""

    usable: int
    contents: int
    training: int
    held_out: int
    bad_rows: int


def iter_prompts(
    data: DataSection, seen: DigestCounts, *, seed: int = 0
) -> Generator[PromptRow | BadRow, None, None]:
    """Rows of `data.prompts` in order, good and bad, at most `data.num_prompts` good ones.

    `seen` fills with the contents of the good rows; `seed` is for the built-in prompts. Raises
    DataError where a file as a whole cannot be used, and what an object store raises.
    """
    if data.prompts is None:
        raise DataError("data.prompts is not set: name a file or folder, or 'builtin:tiny'")
    if is_builtin_prompts(data.prompts):
        rows = (
            RawRow(Place(data.prompts, "row", number), row)
            for number, row in prompt_rows(data.num_prompts, seed)
        )
        return number_rows(rows, RowShapes(), seen, limit=data.num_prompts)
    raw = iter_raw_rows(_location(data.prompts), data.format)
    return number_rows(raw, RowShapes(data.shape, data.columns), seen, limit=data.num_prompts)


def require_location(prompts: str) -> None:
    """DataError when `data.prompts` names no file; none is read."""
    if not is_builtin_prompts(prompts):
        with open_location(_location(prompts)):
            return


def read_prompts(data: DataSection, *, seed: int = 0) -> list[PromptRow]:
    """All usable rows in memory, for small sources; DataError as `data.bad_rows` asks."""
    with DigestCounts() as seen, _bad_rows(data) as bad:
        return list(bad.good_rows(iter_prompts(data, seen, seed=seed)))


def count_prompts(config: RunConfig) -> PromptCounts:
    """What a run will find, by one pass over its prompts; DataError as for the run itself."""
    data = config.data
    with DigestCounts() as seen, _bad_rows(data) as bad:
        usable = sum(1 for _ in bad.good_rows(iter_prompts(data, seen, seed=config.seed)))
        chosen = held_out_ids(seen, _num_held_out(data, seen))
        held_rows = sum(seen.count(one) for one in chosen)
        return PromptCounts(usable, len(seen), usable - held_rows, len(chosen), bad.count)


def held_out_prompts(config: RunConfig) -> list[PromptRow]:
    """The run's held-out prompts in file order, by one pass over all of them."""
    data, held_out = config.data, HeldOutRows(config.data.max_held_out)
    with DigestCounts() as seen, _bad_rows(data) as bad:
        for _ in held_out.see(bad.good_rows(iter_prompts(data, seen, seed=config.seed))):
            pass
        return held_out.best(_num_held_out(data, seen))


@contextmanager
def open_split(
    config: RunConfig, *, folder: Path | None = None, bad_rows_path: Path | None = None
) -> Iterator[PromptSplit]:
    """The run's prompts, kept in a file in `folder` as long as the block lasts.

    Quarantined rows go to `bad_rows_path`. Raises DataError, DiskFullError, and what an object
    store raises.
    """
    with PromptSpool(folder) as spool:
        training, held_out, num_bad_rows = _fill(config, spool, folder, bad_rows_path)
        yield PromptSplit(PromptRows(spool, training), PromptRows(spool, held_out), num_bad_rows)


def _fill(
    config: RunConfig, spool: PromptSpool, folder: Path | None, bad_rows_path: Path | None
) -> tuple[Positions, Positions, int]:
    """Spool all usable rows; the positions that train and that are held out, and the bad rows."""
    data = config.data
    content_ids = MappedArray("I", folder)  # of each row
    try:
        with DigestCounts(folder) as seen:
            with _bad_rows(data, bad_rows_path) as bad:
                for row in bad.good_rows(iter_prompts(data, seen, seed=config.seed)):
                    spool.add(row)
                    content_ids.append(seen.id_of(bytes.fromhex(row.sha256)))
            spool.finish()
            is_held_out = np.zeros(len(seen), np.bool_)
            is_held_out[held_out_ids(seen, _num_held_out(data, seen))] = True
        training, held_out = _positions(content_ids, is_held_out)
        return training, held_out, bad.count
    finally:
        content_ids.close()


def _positions(
    content_ids: MappedArray, is_held_out: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[Positions, Positions]:
    """Rows of contents that train, and the first row of each content that is held out."""
    training: list[Positions] = []
    first_of: dict[int, int] = {}
    for start in range(0, content_ids.size, _ROWS_AT_ONCE):
        ids = np.asarray(content_ids.cells[start : min(start + _ROWS_AT_ONCE, content_ids.size)])
        held = is_held_out[ids]
        training.append((np.flatnonzero(~held) + start).astype(np.uint32))
        for at in np.flatnonzero(held):
            first_of.setdefault(int(ids[at]), start + int(at))
        del ids
    return np.concatenate(training), np.array(sorted(first_of.values()), np.uint32)


def _num_held_out(data: DataSection, seen: DigestCounts) -> int:
    return num_held_out(len(seen), share=data.held_out_share, at_most=data.max_held_out)


def _bad_rows(data: DataSection, path: Path | None = None) -> BadRows:
    return BadRows(_location(str(data.prompts)), data.bad_rows, path)


def _location(prompts: str) -> str:
    """Local paths absolute, so that a message says what a relative one counts from."""
    if is_builtin_prompts(prompts) or "://" in prompts:
        return prompts
    return str(Path(prompts).expanduser().absolute())
