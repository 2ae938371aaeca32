import json

import pytest

from services.data.shapes import RowShapes
from shared.config.data import ColumnsSection
from shared.errors import DataError

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def understand(row, shape="auto", **columns):
    return RowShapes(shape, ColumnsSection(**columns)).conversation(row)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "response": "Hello"},
        {"messages": [USER, ANSWER]},
        {"messages": json.dumps([USER, ANSWER])},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"conversations": [USER, ANSWER]},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]},
        {"messages": [USER, {**ANSWER, "tool_calls": None, "refusal": None, "reasoning": ""}]},
    ],
)  # fmt: skip
def test_every_shape_gives_the_same_conversation(row):
    found = understand(row)
    assert (found.messages, found.answers, found.tools) == ([USER], [ANSWER], None)


def test_only_the_last_answer_is_cut_off():
    turns = [USER, ANSWER, USER, ANSWER, ANSWER]
    found = understand({"messages": turns})
    assert (found.messages, found.answers) == (turns[:3], turns[3:])
    assert understand({"messages": turns[:3]}).answers == []


def test_instruction_and_input_are_one_turn():
    found = understand({"instruction": "Translate.", "input": "Guten Tag", "system": "Be brief."})
    assert found.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Translate.\n\nGuten Tag"},
    ]
    assert found.answers == []


def test_tools_calls_results_and_reasoning():
    row = {
        "tools": [{"name": "add", "parameters": {"type": "object"}}],
        "messages": [
            {"role": "developer", "content": "Use tools."},
            USER,
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I must add.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "index": 0,
                        "function": {"name": "add", "arguments": '{"a": 1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "3"},
            {"role": "assistant", "content": "3", "reasoning": "Done."},
        ],
    }
    found = understand(row)
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": {"a": 1}},
    }
    assert found.messages == [
        {"role": "system", "content": "Use tools."},
        USER,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I must add.",
            "tool_calls": [call],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    ]
    assert found.answers == [{"role": "assistant", "content": "3", "reasoning_content": "Done."}]
    function = {"name": "add", "parameters": {"type": "object"}}
    assert found.tools == [{"type": "function", "function": function}]
    as_text = {**row, "tools": '[{"type": "function", "function": {"name": "add"}}]'}
    assert understand(as_text).tools == [{"type": "function", "function": {"name": "add"}}]


def test_sharegpt_speakers_and_calls():
    found = understand(
        {
            "system": "",
            "conversations": [
                {"from": "system", "value": "S"},
                {"from": "user", "value": "1 + 2?"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
                {"from": "observation", "value": "3"},
                {"from": "chatgpt", "value": "3."},
            ],
        }
    )
    roles = [message["role"] for message in found.messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert found.messages[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_columns_by_configuration():
    row = {"question": "Hi", "gold": "Hello", "sys": "S", "prompt": "a template", "messages": []}
    found = understand(row, prompt="question", response="gold", system="sys")
    assert found.messages == [{"role": "system", "content": "S"}, USER]
    assert found.answers == [ANSWER]
    assert understand({"dialogue": [USER]}, messages="dialogue").messages == [USER]
    both = {"prompt": "Hi", "messages": [USER, ANSWER]}
    assert understand(both, shape="messages").answers == [ANSWER]
    assert understand(both, shape="prompt").answers == []
    with pytest.raises(DataError, match=r"has both 'prompt' and 'messages'.*data\.shape"):
        understand(both)
    with pytest.raises(DataError, match=r"has no 'dialogue'; its columns are 'prompt', 'messages'"):
        understand(both, messages="dialogue")
    with pytest.raises(DataError, match="has no 'conversations'"):
        understand(both, shape="sharegpt")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"conversations": []}, "'conversations' must be a list with at least one turn"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, r"\[0\].from is 'alien'; use"),
        ({"conversations": [{"from": "human", "value": " "}]}, r"conversations\[0\].value is emp"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "no user turn"),
        ({"conversations": [{"from": "human", "value": None}]}, "must be text, this one is null"),
        ({"instruction": "a", "output": 3}, "'output' must be text, this one is a number"),
        ({"prompt": "a", "system": ["x"]}, "'system' must be text, this one is a list"),
        ({"prompt": "a", "tools": {"name": "x"}}, "'tools' must be a list"),
        ({"prompt": "a", "tools": "not json"}, "'tools' is text that is not JSON"),
        ({"prompt": "a", "tools": [{"x": 1}]}, r"tools\[0\] must be an object with function.name"),
        ({"messages": "[{]"}, "'messages' is text that is not JSON"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"messages\[0\].content\[0\] is a part of type 'image_url'; only text",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}, USER]},
            r"messages\[0\].tool_calls\[0\] must be an object with function.name",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "{"}}]}, USER]},
            r"tool_calls\[0\].function.arguments is text that is not JSON",
        ),
        (
            {"messages": [{"role": "system", "content": "a"}, USER], "system": "b"},
            "has a system turn and another text in 'system'",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_field(row, problem):
    with pytest.raises(DataError, match=problem):
        understand(row)


def test_a_system_text_that_is_there_twice_is_there_once():
    system = {"role": "system", "content": "a"}
    assert understand({"messages": [system, USER], "system": "a"}).messages == [system, USER]
