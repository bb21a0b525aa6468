"""Tools of callers: shown by the chat template, called in the model's syntax, answered, streamed; and JSON as asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from grpo_tui.engine.online.serve.wanted import JsonSchema
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.envs.trajectory import Trajectory

from .calling import AGAIN, DONE, KNOWN, SURE, add_tool, calling_config, trained_policy
from .chats import Served, served
from .test_online_run import wait_for

pytestmark = pytest.mark.together("called_tools")
TOOLS: list[Any] = [add_tool()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("called_tools")
    config = calling_config(trained_policy(request.config.cache), folder, updates=False)
    with served(config, folder) as made:
        yield made


def asked(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def results(message: Any, *values: str) -> list[Any]:
    """The message of the policy, as a client returns it, and the results of its calls."""
    answers = zip(message.tool_calls, values, strict=True)
    return [message, *({"role": "tool", "tool_call_id": call.id, "content": value} for call, value in answers)]


# ------------------------------------------------------------------------------------------------------------- calls


def test_a_call_comes_as_openai_s_and_its_result_goes_on(run: Served) -> None:
    answer = run.ask(asked("Add 2 and 3."), tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert (
        call.type == "function"
        and call.function.name == "add"
        and json.loads(call.function.arguments) == {"a": 2, "b": 3}
    )
    messages = [*asked("Add 2 and 3."), *results(choice.message, "5")]
    done = run.ask(messages, tools=TOOLS).choices[0]
    assert (done.message.content, done.finish_reason, done.message.tool_calls) == (DONE, "stop", None)


def test_text_before_a_call_and_several_calls(run: Served) -> None:
    slow = run.ask(asked("Add 2 and 3, slowly."), tools=TOOLS).choices[0].message
    assert slow.content == "Let me see." and len(slow.tool_calls) == 1
    both = run.ask(asked("Add twice."), tools=TOOLS).choices[0].message
    assert [json.loads(c.function.arguments) for c in both.tool_calls] == [{"a": 2, "b": 3}, {"a": 4, "b": 5}]
    assert len({c.id for c in both.tool_calls}) == 2
    one = run.ask(asked("Add twice."), tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert len(one.tool_calls) == 1
    messages = [*asked("Add twice."), *results(both, "5", "9")]
    assert run.ask(messages, tools=TOOLS).choices[0].message.content == DONE


def test_calls_are_streamed(run: Served) -> None:
    chunks = list(run.ask(asked("Add 2 and 3, slowly."), tools=TOOLS, stream=True))
    choices = [c.choices[0] for c in chunks if c.choices]
    assert "".join(c.delta.content or "" for c in choices) == "Let me see."
    [call] = [call for c in choices for call in c.delta.tool_calls or ()]
    assert (call.index, call.function.name) == (0, "add") and json.loads(call.function.arguments) == {"a": 2, "b": 3}
    assert choices[-1].finish_reason == "tool_calls"
    with run.client().chat.completions.stream(model=run.model, messages=asked("Add twice."), tools=TOOLS) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(c.function.arguments) for c in message.tool_calls or ()] == [{"a": 2, "b": 3}, {"a": 4, "b": 5}]


def test_tool_choice(run: Served) -> None:
    assert run.ask(asked("Hello."), tools=TOOLS).choices[0].message.content == "Hi."
    free = run.ask(asked("Add 2 and 3."), tools=TOOLS, tool_choice="none").choices[0]
    assert free.message.tool_calls is None and free.message.content.strip() == KNOWN["Add 2 and 3."].strip()
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        assert run.ask(asked("Add 2 and 3."), tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
        with pytest.raises(openai.UnprocessableEntityError, match="in one attempt: it does not call add"):
            run.ask(asked("Hello."), tools=TOOLS, tool_choice=choice)
    other = {"type": "function", "function": {"name": "look_up"}}
    with pytest.raises(openai.UnprocessableEntityError, match="it does not call look_up"):
        run.ask(asked("Add 2 and 3."), tools=[*TOOLS, add_tool("look_up")], tool_choice=other)


# -------------------------------------------------------------------------------------------------------------- JSON


def json_schema(**schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def test_a_text_is_checked_to_be_json(run: Served) -> None:
    form = {"type": "json_object"}
    assert json.loads(run.ask(asked("Object."), response_format=form).choices[0].message.content) == {"colour": "red"}
    for question, why in (("Hello.", "it is not JSON"), ("List.", "it is not a JSON object")):
        with pytest.raises(openai.UnprocessableEntityError, match=why):
            run.ask(asked(question), response_format=form)
    assert run.ask(asked("Hello."), response_format={"type": "text"}).choices[0].message.content == "Hi."
    chunks = run.ask(asked("Object."), response_format=form, stream=True)
    assert json.loads("".join(c.choices[0].delta.content or "" for c in chunks)) == {"colour": "red"}
    with pytest.raises(openai.APIError, match="it is not JSON"):
        list(run.ask(asked("Hello."), response_format=form, stream=True))


def test_a_text_is_checked_by_a_schema(run: Served) -> None:
    fits = json_schema(type="object", properties={"colour": {"enum": ["red", "blue"]}}, required=["colour"])
    assert run.ask(asked("Object."), response_format=fits).choices[0].message.content == '{"colour": "red"}'
    wrong = json_schema(type="object", properties={"colour": {"type": "integer"}})
    with pytest.raises(openai.UnprocessableEntityError, match=r"\$.colour: 'red' is not of type 'integer'"):
        run.ask(asked("Object."), response_format=wrong)
    listed = json_schema(type="array", items={"type": "integer"})
    assert run.ask(asked("List."), response_format=listed).choices[0].message.content == "[1, 2]"


def test_a_text_that_does_not_fit_is_drawn_again(run: Served) -> None:
    """At this temperature about half of the texts are no JSON."""
    form, found, failed = {"type": "json_object"}, 0, 0
    plain = [
        run.ask(asked("Object."), temperature=1.4, seed=i, max_tokens=24).choices[0].message.content for i in range(12)
    ]
    at_once = sum(_is_object(text) for text in plain)
    for i in range(12):
        try:
            answer = run.ask(asked("Object."), temperature=1.4, seed=i, max_tokens=24, response_format=form)
            assert _is_object(answer.choices[0].message.content)
            found += 1
        except openai.UnprocessableEntityError as error:
            assert "in 3 attempts" in str(error)
            failed += 1
    assert found > at_once and found + failed == 12


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_a_hostile_schema_costs_little_and_fetches_nothing() -> None:
    deep: dict[str, Any] = {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(30)}}
    deep["$defs"]["d30"] = {}
    assert JsonSchema({**deep, "$ref": "#/$defs/d0"}).problem({}) == "the schema is too complex to be checked"
    assert JsonSchema({"$ref": "#"}).problem({}) == "the schema is too complex to be checked"
    for url in ("http://127.0.0.1:1/x.json", "file:///etc/passwd", "#/$defs/none"):
        assert "which it does not define" in (JsonSchema({"$ref": url}).problem({}) or "")
    for schema in ({"pattern": "(a+)+$"}, {"items": [{"patternProperties": {"(a+)+$": {}}}]}, {"$id": "http://x"}):
        with pytest.raises(ValueError, match="is not supported"):
            JsonSchema(schema)
    assert JsonSchema({"properties": {"pattern": {"type": "string"}}}).problem({"pattern": 1}) is not None
    huge = JsonSchema({"multipleOf": 0.1}).problem(10**400)
    assert huge is not None and huge.startswith("the schema cannot be checked")
    with pytest.raises(ValueError, match="it is not a JSON schema"):
        JsonSchema({"type": "colour"})


# ---------------------------------------------------------------------------------------------------------- refusals


def test_each_refused_value_is_one_clear_sentence(run: Served) -> None:
    ask = asked("Hello.")
    assert run.refused(ask, tool_choice="required") == "tool_choice: required needs tools"
    named = {"type": "function", "function": {"name": "other"}}
    assert run.refused(ask, tools=TOOLS, tool_choice=named) == "tool_choice: tools has no function 'other'"
    assert run.refused(ask, tools=TOOLS * 2) == "tools: two functions have the same name"
    assert run.refused(ask, tools=[{"type": "function", "function": {"name": "a b"}}]).startswith(
        "tools[0].function.name: "
    )
    bad = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 5}}}}
    assert run.refused(ask, tools=[bad]).startswith("tools[0].function.parameters.properties must be")
    assert run.refused(ask, response_format={"type": "yaml"}).startswith("response_format.type: ")
    assert run.refused(ask, response_format={"type": "json_schema"}).endswith("schema is missing")
    assert "the keyword pattern is not supported" in run.refused(ask, response_format=json_schema(pattern="a"))
    assert run.refused(ask, tools=TOOLS, extra_body={"ensemble": True}).startswith("tools is not supported for this")
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{"}}
    said = run.refused([*ask, {"role": "assistant", "tool_calls": [call]}, *ask])
    assert said == "messages[1].tool_calls[0].function.arguments must be a JSON object as text"
    orphan = {"role": "tool", "tool_call_id": "x", "content": "5"}
    assert run.refused([*ask, orphan]).startswith("messages[1]: tool_call_id must be the id of a call")
    assert run.refused([{**ask[0], "tool_calls": [{**call, "function": {"name": "a", "arguments": "{}"}}]}]).startswith(
        "messages[0]: only messages of the role assistant call tools"
    )
    long = [{"type": "function", "function": {"name": f"f{i}", "description": "word " * 40}} for i in range(64)]
    assert "a whole trajectory has at most 1536 tokens" in run.refused(ask, tools=long)
    wide = [{"type": "function", "function": {"name": "f", "description": "x" * (16 * 1536)}}]
    assert "characters; a whole trajectory" in run.refused(ask, tools=wide)
    assert run.ask(ask).choices[0].message.content == "Hi."


# ----------------------------------------------------------------------------------------- a conversation is a rollout


def recorded(run: Served, answer: Any) -> tuple[Trajectory, Any]:
    """The rollout that gave an answer, and its tokens."""
    name = answer.model_extra["grpo_tui"]["trajectory_id"]
    wait_for(lambda: name in names_recorded(run), f"the rollout {name}", 30)
    bodies = RunReader(run.run_dir).bodies
    return bodies.trajectory(name).trajectory, bodies.tokens(name)


def names_recorded(run: Served) -> list[str]:
    return [row.id for row in RunReader(run.run_dir).rollouts.page(limit=1000)]


def test_a_conversation_with_tools_is_recorded_as_one_rollout(run: Served) -> None:
    first = run.ask(asked("Add twice."), tools=TOOLS)
    messages = [*asked("Add twice."), *results(first.choices[0].message, "5", "9")]
    done = run.ask(messages, tools=TOOLS)
    trajectory, tokens = recorded(run, done)
    calling, answering = trajectory.steps
    assert [(c.name, c.arguments, c.result) for c in calling.calls] == [
        ("add", {"a": 2, "b": 3}, "5"),
        ("add", {"a": 4, "b": 5}, "9"),
    ]
    assert (calling.action, calling.observation) == ("add", "5\n9") and calling.text == KNOWN["Add twice."]
    assert (answering.text, trajectory.answer) == (DONE, DONE)
    assert trajectory.prompt.endswith("Add twice.") and trajectory.meta["offered"] == ["add"]
    assert first.model_extra["grpo_tui"]["trajectory_id"] not in names_recorded(run)

    _, words = run.policy
    told = [*asked("Add twice."), {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": a}} for a in ({"a": 2, "b": 3}, {"a": 4, "b": 5})
    ]}, {"role": "tool", "content": "5"}, {"role": "tool", "content": "9"}]  # fmt: skip
    shown = words.apply_chat_template(told, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert words.decode(list(tokens.token_ids)) == shown + DONE + "<|im_end|>"
    written = [
        [
            t
            for t, agent, turn in zip(tokens.token_ids, tokens.agent_mask, tokens.turn, strict=True)
            if agent and turn == i
        ]
        for i in range(2)
    ]
    assert [words.decode(part) for part in written] == [KNOWN["Add twice."] + "<|im_end|>", DONE + "<|im_end|>"]
    assert all((p < 0) == agent for p, agent in zip(tokens.logprobs, tokens.agent_mask, strict=True))


def test_a_further_question_continues_the_tokens_that_were_written(run: Served) -> None:
    first = run.ask(asked("Add 2 and 3, slowly."), tools=TOOLS)
    messages = [*asked("Add 2 and 3, slowly."), *results(first.choices[0].message, "5")]
    second = run.ask(messages, tools=TOOLS)
    messages += [second.choices[0].message, *asked(AGAIN)]
    third = run.ask(messages, tools=TOOLS)
    assert third.choices[0].message.content == SURE
    trajectory, tokens = recorded(run, third)
    assert [step.text for step in trajectory.steps] == [KNOWN["Add 2 and 3, slowly."], DONE, SURE]
    assert [step.observation for step in trajectory.steps] == ["5", AGAIN, ""]
    before, known = recorded(run, second)
    assert trajectory.extra["conversation"] == before.extra["conversation"]
    assert list(tokens.token_ids)[: len(known)] == list(known.token_ids)


def test_a_response_continues_the_one_before(run: Served) -> None:
    client = run.client()
    first = client.responses.create(model=run.model, input="Hello.")
    second = client.responses.create(model=run.model, input=AGAIN, previous_response_id=first.id)
    assert second.output_text == SURE
    assert [step.text for step in recorded(run, second)[0].steps] == ["Hi.", SURE]
    for unknown in ("resp_999-x", "nonsense"):
        with pytest.raises(openai.BadRequestError, match="is not stored"):
            client.responses.create(model=run.model, input=AGAIN, previous_response_id=unknown)
    with pytest.raises(openai.BadRequestError, match="only their caller"):  # another user
        client.responses.create(model=run.model, input=AGAIN, previous_response_id=first.id, user="another")


def test_a_turn_that_nobody_continues_is_recorded_at_the_end(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path_factory.mktemp("open_turn")
    config = calling_config(trained_policy(request.config.cache), folder, updates=False)
    with served(config, folder) as run:
        answer = run.ask(asked("Add 2 and 3."), tools=TOOLS)
        assert names_recorded(run) == []
    assert recorded(run, answer)[0].steps[0].calls[0].result is None
