"""Loading the policy by name or path, and what a person reads when it cannot be."""

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl.trainer import utils

from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections.model import LoraSection, ModelConfig
from grpo_tui.engine.agents.decoder import stop_ids_of
from grpo_tui.engine.policy import memory
from grpo_tui.engine.policy.models import load_policy, load_vision, lora_config, save_adapters
from grpo_tui.engine.policy.prepared import PreparedModel
from grpo_tui.engine.policy.sources import ModelLoadError, load_tokenizer
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.policy.versions import is_checkpointing
from grpo_tui.engine.training import previews
from grpo_tui.envs.agent import Message

from .models import model, model_of_type, tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model("qwen3").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def config(base: Path | str, **more) -> ModelConfig:
    return ModelConfig(base=str(base), device="cpu", lora=LoraSection(r=4), **more)


def shake(policy: torch.nn.Module) -> None:
    """Give the adapters something to say: fresh ones say nothing."""
    torch.manual_seed(1)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)


def logits(policy: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(7, 40)[None]
    with torch.no_grad():
        return policy(input_ids=ids).logits


def test_fresh_adapters_begin_as_the_base_and_alone_are_trained(base):
    policy, tok = load_policy(config(base))
    assert isinstance(policy, PeftModel)
    assert policy.training and not is_checkpointing(base_of(policy))
    trained = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert torch.equal(logits(policy.eval()), logits(model("qwen3")))
    assert tok.padding_side == "left" and tok.pad_token_id is not None


def test_saved_adapters_load_with_plain_peft_and_again_as_policy(base, tmp_path):
    policy, _ = load_policy(config(base))
    assert isinstance(policy, PeftModel)
    shake(policy)
    policy.add_adapter("ref", policy.peft_config["default"])  # as TRL does; it must not be saved
    folder = save_adapters(policy, tmp_path / "adapters")
    assert not (folder / "ref").exists()
    policy.eval()

    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="float32"), str(folder))
    assert torch.equal(logits(plain.eval()), logits(policy))
    frozen, _ = load_policy(config(base), adapters=str(folder), trainable=False)
    assert torch.equal(logits(frozen), logits(policy))
    assert not frozen.training and not any(p.requires_grad for p in frozen.parameters())
    again, _ = load_policy(config(base), adapters=str(folder), trainable=True)
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, _ in again.named_parameters() if "lora_" in n
    }


def test_what_a_person_reads_when_a_model_cannot_be_loaded(base, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    adapters_only = tmp_path / "adapters"
    adapters_only.mkdir()
    (adapters_only / "adapter_config.json").write_text("{}")
    for name, expected in {
        "builtin:huge": "there is no built-in model builtin:huge; there is builtin:tiny",
        "./nowhere": "there is no folder ./nowhere with a model",
        " ": "model.base is empty",
        "https://huggingface.co/Qwen/Qwen3-0.6B": "name the hub id of a model, such as Qwen/Qwen3-0.6B, not an address",
        __file__: "name the folder of a model, or a hub id",
        str(empty): "config.json is missing",
        str(adapters_only): "these are adapters: name them in model.sft_adapters",
        "nobody/no-such-model": "the model nobody/no-such-model cannot be loaded",
    }.items():
        with pytest.raises(ModelLoadError) as caught:
            load_policy(config(name))
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def changed(base: Path, folder: Path, **config_keys: Any) -> Path:
    """A copy of the model with other keys in its config.json."""
    shutil.copytree(base, folder)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **config_keys}))
    return folder


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("a weight is missing", "its files lack 1 of its weights, such as model.norm.weight"),
        ("other shapes", "the shapes of its weights differ from its config.json"),
        ("a pointer", "model.safetensors is only a pointer of Git LFS; `git lfs pull` in that folder"),
        ("a part is missing", "cannot be loaded: No such file or directory: .*model-00001-of-0000"),
        ("no weights", "has no safetensors weights, and other formats are not loaded"),
        ("half a file", "cannot be loaded: Error while deserializing header"),
    ],
)
def test_what_a_person_reads_when_files_of_a_model_are_not_whole(base: Path, tmp_path: Path, fault: str, said: str):
    folder = changed(base, tmp_path / "broken", **({"intermediate_size": 64} if fault == "other shapes" else {}))
    weights = folder / "model.safetensors"
    if fault == "a weight is missing":
        save_file({k: v for k, v in load_file(weights).items() if k != "model.norm.weight"}, weights, {"format": "pt"})
    elif fault == "a pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    elif fault == "a part is missing":
        AutoModelForCausalLM.from_pretrained(base).save_pretrained(folder, max_shard_size="30KB")
        weights.unlink(missing_ok=True)
        min(folder.glob("model-*")).unlink()
    elif fault == "no weights":
        weights.unlink()
    elif fault == "half a file":
        weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ModelLoadError, match=said):
        load_policy(config(folder))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "t5"}, r"is an encoder-decoder \(t5\): name a causal language model$"),
        ({"model_type": "vit"}, "cannot be loaded: transformers has no causal language model of its kind$"),
        ({"hidden_size": "wide"}, r"Validation error for field 'hidden_size': TypeError: .* expected int, got str"),
        ({"rope_parameters": {"rope_type": "round"}}, "cannot be loaded: KeyError: 'round'"),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            "its files have layers that its config.json leaves out",
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, r"\(or name the model with weights that are not"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_one_sentence(base: Path, tmp_path: Path, keys: Any, said: str):
    folder = changed(base, tmp_path / "other", **keys)
    with pytest.raises(ModelLoadError, match=said):
        load_policy(config(folder))


