"""Files of conversations, completions and shards judged by the gates."""

import json
import random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.data.check import check_files
from services.data.check_rows import ConversationBatcher
from services.data.shards import Sample, write_shard
from services.data.tokenizer_files import read_tokenizer
from shared.config.schema import GateSection
from shared.errors import DataError
from shared.gates import Gatekeeper, GateTokens
from shared.messages import Completion
from shared.tiny_target import model_folder

WORDS = [f"{a}{b}" for a in "bcdfghklm" for b in ("a", "en", "ist", "or", "um", "ave", "ild")]


def talk(rng, count=60, **changes):
    question, answer = (" ".join(rng.choices(WORDS, k=count)) for _ in range(2))
    return conversation(question, changes.pop("answer", answer), **changes)


def conversation(question, answer, **fields):
    user = {"role": "user", "content": question}
    return {"messages": [user, {"role": "assistant", "content": answer, **fields}]}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check(*paths, thinking=None, tokenizer=None, tokens=None):
    gate_tokens = tokens or GateTokens(special_texts=("<|im_end|>",))
    keeper = Gatekeeper(GateSection(), gate_tokens, num_prompts=0)
    bad = check_files(map(str, paths), keeper, ConversationBatcher(tokenizer, thinking))
    return {**keeper.report(), "unusable": bad}


def counts(report):
    return {one["reason"]: one["count"] for one in report["reasons"] if one["count"]}


def examples(report, reason):
    return next(one["examples"] for one in report["reasons"] if one["reason"] == reason)


def test_conversations_without_a_tokenizer_meet_every_gate_of_text(tmp_path):
    rng = random.Random(0)
    first = talk(rng)
    words = first["messages"][1]["content"].split()
    words[7] = "other"
    near = conversation(first["messages"][0]["content"], " ".join(words))
    cut_thought = conversation("why?", "<think>let me see")
    cut_thought["messages"] += talk(rng)["messages"]  # the broken turn is not the last one
    rows = [
        first,
        talk(rng, answer=""),
        talk(rng, answer=" \n "),
        talk(rng, answer="<think>\n</think><|im_end|>"),
        talk(rng, answer="on and on it goes " * 40),
        cut_thought,
        first,
        near,
        talk(rng, answer="", tool_calls=[{"function": {"name": "look", "arguments": "{}"}}]),
        talk(rng),
        {"prompt": " ".join(rng.choices(WORDS, k=40))},
    ]
    report = check(write(tmp_path / "rows.jsonl", rows))
    assert counts(report) == {
        "empty": 2,
        "scaffold_only": 1,
        "repetition_loop": 1,
        "thinking_not_closed": 1,
        "exact_duplicate": 1,
        "near_duplicate": 1,
    }
    assert report["unit"] == "character" and report["num_accepted"] == 4
    [example] = examples(report, "near_duplicate")
    assert example["source"] == f"{tmp_path}/rows.jsonl, line 8" and example["detail"].endswith(
        "to sample 0"
    )
    assert examples(report, "exact_duplicate")[0]["detail"] == "same text as sample 0"
    assert "10-word sequences" in examples(report, "repetition_loop")[0]["detail"]
    length = len(first["messages"][1]["content"])
    assert sum(
        b["count"] for b in report["mask_sums"]["histogram"] if b["from"] <= length < b["to"]
    )


def test_thoughts_beside_the_content_count_as_thoughts(tmp_path):
    rng = random.Random(1)
    path = write(tmp_path / "rows.jsonl", [talk(rng, reasoning_content="hm"), talk(rng)])
    assert counts(check(path, thinking=True)) == {"thinking_missing": 1}
    assert counts(check(path)) == {}


def test_the_same_answer_to_most_prompts_blocks_and_names_the_thinking_mode(tmp_path):
    rng = random.Random(2)
    bad = "<think>\n\n</think>\n\nOK.<|im_end|>"
    good = {"reasoning_content": "let me see"}
    rows = [talk(rng, answer=bad) if at % 8 else talk(rng, **good) for at in range(400)]
    report = check(write(tmp_path / "rows.jsonl", rows), thinking=True)
    assert report["blocked"] and counts(report) == {"thinking_missing": 350}
    assert report["most_frequent_response"]["count"] == 350
    assert "OK." in report["block_reason"] and "generator.thinking" in report["cause"]
    assert len(examples(report, "thinking_missing")) == 3


