import datetime
import json

import pytest

from services.data.prompts import PromptRow
from services.data.raw import Place
from services.data.source import open_split
from services.data.spool import PromptRows, PromptSpool
from shared.errors import DataError
from tests.helpers.mesh_contexts import tiny_config


def config_of(path, **fields):
    named = {f"data.{key}": value for key, value in fields.items()}
    return tiny_config({"data.prompts": str(path), "data.num_prompts": None, **named})


def test_rows_come_back_as_they_were_in_any_order(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [
        {"id": at, "kind": "k", "messages": [{"role": "user", "content": f"question {at}"}],
         "tools": [{"name": "f"}], "note": {"a": [1, None]}}
        for at in range(100)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_split(config_of(path, max_held_out=0), folder=tmp_path) as split:
        training = split.training
        assert list(tmp_path.iterdir()) == [path], "the spool has no name"
        assert len(training) == 100 and [row.index for row in training] == list(range(100))
        row = training[42]
        assert row.place == Place(str(path), "line", 43)
        assert (row.id, row.kind, row.extra) == ("42", "k", {"note": {"a": [1, None]}})
        assert row.messages == [{"role": "user", "content": "question 42"}]
        assert row.tools == [{"type": "function", "function": {"name": "f"}}]
        part = training[10:20]
        assert isinstance(part, PromptRows) and part[-1].index == 19
        left = training.without({0, 1, 98}).without([])
        assert [row.index for row in left] == [*range(2, 98), 99]
        assert not training.without(range(100))


def test_columns_that_no_row_on_disk_could_hold_are_kept_as_text(tmp_path):
    extra = {"big": 2**80, "half": "\ud800", "day": datetime.date(2026, 1, 2)}
    with PromptSpool(tmp_path) as spool:
        place = Place("f", "row", 1)
        spool.add(PromptRow(0, place, "a", 0, [{"role": "user", "content": "x"}], extra=extra))
        spool.finish()
        assert spool.read(0).extra == {
            "big": str(2**80),
            "half": '"\\ud800"',
            "day": '"2026-01-02"',
        }


def test_quarantined_rows_go_to_a_file_with_place_and_cause(tmp_path):
    path, bad_rows = tmp_path / "p.json", tmp_path / "quarantine" / "bad_rows.jsonl"
    path.write_text('[{"prompt": "a"}, {"prompt": 1}, {"prompt": "b"}, {"prompt": "cut')
    config = config_of(path, max_held_out=0, bad_rows="quarantine")
    with open_split(config, bad_rows_path=bad_rows) as split:
        assert (len(split.training), split.num_bad_rows) == (2, 2)
    broken, cut = map(json.loads, bad_rows.read_text().splitlines())
    assert broken["place"] == {"file": str(path), "unit": "record", "number": 2, "byte": 18}
    assert broken["problem"] == "'prompt' must be text, this one is a number"
    assert broken["excerpt"] == '{"prompt": 1}'
    assert "array is cut off" in cut["problem"] and cut["place"]["byte"] == 50
    bad_rows.unlink()
    with (
        pytest.raises(DataError, match=r"2 rows are broken: record 2 \(byte 18\)"),
        open_split(config_of(path), bad_rows_path=bad_rows),
    ):
        pass
    assert not bad_rows.exists()


def test_nothing_is_written_when_no_row_is_broken(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    bad_rows = tmp_path / "bad_rows.jsonl"
    config = config_of(tmp_path / "p.jsonl", bad_rows="quarantine", max_held_out=0)
    with open_split(config, bad_rows_path=bad_rows) as split:
        assert split.num_bad_rows == 0
    assert not bad_rows.exists()