def test_a_tokenizer_of_another_model_is_refused(base: Path, tmp_path: Path):
    folder = changed(base, tmp_path / "narrow", vocab_size=300)
    weights = load_file(folder / "model.safetensors")
    wide = len(tokenizer())
    narrow = {name: w[:300].clone() if len(w) == wide else w for name, w in weights.items()}
    save_file(narrow, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match="has 300 embeddings, but its tokenizer also writes '"):
        load_policy(config(folder))
    begins = copy.deepcopy(tokenizer())
    begins.add_tokens("<|begin|>", special_tokens=True)
    begins.chat_template = "<|begin|>" + str(begins.chat_template)
    folder = changed(base, tmp_path / "grown")
    begins.save_pretrained(folder)
    with pytest.raises(ModelLoadError, match=r"its tokenizer also writes '<\|begin\|>'"):
        load_policy(config(folder))


def test_code_of_a_model_is_never_run_and_nobody_is_asked(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tokenizer", None]}
    folder = changed(base, tmp_path / "coded", model_type="unheard-of", auto_map=names)
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\nfrom transformers import Qwen3Config as Own\n")
    monkeypatch.setattr("builtins.input", lambda text: "y")
    for load in (load_policy, load_tokenizer, previews.reader):
        with contextlib.suppress(ModelLoadError):
            load(config(folder))
    with pytest.raises(ModelLoadError, match="needs code from its repository, which grpo-tui never runs"):
        load_policy(config(folder))
    with pytest.raises(ModelLoadError):
        list(memory.told(RunConfig(model=config(folder))))
    with pytest.raises(ModelLoadError):
        previews.first_prompt(RunConfig(model=config(folder)))
    assert not ran.exists()


def test_a_pattern_of_layers_that_is_none_is_told(base: Path):
    wrong = config(base).model_copy(update={"lora": LoraSection(target_modules="(q_proj")})
    with pytest.raises(ModelLoadError, match=r"model.lora does not fit .*: missing \)"):
        load_policy(wrong)


def test_what_a_person_reads_when_adapters_cannot_be_loaded(base, tmp_path):
    with pytest.raises(ModelLoadError, match="there is no folder of adapters at saved_models/nothing"):
        load_policy(config(base), adapters="saved_models/nothing")
    with pytest.raises(ModelLoadError, match="there is no built-in adapters builtin:other"):
        load_policy(config(base), adapters="builtin:other")

    policy, _ = load_policy(config(base))
    assert isinstance(policy, PeftModel)
    folder = save_adapters(policy, tmp_path / "adapters")
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"adapter_model\.safetensors is missing"):
        load_policy(config(base), adapters=str(folder))

    save_file(
        {name: torch.zeros(w.shape[0], w.shape[1] + 1) for name, w in weights.items()},
        folder / "adapter_model.safetensors",
    )
    with pytest.raises(ModelLoadError, match="do not fit the base model"):
        load_policy(config(base), adapters=str(folder))
    save_file({n: w for n, w in weights.items() if "layers.0" not in n}, folder / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match="they lack weights of some of its layers"):
        load_policy(config(base), adapters=str(folder))
    more = {name.replace("layers.0", "layers.9"): w.clone() for name, w in weights.items()}
    save_file(weights | more, folder / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=r"weights of layers that it lacks, such as model\.layers\.9"):
        load_policy(config(base), adapters=str(folder))
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="is not valid JSON"):
        load_policy(config(base), adapters=str(folder))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"r": 8}, "model.lora: r is 8, but the adapters in .* have 4 and stay as they are"),
        ({"alpha": 8}, "model.lora: alpha is 8, but"),
        ({"target_modules": ["q_proj"]}, r"model.lora: target_modules is \['q_proj'\], but"),
        ({"peft": {"use_dora": True}}, "model.lora: use_dora is True, but"),
        ({}, ""),
        ({"target_modules": ["v_proj", "q_proj"], "peft": {"layers_to_transform": [1, 0]}}, ""),
    ],
)
def test_settings_that_differ_from_the_given_adapters_are_refused(base: Path, tmp_path: Path, changed: Any, said: str):
    lora = LoraSection(r=4, target_modules=["q_proj", "v_proj"], peft={"layers_to_transform": [0, 1]})
    made = config(base).model_copy(update={"lora": lora})
    folder = save_adapters(cast(PeftModel, load_policy(made)[0]), tmp_path)
    asked = made.model_copy(update={"lora": LoraSection(**{"r": 4, **changed})})
    with pytest.raises(ModelLoadError, match=said) if said else contextlib.nullcontext():
        load_policy(asked, adapters=str(folder))
    load_policy(asked, adapters=str(folder), trainable=False)