def test_with_a_tokenizer_the_gates_of_tokens_apply_too(tmp_path):
    rng = random.Random(3)
    tokenizer = read_tokenizer(model_folder())
    rows = [talk(rng), talk(rng, answer="No."), talk(rng)]
    mask = tokenizer.encode(rows[2]["messages"][0]["content"]).ids[0]
    tokens = GateTokens(mask_token_id=None)
    report = check(write(tmp_path / "rows.jsonl", rows), tokenizer=tokenizer, tokens=tokens)
    assert counts(report) == {"too_few_supervised_tokens": 1} and report["unit"] == "token"
    answers = [rows[at]["messages"][1]["content"] for at in (0, 2)]
    assert report["num_supervised_tokens"] == sum(len(tokenizer.encode(a).ids) for a in answers)
    tokens = GateTokens(mask_token_id=mask)
    report = check(tmp_path / "rows.jsonl", tokenizer=tokenizer, tokens=tokens)
    assert "mask_token" in counts(report)


def test_logs_and_shards_give_the_same_counts(tmp_path):
    rng = random.Random(4)
    rows = [[rng.randrange(2000) for _ in range(length)] for length in (50, 5, 60)]
    log, samples = [], []
    for seq, ids in enumerate([*rows, rows[0]]):
        log.append(
            msgspec.json.encode(
                Completion(seq, seq, "a" * 64, 0, [1, 2], ids, "stop", None, f"answer {seq}", {})
            )
        )
        samples.append(Sample(seq, "a" * 64, [1, 2, *ids], [0, 0] + [1] * len(ids)))
    (tmp_path / "batch_000000.jsonl").write_bytes(b"\n".join(log))
    write_shard(tmp_path / "shard_000000.arrow", samples, 0)
    expected = {"too_few_supervised_tokens": 1, "exact_duplicate": 1}
    for name in ("batch_000000.jsonl", "shard_000000.arrow"):
        report = check(tmp_path / name)
        assert counts(report) == expected, name
        assert report["num_supervised_tokens"] == 110
    assert counts(check(tmp_path)) == {"too_few_supervised_tokens": 2, "exact_duplicate": 4}
    shard = check(tmp_path / "shard_000000.arrow")
    assert examples(shard, "exact_duplicate")[0]["source"].endswith("shard_000000.arrow, row 4")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"messages": [', "not JSON"),
        ("[1]", "a row must be a JSON object"),
        ('{"text": "x"}', "has neither 'prompt'"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "messages[0].role is 'bot'"),
    ],
)
def test_a_broken_row_is_counted_and_named_with_its_line(tmp_path, line, says):
    good = talk(random.Random(5))
    path = write(tmp_path / "rows.jsonl", [good])
    path.write_text(f"{path.read_text()}{line}\n{json.dumps(talk(random.Random(6)))}\n")
    report = check(path)
    assert report["num_accepted"] == 2 and report["unusable"].count == 1
    [example] = report["unusable"].examples
    assert says in example["detail"] and "rows.jsonl, line 2" in example["source"]


def test_other_shapes_and_formats_are_judged_alike(tmp_path):
    rng = random.Random(7)
    asked, told = " ".join(rng.choices(WORDS, k=40)), " ".join(rng.choices(WORDS, k=40))
    alpaca = [{"instruction": asked, "output": told}, {"instruction": asked, "output": ""}]
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": told}]
    for name, rows in (("a", alpaca), ("b", [{"conversations": turns}, alpaca[1]])):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(rows))
        report = check(path)
        assert counts(report) == {"empty": 1} and report["num_accepted"] == 1
        assert "record 2" in examples(report, "empty")[0]["source"]
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(alpaca), table)
    assert counts(check(table)) == {"empty": 1}
    assert counts(check(tmp_path / "a.json", table)) == {"empty": 2, "exact_duplicate": 1}
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps([alpaca[0]])[:-1] + ', {"instr')
    report = check(cut)
    assert report["num_accepted"] == 1 and report["unusable"].count == 1


def test_tokens_and_words_are_not_compared(tmp_path):
    rows = write(tmp_path / "rows.jsonl", [talk(random.Random(6))])
    write_shard(tmp_path / "shard.arrow", [Sample(0, "", [1] * 20, [1] * 20)], 0)
    with pytest.raises(DataError, match="--target"):
        check(rows, tmp_path / "shard.arrow")
    report = check(rows, tmp_path / "shard.arrow", tokenizer=read_tokenizer(model_folder()))
    assert report["num_seen"] == 2


def test_files_that_are_none_are_named(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\0\0\0")
    with pytest.raises(DataError, match=r"picture\.png"):
        check(tmp_path / "picture.png")
    with pytest.raises(DataError, match="absent"):
        check(tmp_path / "absent.jsonl")
