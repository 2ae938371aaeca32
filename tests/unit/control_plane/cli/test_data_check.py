"""`data check` as a user sees it: figures, limits, examples with their place, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shared.tiny_target import model_folder

ROOT = Path(__file__).parents[4]
CODE = (
    "import sys\n"
    "from control_plane.cli import main\n"
    "code = 0\n"
    "try:\n"
    "    main()\n"
    "except SystemExit as end:\n"
    "    code = end.code\n"
    "loaded = {m.split('.')[0] for m in sys.modules} & {'torch', 'transformers'}\n"
    "sys.exit(f'loaded {loaded}' if loaded else code)\n"
)


def check(*arguments):
    return subprocess.run(
        [sys.executable, "-c", CODE, "data", "check", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    answers = ["OK." if at % 4 else f"The answer to question {at} is {at}." for at in range(40)]
    lines = [
        {"messages": [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": one}]}
        for at, one in enumerate(answers)
    ]
    lines.append({"prompt": "and then?", "response": ""})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_report_has_shares_limits_examples_and_causes(rows):
    done = check(rows)
    assert done.returncode == 6, done.stderr
    assert "41 seen, 40 accepted; 2.4% rejected, limit 50%" in done.stdout
    assert "rows.jsonl, line 41: the answer has no words: ''" in done.stdout
    assert "most frequent answer: 30 times (73.2%, limit 20%) 'OK.'" in done.stdout
    assert "characters of the answers" in done.stdout
    assert "would block a run" in done.stdout and "generator.thinking" in done.stdout


def test_with_a_target_tokens_are_counted_and_torch_stays_out(rows):
    done = check(rows, "--target", model_folder(), "--json")
    assert done.returncode == 6, done.stderr
    report = json.loads(done.stdout)
    assert report["unit"] == "token" and report["num_seen"] == 41
    [few] = [one for one in report["reasons"] if one["reason"] == "too_few_supervised_tokens"]
    assert few["count"] >= 30 and few["examples"][0]["source"].endswith("rows.jsonl, line 2")
    assert few["examples"][0]["text"] == "OK." and len(few["examples"]) == 3


def test_a_broken_line_is_reported_with_its_place(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a question of some words"}\n{\n')
    done = check(path)
    assert done.returncode == 6, done.stderr
    assert "rows that cannot be used: 1" in done.stdout and "rows.jsonl, line 2" in done.stdout
    assert "not JSON" in done.stdout and "1 seen, 1 accepted" in done.stdout