def test_adapters_that_change_their_base_are_only_merged(base: Path, tmp_path: Path):
    made: Any = get_peft_model(model("qwen3"), LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa"))
    folder = str(save_adapters(made, tmp_path))
    with pytest.raises(ModelLoadError, match="began with init_lora_weights: pissa, which changes the base model"):
        load_policy(config(base), adapters=folder)
    merged, _ = load_policy(config(base).model_copy(update={"lora": None}), adapters=folder)
    assert torch.allclose(logits(merged), logits(made), atol=1e-4)


@pytest.mark.parametrize("more", [{"max_images": 1}, {"max_pixels": 9}, {"lora": LoraSection(vision=True)}])
def test_settings_of_images_for_a_model_that_takes_none_are_refused(base: Path, more: dict[str, Any]):
    settings = config(base).model_copy(update=more)
    with pytest.raises(ModelLoadError, match=r"^model\..* is for models with image input, and .* has none$"):
        load_vision(settings, *load_policy(settings))


def test_ids_of_a_generation_configuration_that_are_none_are_told(base: Path, tmp_path: Path):
    folder = shutil.copytree(base, tmp_path / "base")
    known = json.loads((folder / "generation_config.json").read_text())
    for key, told in (("eos_token_id", r"is '</s>', but the ids"), ("pad_token_id", "a value of a wrong type")):
        (folder / "generation_config.json").write_text(json.dumps({**known, key: "</s>"}))
        with pytest.raises(ModelLoadError, match=told):
            stop_ids_of(load_policy(config(folder))[0])


def test_pickled_weights_are_not_loaded(base, tmp_path):
    net = model("qwen3")
    folder = tmp_path / "pickled"
    net.config.save_pretrained(folder)
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="safetensors"):
        load_policy(config(folder))


