"""quarantine/REASON.jsonl: rejected completions with the reason, in log order.

Lines are kept back until a segment is sealed, then appended and fsynced; dataset.json records the
sizes. A restart cuts the files back to the recorded sizes and judges on from there, so every
rejected completion has exactly one line, whatever was killed when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from services.files import disk_faults, sync_file, sync_folder
from shared.gates import Judgement
from shared.messages import Completion


class Quarantine:
    """The quarantine folder of a run, written by the batcher alone."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Cut every file back to `sizes` (bytes by reason); files without an entry go."""
        self._folder = folder
        self.sizes = dict(sizes)
        self._waiting: dict[str, list[bytes]] = {}
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
            if path.name == "bad_rows.jsonl":  # rows of the prompts file; the generator's
                continue
            size = self.sizes.get(path.stem)
            if size is None:
                path.unlink()
                continue
            with disk_faults(path), path.open("r+b") as file:
                file.truncate(size)
                sync_file(file)

    @property
    def files(self) -> list[Path]:
        """Files with at least one line."""
        return [self._folder / f"{reason}.jsonl" for reason in sorted(self.sizes)]

    def add(self, completion: Completion, judgement: Judgement) -> None:
        """Keep a rejected completion for the next `flush`."""
        assert judgement.reason is not None
        line = {
            "seq": completion.seq,
            "prompt_index": completion.prompt_index,
            "prompt_sha256": completion.prompt_sha256,
            "reason": judgement.reason.value,
            "detail": judgement.detail,
            "num_output_tokens": len(completion.output_ids),
            "finish_reason": completion.finish_reason,
            "text": completion.text,
        }
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        self._waiting.setdefault(judgement.reason.value, []).append(data)

    def flush(self) -> None:
        """Append what waits, durably; `sizes` then says how long the files are."""
        for reason, lines in self._waiting.items():
            path = self._folder / f"{reason}.jsonl"
            with disk_faults(path):
                self._folder.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    file.truncate(self.sizes.get(reason, 0))
                    file.write(b"".join(lines))
                    sync_file(file)
            self.sizes[reason] = self.sizes.get(reason, 0) + sum(map(len, lines))
        if self._waiting:
            sync_folder(self._folder)
        self._waiting.clear()
