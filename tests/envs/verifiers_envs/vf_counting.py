# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 with a harness of its own, which offers a tool and answers its calls."""

import json

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

SCHEMA = {"type": "object", "properties": {"fruit": {"type": "integer"}}, "required": ["fruit"]}
LOOKUP = {"name": "lookup", "description": "Look up how many there are.", "parameters": SCHEMA}


class CountData(vf.TaskData):
    answer: str


class CountTask(vf.Task[CountData]):
    @vf.reward(weight=0.75)
    async def told(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.25)
    async def brief(self, trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class CountConfig(TasksetConfig):
    fruits: int = 30


class Counting(vf.Taskset[CountTask, CountConfig]):
    def load(self):
        for i in range(self.config.fruits):
            data = CountData(prompt=f"How many of fruit {i}?", system_prompt="Be brief.", answer=str(i * 3))
            yield CountTask(data)


def streamed(events):
    """The message of a stream of completions."""
    message = {}
    for line in events.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                message |= choice["delta"]
    return message


class Looking(Harness[HarnessConfig]):
    """A chat loop in this process. With any variable in its `env` it streams."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        tools = [{"type": "function", "function": LOOKUP}]
        async with httpx.AsyncClient(timeout=60) as client:
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": tools, "stream": bool(self.config.env)}
                reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if reply.status_code != 200:
                    return ProgramResult(exit_code=1, stdout="", stderr=reply.text)
                message = streamed(reply.text) if body["stream"] else reply.json()["choices"][0]["message"]
                messages.append(message)
                for call in message.get("tool_calls") or ():
                    fruit = json.loads(call["function"]["arguments"])["fruit"]
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(fruit * 3)})
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Counting", "Looking"]