def test_lora_that_fits_nothing_is_said_at_its_key(base):
    lora = LoraSection(r=4, target_modules=["no_such_layer"])
    with pytest.raises(ModelLoadError, match=r"model\.lora does not fit"):
        load_policy(config(base).model_copy(update={"lora": lora}))


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_adapters_of_the_output_layer_are_part_of_every_loss(base, weights: str):
    lora = LoraSection(r=4, target_modules=["q_proj", "lm_head"])
    formats = {"weights": weights, "compute": weights, "sampling": weights}
    policy: Any
    policy, _ = load_policy(config(base, **formats).model_copy(update={"lora": lora}))
    if fuses := hasattr(utils, "add_fused_lm_head"):  # TRL 1.14 has none
        utils.add_fused_lm_head(base_of(policy))
    prepared = PreparedModel(policy)
    assert prepared.packed
    shake(policy)  # after the comparison that chooses the form, as training does
    ids = np.arange(7, 40)
    row = torch.from_numpy(ids)[None]
    with torch.no_grad():
        expected = logits(policy).float().log_softmax(-1)[0, :-1].gather(-1, row[0, 1:, None])[:, 0]
        for disabled in (contextlib.nullcontext(), policy.disable_adapter()):
            with disabled:
                (packed,) = prepared.score([ids], [ids > 6]).logprobs
                fused = policy(input_ids=row, labels=row, fused_lm_head=True).log_probs[0] if fuses else None
            off = np.abs(packed[1:] - expected.numpy()).max()
            assert off < 0.1 if isinstance(disabled, contextlib.nullcontext) else off > 0.3
            if fused is not None:
                assert np.abs(packed[1:] - fused.float().numpy()).max() < (1e-4 if weights == "float32" else 0.1)


def test_the_built_in_policy_is_there_small_and_says_what_it_was_taught():
    policy, tok = load_policy(ModelConfig(device="cpu"), adapters="builtin:tiny-sft", trainable=False)
    assert isinstance(policy, PeftModel)
    assert 400_000 < sum(p.numel() for p in policy.get_base_model().parameters()) < 800_000
    tiny = Path(str(policy.get_base_model().name_or_path)).parent
    size = sum(f.stat().st_size for part in ("base", "sft") for f in (tiny / part).iterdir())
    assert size <= 5 * 1024 * 1024
    assert len(tok.encode("127")) == 1
    success = json.loads((tiny / "quality.json").read_text())["success"]
    assert success["sft greedy"]["all"] <= 0.55 and success["sft sampled"]["all"] <= 0.55


def test_four_bits_are_refused_without_a_gpu_in_one_sentence(base):
    with pytest.raises(ModelLoadError, match="nf4 needs a CUDA GPU, and this model goes to cpu"):
        load_policy(config(base, quantization="nf4"))


def test_four_bits_are_asked_of_transformers_where_there_is_a_gpu(base, monkeypatch):
    from grpo_tui.engine.policy import models

    monkeypatch.setattr(models, "chosen_device", lambda config: torch.device("cuda", 0))
    monkeypatch.setattr(models, "find_spec", lambda name: object())
    given = models._quantized(config(base, quantization="nf4", compute="bfloat16"))
    four_bits = given["quantization_config"]
    assert four_bits.load_in_4bit and four_bits.bnb_4bit_quant_type == "nf4"
    assert four_bits.bnb_4bit_compute_dtype == torch.bfloat16
    assert given["device_map"] == {"": torch.device("cuda", 0)}
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="needs bitsandbytes"):
        models._quantized(config(base, quantization="nf4"))


def test_a_tokenizer_without_an_end_of_text_pads_with_another_of_its_special_tokens(base, tmp_path):
    from grpo_tui.engine.policy.sources import load_tokenizer

    shutil.copytree(base, tmp_path / "endless")
    file = tmp_path / "endless" / "tokenizer_config.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in facts.items() if k not in ("eos_token", "pad_token")}))
    made = load_tokenizer(config(tmp_path / "endless"))
    assert made.eos_token is None and made.pad_token_id in made.added_tokens_decoder


