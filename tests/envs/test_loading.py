import sys
from pathlib import Path

import pytest

from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.loading import EnvLoadError, canonical_config, load_env_class, make_env
from grpo_tui.envs.plugins import PLUGINS

SOURCE = """
from grpo_tui.envs import Argument, MultiTurnEnv, StepResult, ToolSpec

class HalfEnv(MultiTurnEnv):
    def reset(self, task):
        return None, []

class WholeEnv(HalfEnv):
    def __init__(self, tokenizer=None, *, size=3, **config):
        super().__init__(tokenizer, **config)
        self.size = size
        if size == 0:
            raise SystemExit("no key: set MY_KEY")

    def step(self, state, call):
        return StepResult("")

class PythonType(WholeEnv):
    tools = (ToolSpec("GO", "Goes.", (Argument("n", "int"),)),)

class NoSpec(WholeEnv):
    tools = ("GO",)

NOT_A_CLASS = 3
"""


def test_a_class_is_found_by_module_and_by_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    assert load_env_class("grpo_tui.envs.calculator.CalculatorEnv") is CalculatorEnv
    assert load_env_class("grpo_tui.envs.CalculatorEnv") is CalculatorEnv
    whole = load_env_class(f"{file}:WholeEnv")
    assert whole is load_env_class(f"{file}:WholeEnv")
    assert getattr(make_env(f"{file}:WholeEnv", {"size": 5}), "size", None) == 5


@pytest.mark.parametrize(
    "path, message",
    [
        ("", "must be"),
        ("WholeEnv", "names no module"),
        ("no_such_module.Env", "there is no module no_such_module here"),
        ("grpo_tui.envs.nowhere.Env", "there is no module grpo_tui.envs.nowhere here"),
        ("grpo_tui.envs.calculator.CalculatrEnv", 'did you mean "CalculatorEnv"?'),
        ("grpo_tui.envs.calculator.CalculatorState", "must be a subclass"),
        ("missing.py:Env", "there is no file missing.py"),
        ("{file}:HalfEnv", "does not define step"),
        ("{file}:PythonType", "an argument of the tool GO must be Argument(name, type) with a type among integer, "),
        ("{file}:NoSpec", "tools must be a tuple of ToolSpec, but one is 'GO'"),
        ("{file}:NOT_A_CLASS", "must be a subclass"),
        ("{broken}:Env", "running broken.py failed: SyntaxError"),
        ("{needy}:Env", "running needy.py failed: ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
)
def test_a_wrong_path_is_one_clear_sentence(path: str, message: str, tmp_path: Path):
    for name, text in (("file", SOURCE), ("broken", "class Env(:"), ("needy", "import no_such_thing")):
        (tmp_path / f"{name}.py").write_text(text)
        path = path.replace(f"{{{name}}}", str(tmp_path / f"{name}.py"))
    with pytest.raises(EnvLoadError) as caught:
        load_env_class(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not any("broken" in name for name in sys.modules if name.startswith("grpo_tui_user"))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"sise": 3}, "unknown sise"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"size": {1}}, "plain JSON"),
        ({"size": 0}, '"size": 0}: no key: set MY_KEY'),
    ],
)
def test_a_wrong_config_is_one_clear_sentence(config: dict, message: str, tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    with pytest.raises(EnvLoadError, match=message):
        make_env(f"{file}:WholeEnv", config) if config != {"size": {1}} else canonical_config(config)


def test_equal_configs_have_one_name():
    assert canonical_config({"a": 1, "b": {"c": 2, "d": 3}}) == canonical_config({"b": {"d": 3, "c": 2}, "a": 1})
    assert canonical_config({"a": 1}) != canonical_config({"a": 1.5})
    assert canonical_config(None) == canonical_config({})


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_loads_by_its_short_name(name: str):
    assert load_env_class(name).__module__.startswith("grpo_tui.envs.plugins")
