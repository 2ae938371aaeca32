import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.data.raw import iter_raw_rows
from services.data.raw.locations import format_named, open_location, plain_pattern
from services.data.raw.trees import glob_rule
from shared.errors import DataError, UserError


def write(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"prompt": name}) + "\n")


def names_of(location, format_="auto"):
    return [json.loads(row.content)["prompt"] for row in iter_raw_rows(str(location), format_)]


def test_a_folder_gives_its_data_files_in_order(tmp_path):
    write(tmp_path, "b.jsonl", "a/z.jsonl", "a.jsonl", "a/b/c.ndjson", "10.jsonl", "9.jsonl")
    write(tmp_path, ".hidden.jsonl", ".cache/x.jsonl", "README.md", "dataset_infos.json", "x.txt")
    expected = ["10.jsonl", "9.jsonl", "a/b/c.ndjson", "a/z.jsonl", "a.jsonl", "b.jsonl"]
    assert names_of(tmp_path) == expected
    assert names_of(f"file://{tmp_path}") == expected


def test_globs_and_names_that_look_like_globs(tmp_path):
    write(
        tmp_path, "b.jsonl", "a.jsonl", "sub/a.jsonl", "sub/deep/c.jsonl", "odd[1].jsonl", "x.txt"
    )
    assert names_of(tmp_path / "*.jsonl") == ["a.jsonl", "b.jsonl", "odd[1].jsonl"]
    assert names_of(tmp_path / "sub" / "**" / "*.jsonl") == ["sub/a.jsonl", "sub/deep/c.jsonl"]
    assert names_of(tmp_path / "*" / "[a-b].jsonl") == ["sub/a.jsonl"]
    assert names_of(tmp_path / "odd[1].jsonl") == ["odd[1].jsonl"]
    assert names_of(tmp_path / "*.txt") == ["x.txt"]
    with pytest.raises(DataError, match=r"no file matches .*none.*; check data\.prompts"):
        names_of(tmp_path / "none*.jsonl")


def test_a_folder_of_several_formats_needs_a_choice(tmp_path):
    write(tmp_path, "a.jsonl", "b.jsonl.gz", "c.json")
    with pytest.raises(DataError, match=r"several formats \(1 json, 2 jsonl\): choose one"):
        names_of(tmp_path)
    with open_location(str(tmp_path), "jsonl") as files:
        assert [file.path.name for file in files] == ["a.jsonl", "b.jsonl.gz"]
    with pytest.raises(DataError, match="holds no file that is parquet"):
        names_of(tmp_path, "parquet")


def test_empty_missing_and_unreadable_places(tmp_path):
    with pytest.raises(DataError, match="holds no file"):
        names_of(tmp_path)
    for missing in (tmp_path / "none", tmp_path / "none" / "*.jsonl", "/dev/null/x"):
        with pytest.raises(DataError, match=r"check data\.prompts"):
            names_of(missing)
    with pytest.raises(UserError, match="not a bucket name"):
        names_of("s3://_/x")


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("a.jsonl", "jsonl"),
        ("a.b.JSON", "json"),
        ("train-00000-of-00002.parquet", "parquet"),
        ("x/y.feather.zst", "arrow"),
        ("a.ndjson.gz", "jsonl"),
        ("a.gz", None),
        ("a.txt", None),
        ("jsonl", None),
    ],
)
def test_formats_by_name(name, format_):
    assert format_named(name) == format_


KEYS = ["a.jsonl", "b/a.jsonl", "b/c/a.jsonl", "b/c/[x].jsonl", "b/x.jsonl", "b/c.d/e"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a.jsonl", "*", "**/", "?", "[ab]", "[!a]", "/", "b", ".", "*.jsonl"]),
    st.lists(st.sampled_from(["a", "*", "?", "[ab]", ".jsonl", "/", "[!b]"]), max_size=4),
)
def test_stores_match_globs_like_folders(tmp_path_factory, first, rest):
    parts = (first + "".join(rest)).replace("//", "/").strip("/").split("/")
    if {"", ".", ".."} & set(parts):
        return
    pattern = plain_pattern(parts)
    root = tmp_path_factory.getbasetemp() / "globs"
    if not root.exists():
        write(root, *KEYS)
    found = {path.relative_to(root).as_posix() for path in root.glob(pattern) if path.is_file()}
    assert {key for key in KEYS if glob_rule(pattern).fullmatch(key)} == found