def test_padding_always_has_an_embedding(base: Path, tmp_path: Path):
    words: Any = WordLevel({"a": 0, "b": 1}, unk_token="a")
    larger = copy.deepcopy(tokenizer())
    larger.add_special_tokens({"pad_token": "[PAD]"})  # as many do, without resizing the model
    for number, made in enumerate((PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)), larger)):
        folder = shutil.copytree(base, tmp_path / str(number))
        for file in folder.glob("*token*"):
            file.unlink()
        made.save_pretrained(folder)
        policy, loaded = load_policy(config(folder))
        assert 0 <= loaded.pad_token_id < base_of(policy).config.vocab_size  # type: ignore[operator]


def test_a_base_model_gets_chatml_or_the_template_of_a_file(base, tmp_path):
    from grpo_tui.engine.agents.chat import ChatBridge
    from grpo_tui.engine.policy.sources import load_tokenizer

    bare = copy.deepcopy(tokenizer())  # others share it
    bare.chat_template = None
    bare.save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "config.json").write_text((base / "config.json").read_text())
    talk: list[Message] = [{"role": "user", "content": "What?"}]
    made = load_tokenizer(config(tmp_path / "bare", chat_template="chatml"))
    assert ChatBridge(made).prompt_text(talk) == "<|im_start|>user\nWhat?" + _ends(made) + "\n<|im_start|>assistant\n"
    bos = made.convert_ids_to_tokens(0)
    bare.bos_token = bos
    begun: Any = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
    bare.backend_tokenizer.post_processor = begun
    bare.save_pretrained(tmp_path / "begins")
    (tmp_path / "begins" / "config.json").write_text((base / "config.json").read_text())
    told = ChatBridge(load_tokenizer(config(tmp_path / "begins", chat_template="chatml"))).prompt(talk)
    assert told[0] == 0 and told.count(0) == 1 and told[1:] == ChatBridge(made).prompt(talk)
    (tmp_path / "mine.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}{{ 'think ' if thinking else 'say ' }}"
    )
    made = load_tokenizer(config(tmp_path / "bare", chat_template=str(tmp_path / "mine.jinja")))
    for thinking, asked in ((True, "think "), (False, "say ")):  # model.chat_template_kwargs
        bridge = ChatBridge(made, template_kwargs={"thinking": thinking})
        assert bridge.prompt_text(talk) == f"[user] What?</s>{asked}"
    with pytest.raises(ModelLoadError, match="cannot be read"):
        load_tokenizer(config(tmp_path / "bare", chat_template=str(tmp_path / "gone.jinja")))


def test_a_template_without_the_special_tokens_of_the_models_own_is_named(base, tmp_path):
    from grpo_tui.engine.policy.sources import foreign_template, load_tokenizer

    file = tmp_path / "other.jinja"
    given = config(base, chat_template=str(file))
    own = str(tokenizer().chat_template)
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}")
    assert "<|" in foreign_template(given, load_tokenizer(given))
    file.write_text("{{ ' ' }}" + own)
    assert foreign_template(given, load_tokenizer(given)) == "", "the same tokens mark its turns"
    assert foreign_template(config(base), load_tokenizer(config(base))) == ""


def _ends(made) -> str:
    known = "<|im_end|>" in made.get_vocab()
    return "<|im_end|>" if known else str(made.eos_token)


@pytest.mark.parametrize(("kind", "left_out"), [("mamba", "x_proj"), ("mamba2", "out_proj"), ("llama4_text", "router")])
def test_adapters_leave_out_what_a_kernel_reads_past_them_and_routers_of_several_results(kind: str, left_out: str):
    base = model_of_type(kind)
    net: Any = get_peft_model(base, lora_config(LoraSection(r=2), base))
    adapted = {name.split(".")[-2] for name, _ in net.named_modules() if name.endswith("lora_A")}
    assert kind != "mamba2" or adapted == {"in_proj"}
    assert adapted and left_out not in adapted and any(left_out in name for name, _ in base.named_modules())
    assert logits(net).isfinite().all()
